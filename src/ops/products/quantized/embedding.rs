//! Rows of a quantised table in float32, for indices of any shape.

use super::packed;
use crate::dtype::DType;
use crate::format::Packing;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::quantized;
use crate::ops::check::{indices, out_of_range};
use crate::ops::no_gradient;

pub(crate) struct QuantizedEmbedding(pub Packing);

impl Operation for QuantizedEmbedding {
    fn name(&self) -> &str {
        "embedding"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        packed(inputs[0], self.0)?;
        indices(inputs[1])?;
        let shape = inputs[1].shape.iter().copied().chain([self.0.columns]).collect();
        Ok(Meta { shape, dtype: DType::F32 })
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        200u64.saturating_add((output.shape.numel() as u64).saturating_mul(2))
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (weight, index) = (run.inputs[0], run.inputs[1]);
        quantized::embedding(weight, index, self.0, &run.output, run.parallel).map_err(out_of_range)
    }
}
