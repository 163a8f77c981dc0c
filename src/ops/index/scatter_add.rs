//! `scatter_add`: a value with a source's elements added at the indices along a dimension.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::op::ScatterMode;
use crate::ops::check::{
    checked, dim_of, indices, out_of_range, put_ns, with_zeros_beyond, within,
};

#[derive(Clone, Copy)]
pub(crate) struct ScatterAdd {
    pub dim: isize,
    /// What it is a part of, as errors have it.
    pub name: &'static str,
    /// Negative indices count from the end; otherwise they are out of range.
    pub from_end: bool,
}

impl Operation for ScatterAdd {
    fn name(&self) -> &str {
        self.name
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let x = inputs[0];
        indices(inputs[1])?;
        let dim = dim_of(&x.shape, self.dim)?;
        within(&inputs[1].shape, &x.shape, dim)?;
        within(&inputs[1].shape, &inputs[2].shape, usize::MAX)?;
        if x.dtype != inputs[2].dtype {
            return Err(Refusal::dtype(format!(
                "types differ: {} and {}",
                x.dtype, inputs[2].dtype
            )));
        }
        Ok(x.clone())
    }
    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        put_ns(inputs[0], inputs[1])
    }
    fn reuses(&self) -> Option<usize> {
        Some(0)
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[1]).as_they_are()
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| call.upstream().clone());
        call.give(2, |call| {
            let picked = call.upstream().gathered(self.dim, call.input(1), self.from_end);
            with_zeros_beyond(picked, &call.meta(2).shape)
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let dim = checked(self.dim, run.output.shape.len());
        let [at, source] = [1, 2].map(|i| run.inputs[i]);
        let (mode, out) = (ScatterMode::Sum, &run.output);
        index::scatter(dim, mode, self.from_end, at, source, out, run.parallel)
            .map_err(out_of_range)
    }
}
