//! `sort`, `argsort` and `topk` on CUDA.

use super::{OnCuda, operand, walk};
use crate::cuda::kernels::sort;
use crate::dtype::DType;
use crate::graph::device_run::{CudaRun, CudaViewMut};
use crate::graph::operation::Refusal;
use crate::ops::check::checked;
use crate::ops::order::sort::Sort;
use crate::ops::order::topk::TopK;

/// The first `k` along `dim` in order: values, or their places. The kernel makes both; one goes to
/// scratch.
fn sorted(
    cuda: &mut CudaRun<'_>,
    dim: usize,
    k: usize,
    descending: bool,
    positions: bool,
) -> Result<(), Refusal> {
    let (x, out) = (cuda.inputs()[0], cuda.output());
    if out.numel() == 0 {
        return Ok(());
    }
    let other = if positions { x.dtype } else { DType::I64 };
    let spare = CudaViewMut {
        ptr: cuda.scratch(out.numel() * other.size())?,
        dtype: other,
        shape: out.shape,
    };
    let outs = if positions { [spare, out] } else { [out, spare] };
    walk(cuda, x, &outs, "sort", |x| sort::plan(x.dtype, x.shape, dim, operand(x), k, descending))
}

impl OnCuda for Sort {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let shape = run.inputs()[0].shape();
        let dim = checked(self.dim, shape.len());
        sorted(run, dim, shape[dim], self.descending, self.positions)
    }
}

impl OnCuda for TopK {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let dim = checked(self.dim, run.inputs()[0].shape().len());
        sorted(run, dim, self.k, self.largest, true)
    }
}
