//! `gather`: `out[i][j] = x[index[i][j]][j]` along a dimension.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::check::{checked, dim_of, indices, out_of_range, within};

#[derive(Clone, Copy)]
pub(crate) struct Gather {
    pub dim: isize,
    /// What it is a part of, as errors have it.
    pub name: &'static str,
    /// Negative indices count from the end; otherwise they are out of range.
    pub from_end: bool,
}

impl Operation for Gather {
    fn name(&self) -> &str {
        self.name
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let x = inputs[0];
        indices(inputs[1])?;
        let dim = dim_of(&x.shape, self.dim)?;
        let at = &inputs[1].shape;
        // Of no indices there may be as few in any shape, as in PyTorch.
        if at.numel() > 0 {
            within(at, &x.shape, dim)?;
        }
        Ok(Meta { shape: at.clone(), dtype: x.dtype })
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        200u64.saturating_add(output.shape.numel() as u64)
    }
    fn picks(&self) -> bool {
        true
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[1]).as_they_are()
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        // What was read from a place is added to the place's gradient.
        call.give(0, |call| match call.upstream().numel() {
            0 => call.zeros(0),
            _ => {
                let (dim, from_end) = (self.dim, self.from_end);
                call.zeros(0).scatter_added(dim, call.input(1), call.upstream(), from_end)
            }
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        if run.output.numel() == 0 {
            return Ok(());
        }
        let (x, dim) = (run.inputs[0], checked(self.dim, run.inputs[0].shape.len()));
        index::gather(x, dim, run.inputs[1], self.from_end, &run.output, run.parallel)
            .map_err(out_of_range)
    }
}
