//! `sort` and `argsort`: the elements along a dimension in order, or their positions.

use super::check::{checked, dim_of};
use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;

/// Stable; NaN counts as largest.
#[derive(Clone, Copy)]
pub(crate) struct Sort {
    pub dim: isize,
    pub descending: bool,
    /// The positions instead of the values.
    pub positions: bool,
}

/// What ordering a value's rows takes.
pub(super) fn sorting_ns(x: &Meta) -> u64 {
    let n = x.shape.numel() as u64;
    n.saturating_mul(4 * (1 + n.max(1).ilog2() as u64)).saturating_add(200)
}

/// The gradient of elements that an op has put in another order: back to where each came from.
pub(super) fn give_back(call: &mut Backward<'_>, dim: isize, positions: impl Operation) {
    call.give(0, |call| {
        let positions = crate::own(positions, &[call.input(0)]);
        call.zeros(0).scatter_add(dim, positions, call.upstream())
    });
}

impl Operation for Sort {
    fn name(&self) -> &str {
        if self.positions { "argsort" } else { "sort" }
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        dim_of(&inputs[0].shape, self.dim)?;
        let dtype = if self.positions { DType::I64 } else { inputs[0].dtype };
        Ok(Meta { dtype, ..inputs[0].clone() })
    }
    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        sorting_ns(inputs[0])
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[0])
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        give_back(call, self.dim, Sort { positions: true, ..*self });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, out) = (run.inputs[0], &run.output);
        let (values, places) = if self.positions { (None, Some(out)) } else { (Some(out), None) };
        index::sort(x, checked(self.dim, x.shape.len()), self.descending, values, places, run.parallel);
        Ok(())
    }
}
