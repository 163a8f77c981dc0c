//! Running products along a dimension.

use super::cumsum::{running, running_ns};
use super::others::through_cumprod;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::check::checked;
use crate::{Backward, TensorFuture};

pub(crate) struct CumProd {
    pub dim: isize,
}

impl Operation for CumProd {
    fn name(&self) -> &str {
        "cumprod"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        running(inputs[0], self.dim)
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        running_ns(output)
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[0]).and_output()
    }

    /// Of `x[k]` the sum over `j >= k` of `g[j]` times the product up to `j` without `x[k]`. That
    /// product is `y[j] / x[k]`; at the first zero of a row it is the product in which this zero
    /// counts as 1, and at a later one it is 0. (That holds of the gradient, but not of its own.)
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let dim = self.dim;
        call.give(0, |call| {
            let (g, x) = (call.upstream(), call.input(0));
            if call.keeps_graph() {
                return through_cumprod(g, x, dim);
            }
            let later = |terms: TensorFuture| terms.cumsum_with(dim, false, true);
            let zero = x.eq(0);
            let first = zero.logical_and(zero.cumsum(dim).eq(1));
            let at_first = later(first.where_cond(1.0, x).cumprod(dim).mul(g));
            let elsewhere = later(call.output().mul(g)).div(zero.where_cond(1.0, x));
            zero.where_cond(first.where_cond(at_first, 0.0), elsewhere)
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x = run.inputs[0];
        index::cumprod(x, checked(self.dim, x.shape.len()), &run.output, run.parallel);
        Ok(())
    }
}
