//! `softmax` and `log_softmax` over one dimension.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::rows::{self, Form};
use crate::ops::check::{checked, dim_of, float, row_cost};

/// `softmax` and `log_softmax`.
pub(crate) struct Softmax {
    pub dim: isize,
    pub form: Form,
}

impl Operation for Softmax {
    fn name(&self) -> &str {
        if self.form == Form::Log { "log_softmax" } else { "softmax" }
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        float(inputs[0])?;
        if inputs[0].shape.rank() > 0 || !matches!(self.dim, 0 | -1) {
            dim_of(&inputs[0].shape, self.dim)?;
        }
        Ok(inputs[0].clone())
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        row_cost(output)
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::OUTPUT
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let dim = self.dim;
        call.give(0, |call| {
            let (g, y) = (call.upstream(), call.output());
            if g.rank() == 0 {
                // One number is a row of one, and always 1 (or log 1).
                return g.mul(0);
            }
            match self.form {
                Form::Log => g.sub(y.exp().mul(g.sum_keepdim(dim))),
                Form::Plain | Form::Safe => y.mul(g.sub(g.mul(y).sum_keepdim(dim))),
            }
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let mut x = run.inputs[0];
        let mut out = run.output_again();
        if x.shape.is_empty() {
            // One number is a row of one.
            (x.shape, x.strides) = (&[1], &[1]);
            out.shape = &[1];
        }
        rows::softmax(x, checked(self.dim, x.shape.len()), self.form, &out, run.parallel);
        Ok(())
    }
}
