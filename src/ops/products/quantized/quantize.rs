//! A matrix as a weight of some format: of float32, or of the halves that it is to be.

use crate::dtype::DType;
use crate::format::Packing;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::quantized;
use crate::ops::no_gradient;

pub(crate) struct Quantize(pub Packing);

impl Operation for Quantize {
    fn name(&self) -> &str {
        "quantize"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let Packing { format, rows, columns } = self.0;
        let from = format.dtype().unwrap_or(DType::F32);
        match (inputs[0].dtype, &inputs[0].shape[..]) {
            (dtype, &[r, c]) if (dtype, r, c) == (from, rows, columns) => {
                Ok(Meta::new([self.0.bytes()], DType::U8))
            }
            (dtype, _) => Err(Refusal::dtype(format!("{dtype} cannot be quantised to {format}"))),
        }
    }
    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        200u64.saturating_add((inputs[0].shape.numel() as u64).saturating_mul(4))
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        quantized::quantize(run.inputs[0], self.0, &run.output, run.parallel);
        Ok(())
    }
}
