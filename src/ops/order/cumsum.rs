//! `cumsum`: running sums along a dimension.

use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::check::{checked, dim_of};

pub(crate) struct CumSum {
    pub dim: isize,
}

/// Of floats in their type, of anything else in int64.
pub(super) fn running(x: &Meta, dim: isize) -> Result<Meta, Refusal> {
    dim_of(&x.shape, dim)?;
    let dtype = if x.dtype.is_float() { x.dtype } else { DType::I64 };
    Ok(Meta { shape: x.shape.clone(), dtype })
}

pub(super) fn running_ns(output: &Meta) -> u64 {
    200u64.saturating_add(output.shape.numel() as u64)
}

impl Operation for CumSum {
    fn name(&self) -> &str {
        "cumsum"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        running(inputs[0], self.dim)
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        running_ns(output)
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING.as_they_are()
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| call.upstream().flip(self.dim).cumsum(self.dim).flip(self.dim));
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x = run.inputs[0];
        index::cumsum(x, checked(self.dim, x.shape.len()), &run.output, run.parallel);
        Ok(())
    }
}
