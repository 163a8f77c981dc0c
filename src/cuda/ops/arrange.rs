//! Orders, running sums, triangles and rolls on CUDA.

use super::OnCuda;
use super::{operand, walk};
use crate::cuda::kernels::scan::Fold;
use crate::cuda::kernels::{Operand, copy, scan, sort};
use crate::dtype::DType;
use crate::graph::launch::{CudaRun, CudaView, CudaViewMut};
use crate::graph::operation::Refusal;
use crate::ops::arrange::Arrange;
use crate::ops::cumprod::CumProd;
use crate::ops::rows::checked;
use crate::shape::contiguous_strides;
use smallvec::SmallVec;

/// The first `k` along `dim` in order: values, or their places. The kernel makes both; one goes to scratch.
pub(crate) fn sorted(
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
    let spare = CudaViewMut { ptr: cuda.scratch(out.numel() * other.size())?, dtype: other, shape: out.shape };
    let outs = if positions { [spare, out] } else { [out, spare] };
    walk(cuda, x, &outs, "sort", |x| sort::plan(x.dtype, x.shape, dim, operand(x), k, descending))
}

/// Running sums or products along a dimension.
pub(crate) fn running(cuda: &mut CudaRun<'_>, fold: scan::Fold, dim: usize) -> Result<(), Refusal> {
    let (x, out) = (cuda.inputs()[0], cuda.output());
    let name = if fold == scan::Fold::Sum { "cumsum" } else { "cumprod" };
    walk(cuda, x, &[out], name, |x| scan::plan(fold, x.dtype, x.shape, dim, operand(x)))
}

/// One side of a diagonal of the last two dimensions.
pub(crate) fn triangle(cuda: &mut CudaRun<'_>, diagonal: i64, upper: bool) -> Result<(), Refusal> {
    let (x, out) = (cuda.inputs()[0], cuda.output());
    walk(cuda, x, &[out], "triangle", |x| copy::triangle(x.dtype.size(), x.shape, operand(x), diagonal, upper))
}

/// Shifted around along dimensions: a copy for each of the parts that stay together.
pub(crate) fn roll(cuda: &mut CudaRun<'_>, shifts: &[(usize, i64)]) -> Result<(), Refusal> {
    let (x, out) = (cuda.inputs()[0], cuda.output());
    if out.numel() == 0 {
        return Ok(());
    }
    // How far each dimension moves, towards higher places.
    let mut moves: SmallVec<[usize; 8]> = SmallVec::from_elem(0, x.shape.len());
    for &(dim, by) in shifts {
        let n = x.shape[dim] as i64;
        moves[dim] = (moves[dim] as i64 + by.rem_euclid(n)).rem_euclid(n) as usize;
    }
    let rolled: SmallVec<[usize; 8]> = (0..moves.len()).filter(|&d| moves[d] > 0).collect();
    let to = contiguous_strides(out.shape);
    for part in 0..1usize << rolled.len() {
        let mut shape: SmallVec<[usize; 8]> = SmallVec::from_slice(x.shape);
        let (mut from, mut at) = (0isize, 0isize);
        for (bit, &d) in rolled.iter().enumerate() {
            let (n, by) = (x.shape[d], moves[d]);
            // The head moves up by `by`; the last `by` come to the front.
            if part >> bit & 1 == 0 {
                shape[d] = n - by;
                at += by as isize * to[d];
            } else {
                shape[d] = by;
                from += (n - by) as isize * x.strides[d];
            }
        }
        let size = x.dtype.size();
        let ptr = x.ptr.wrapping_add_signed((from * size as isize) as i64);
        let view = CudaView { ptr, shape: &shape, ..x };
        let place = Operand { strides: &to, align: super::align(out.ptr) };
        let plan = copy::plan(size, &shape, operand(&view), place, at as usize * size);
        super::run(cuda, plan, &[view], &[out])?;
    }
    Ok(())
}

impl OnCuda for Arrange {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let shape = run.inputs()[0].shape();
        let at = |dim: isize| checked(dim, shape.len());
        match *self {
            Arrange::Sort { dim, descending, positions } => {
                sorted(run, at(dim), shape[at(dim)], descending, positions)
            }
            Arrange::TopK { dim, k, largest, positions } => sorted(run, at(dim), k, largest, positions),
            Arrange::CumSum { dim } => running(run, Fold::Sum, at(dim)),
            Arrange::Triangle { diagonal, upper } => triangle(run, diagonal, upper),
            Arrange::Roll { ref shifts } => {
                let shifts: Vec<(usize, i64)> = shifts.iter().map(|&(d, by)| (at(d), by)).collect();
                roll(run, &shifts)
            }
        }
    }
}

impl OnCuda for CumProd {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let rank = run.inputs()[0].shape().len();
        running(run, Fold::Product, checked(self.dim, rank))
    }
}
