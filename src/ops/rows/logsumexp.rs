//! `logsumexp` over one dimension.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::rows;
use crate::ops::check::{checked, dim_of, float, row_cost};

/// `logsumexp` over one dimension.
pub(crate) struct LogSumExp {
    pub dim: isize,
    pub keepdim: bool,
}

impl Operation for LogSumExp {
    fn name(&self) -> &str {
        "logsumexp"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        float(inputs[0])?;
        if inputs[0].shape.rank() == 0 && matches!(self.dim, 0 | -1) {
            return Ok(inputs[0].clone());
        }
        let dim = dim_of(&inputs[0].shape, self.dim)?;
        let keep =
            |(d, &n): (usize, &usize)| if d != dim { Some(n) } else { self.keepdim.then_some(1) };
        let shape = inputs[0].shape.iter().enumerate().filter_map(keep).collect();
        Ok(Meta { shape, dtype: inputs[0].dtype })
    }
    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        // Rows of nothing have results all the same.
        row_cost(inputs[0]).max(row_cost(output))
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[0]).and_output()
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let dim = self.dim;
        call.give(0, |call| {
            let (x, y, g) = (call.input(0), call.output(), call.upstream());
            if x.rank() == 0 {
                return g.clone();
            }
            let kept = |t: &crate::TensorFuture| {
                if self.keepdim { t.clone() } else { t.unsqueeze(checked(dim, x.rank()) as isize) }
            };
            // A row of -inf has no softmax; its gradient is zero.
            let y = kept(y);
            let y = y.eq(f64::NEG_INFINITY).where_cond(0.0, &y);
            x.sub(y).exp().mul(kept(g))
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let mut x = run.inputs[0];
        if x.shape.is_empty() {
            (x.shape, x.strides) = (&[1], &[1]);
        }
        rows::logsumexp(x, checked(self.dim, x.shape.len()), &run.output, run.parallel);
        Ok(())
    }
}
