//! `x w^T` with a quantised weight of `[outputs, inputs]`.

use super::{Dequantize, packed, reading};
use crate::Backward;
use crate::dtype::DType;
use crate::format::Packing;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::quantized;

pub(crate) struct QuantizedLinear(pub Packing);

impl Operation for QuantizedLinear {
    fn name(&self) -> &str {
        "linear"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (x, Packing { format, rows, columns }) = (inputs[0], self.0);
        packed(inputs[1], self.0)?;
        if x.dtype != DType::F32 {
            return Err(Refusal::dtype(format!("needs float32 beside {format}, not {}", x.dtype)));
        }
        let mut shape = x.shape.clone();
        match shape.dims_mut().last_mut() {
            Some(last) if *last == columns => *last = rows,
            _ => {
                let text = format!("{} by a weight of [{rows}, {columns}] in {format}", x.shape);
                return Err(Refusal::shape(text));
            }
        }
        Ok(Meta { shape, dtype: DType::F32 })
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        let products = (output.shape.numel() as u64).saturating_mul(self.0.columns as u64);
        (products / 100).max(reading(self.0.bytes())).saturating_add(300)
    }
    fn takes_epilogue(&self) -> bool {
        true
    }
    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        if wanted[0] { Needs::inputs(&[1]) } else { Needs::NOTHING }
    }
    /// The weight stays as it is: only the activations have a gradient.
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| {
            call.upstream().matmul(crate::own(Dequantize(self.0), &[call.input(1)]))
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        quantized::linear(run.inputs[0], run.inputs[1], self.0, &run.output, run.parallel);
        Ok(())
    }
}
