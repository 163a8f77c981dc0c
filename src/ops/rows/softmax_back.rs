//! What flows back through softmax or its logarithm, as one op. Only host devices are asked for it,
//! and only where nobody asks for the gradient's own gradient; elsewhere `softmax`'s rule is made
//! of the ops that are there.

use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::rows::{self, Form};
use crate::ops::check::{float, row_cost};
use crate::ops::no_gradient;

/// Of `g` and the result, or of `g` and what it was computed of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SoftmaxBack {
    pub dim: usize,
    pub form: Form,
    pub is_result: bool,
}

impl Operation for SoftmaxBack {
    fn name(&self) -> &str {
        if self.form == Form::Log { "log_softmax" } else { "softmax" }
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (g, of) = (inputs[0], inputs[1]);
        float(of)?;
        if g != of {
            return Err(Refusal::shape(format!("{} for {}", g.shape, of.shape)));
        }
        Ok(of.clone())
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        row_cost(output)
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let SoftmaxBack { dim, form, is_result } = *self;
        let [g, of] = [0, 1].map(|i| run.inputs[i]);
        rows::softmax_back(g, of, dim, form, is_result, &run.output, run.parallel);
        Ok(())
    }
}
