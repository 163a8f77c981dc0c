//! `index_select`: whole slices along a dimension.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::check::{checked, dim_of, indices, out_of_range};

#[derive(Clone, Copy)]
pub(crate) struct IndexSelect {
    pub dim: isize,
    /// What it is a part of, as errors have it.
    pub name: &'static str,
    /// Negative indices count from the end; otherwise they are out of range.
    pub from_end: bool,
}

impl Operation for IndexSelect {
    fn name(&self) -> &str {
        self.name
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let x = inputs[0];
        indices(inputs[1])?;
        let dim = dim_of(&x.shape, self.dim)?;
        if inputs[1].shape.rank() != 1 {
            return Err(Refusal::shape(format!(
                "indices of shape {}, not a vector",
                inputs[1].shape
            )));
        }
        let mut shape = x.shape.clone();
        shape.dims_mut()[dim] = inputs[1].shape[0];
        Ok(Meta { shape, dtype: x.dtype })
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
        call.give(0, |call| {
            let g = call.upstream();
            let d = checked(self.dim, g.rank());
            let mut shape = vec![1; g.rank()];
            shape[d] = g.dims()[d];
            let index = call.input(1).reshape(&shape[..]).expand(g.dims());
            call.zeros(0).scatter_added(self.dim, &index, g, self.from_end)
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, dim) = (run.inputs[0], checked(self.dim, run.inputs[0].shape.len()));
        index::index_select(x, dim, run.inputs[1], self.from_end, &run.output, run.parallel)
            .map_err(out_of_range)
    }
}
