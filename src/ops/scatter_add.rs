//! `scatter_add`: a value with a source's elements added at the indices along a dimension.

use super::check::{checked, dim_of, indices, out_of_range, with_zeros_beyond, within};
use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::op::ScatterMode;

pub(crate) struct ScatterAdd {
    pub dim: isize,
}

impl Operation for ScatterAdd {
    fn name(&self) -> &str {
        "scatter_add"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let x = inputs[0];
        indices(inputs[1])?;
        let dim = dim_of(&x.shape, self.dim)?;
        within(&inputs[1].shape, &x.shape, dim)?;
        within(&inputs[1].shape, &inputs[2].shape, usize::MAX)?;
        if x.dtype != inputs[2].dtype {
            return Err(Refusal::dtype(format!("types differ: {} and {}", x.dtype, inputs[2].dtype)));
        }
        Ok(x.clone())
    }
    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        // One after the other, each of them at another place.
        let added = (inputs[1].shape.numel() as u64).saturating_mul(2);
        200u64.saturating_add(output.shape.numel() as u64).saturating_add(added)
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[1])
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| call.upstream().clone());
        call.give(2, |call| {
            let picked = call.upstream().gather(self.dim, call.input(1));
            with_zeros_beyond(picked, &call.meta(2).shape)
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let [x, at, source] = [0, 1, 2].map(|i| run.inputs[i]);
        let dim = checked(self.dim, x.shape.len());
        index::scatter(x, dim, ScatterMode::Sum, at, source, &run.output, run.parallel).map_err(out_of_range)
    }
}
