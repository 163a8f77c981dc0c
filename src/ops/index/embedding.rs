//! `embedding`: rows of a table, for indices of any shape.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::check::{indices, out_of_range};

pub(crate) struct Embedding {
    /// What it is a part of, as errors have it.
    pub name: &'static str,
}

impl Operation for Embedding {
    fn name(&self) -> &str {
        self.name
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let x = inputs[0];
        indices(inputs[1])?;
        let [_, width] = x.shape[..] else {
            return Err(Refusal::shape(format!("a table of shape {}, not a matrix", x.shape)));
        };
        Ok(Meta { shape: inputs[1].shape.iter().copied().chain([width]).collect(), dtype: x.dtype })
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
            let (width, index) = (call.meta(0).shape[1], call.input(1));
            let rows = [index.numel(), width];
            let index = index.reshape([index.numel(), 1]).expand(rows);
            call.zeros(0).scatter_add(0, index, call.upstream().reshape(rows))
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        index::embedding(run.inputs[0], run.inputs[1], &run.output, run.parallel)
            .map_err(out_of_range)
    }
}
