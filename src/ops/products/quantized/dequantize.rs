//! A quantised weight in float32.

use super::packed;
use crate::dtype::DType;
use crate::format::Packing;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::quantized;
use crate::ops::no_gradient;

pub(crate) struct Dequantize(pub Packing);

impl Operation for Dequantize {
    fn name(&self) -> &str {
        "dequantize"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        packed(inputs[0], self.0)?;
        Ok(Meta::new([self.0.rows, self.0.columns], DType::F32))
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        200u64.saturating_add((output.shape.numel() as u64).saturating_mul(2))
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        quantized::dequantized(run.inputs[0], self.0, &run.output, run.parallel);
        Ok(())
    }
}
