//! `softmax` and `log_softmax` over one dimension.

use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::rows::{self, Form};
use crate::ops::check::{checked, dim_of, float, row_cost};
use crate::ops::rows::softmax_back::SoftmaxBack;

/// `softmax` and `log_softmax`.
pub(crate) struct Softmax {
    pub dim: isize,
    pub form: Form,
    /// Whether what flows back is computed from the operand: that of halves, whose result has been
    /// rounded.
    pub from_operand: bool,
}

impl Softmax {
    /// Of values of a type.
    pub fn of(dtype: DType, dim: isize, form: Form) -> Softmax {
        Softmax { dim, form, from_operand: dtype.is_half() }
    }
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
        let needs = if self.from_operand { Needs::inputs(&[0]) } else { Needs::OUTPUT };
        needs.as_they_are()
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let dim = self.dim;
        call.give(0, |call| {
            let (g, of) = match self.from_operand {
                true => (call.upstream(), call.input(0)),
                false => (call.upstream(), call.output()),
            };
            let at = checked(dim, g.rank().max(1));
            let one = SoftmaxBack { dim: at, form: self.form, is_result: !self.from_operand };
            if !call.keeps_graph() && g.rank() > 0 && g.port().runner.has_kernel(&one) {
                return crate::own(one, &[g, of]);
            }
            let (g, of) = (g.wide(), of.wide());
            let y = match self.from_operand {
                true => crate::own(Softmax { from_operand: false, ..*self }, &[&of]),
                false => of,
            };
            if g.rank() == 0 {
                // One number is a row of one, and always 1 (or log 1).
                return g.mul(0);
            }
            match self.form {
                Form::Log => g.sub(y.exp() * g.sum_keepdim(dim)),
                Form::Plain | Form::Safe => y.mul(g.sub(g.mul(&y).sum_keepdim(dim))),
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
