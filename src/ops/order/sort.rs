//! `sort` and `argsort`: the elements along a dimension in order, or their positions.

use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::check::{checked, dim_of};

/// Stable; NaN counts as largest.
#[derive(Clone, Copy)]
pub(crate) struct Sort {
    pub dim: isize,
    pub descending: bool,
    /// The positions instead of the values.
    pub positions: bool,
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
        let n = inputs[0].shape.numel() as u64;
        n.saturating_mul(4 * (1 + n.max(1).ilog2() as u64)).saturating_add(200)
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[0]).as_they_are()
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        // Back to where each came from.
        call.give(0, |call| {
            let positions = crate::own(Sort { positions: true, ..*self }, &[call.input(0)]);
            call.zeros(0).scatter_add(self.dim, positions, call.upstream())
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, out) = (run.inputs[0], &run.output);
        let (values, places) = if self.positions { (None, Some(out)) } else { (Some(out), None) };
        index::sort(
            x,
            checked(self.dim, x.shape.len()),
            self.descending,
            values,
            places,
            run.parallel,
        );
        Ok(())
    }
}
