//! `one_hot`: a row of zeros with a one, for each class number. None is negative.

use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::check::{indices, out_of_range};

pub(crate) struct OneHot {
    pub classes: usize,
}

impl Operation for OneHot {
    fn name(&self) -> &str {
        "one_hot"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let x = inputs[0];
        indices(x)?;
        Ok(Meta {
            shape: x.shape.iter().copied().chain([self.classes]).collect(),
            dtype: DType::I64,
        })
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        200u64.saturating_add(output.shape.numel() as u64)
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let _ = call;
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        index::one_hot(run.inputs[0], &run.output, run.parallel).map_err(out_of_range)
    }
}
