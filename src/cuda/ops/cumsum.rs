//! `cumsum` and `cumprod` on CUDA.

use super::{OnCuda, operand, walk};
use crate::cuda::kernels::scan::{self, Fold};
use crate::graph::device_run::CudaRun;
use crate::graph::operation::Refusal;
use crate::ops::check::checked;
use crate::ops::order::cumprod::CumProd;
use crate::ops::order::cumsum::CumSum;

/// Running sums or products along a dimension.
fn running(cuda: &mut CudaRun<'_>, fold: Fold, dim: usize) -> Result<(), Refusal> {
    let (x, out) = (cuda.inputs()[0], cuda.output());
    let name = if fold == Fold::Sum { "cumsum" } else { "cumprod" };
    walk(cuda, x, &[out], name, |x| scan::plan(fold, x.dtype, x.shape, dim, operand(x)))
}

impl OnCuda for CumSum {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let dim = checked(self.dim, run.inputs()[0].shape().len());
        running(run, Fold::Sum, dim)
    }
}

impl OnCuda for CumProd {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let dim = checked(self.dim, run.inputs()[0].shape().len());
        running(run, Fold::Product, dim)
    }
}
