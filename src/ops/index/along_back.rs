//! What flows back through elements at places, as one op. Only host devices are asked for it, and
//! only where nobody asks for the gradient's own gradient; elsewhere the rule is made of
//! `scatter_add`.

use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::index::summed;
use crate::ops::check::row_cost;
use crate::ops::index::places::{Axis, places_of, resized};
use crate::ops::no_gradient;

/// What flows back to the operand, of what flows back to the result.
#[derive(Clone, Debug)]
pub(crate) struct AlongBack {
    /// What the op is, or is a part of, as errors have it.
    pub name: &'static str,
    pub axes: Vec<Axis>,
}

impl Operation for AlongBack {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        resized(inputs[0], self.axes.iter().map(|axis| (axis.dim, [axis.output, axis.input])))
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        row_cost(inputs[0]).saturating_add(row_cost(output))
    }

    no_gradient!();

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let g = run.inputs[0];
        summed(g, &places_of(&self.axes, g.dtype), &run.output, run.parallel);
        Ok(())
    }
}
