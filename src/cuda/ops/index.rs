//! Reads and writes by index on CUDA: gather and its relatives, scatter, one_hot.
//!
//! A kernel writes a bad index to the step's error record, and the value fails when the device has
//! run the kernel.

use super::{OnCuda, operand, run};
use crate::cuda::kernels::align;
use crate::cuda::kernels::index::{self, Indexed};
use crate::dtype::DType;
use crate::graph::device_run::{CudaRun, CudaView, CudaViewMut};
use crate::graph::operation::Refusal;
use crate::op::ScatterMode;
use crate::ops::check::checked;
use crate::ops::index::classes::Classes;
use crate::ops::index::embedding::Embedding;
use crate::ops::index::gather::Gather;
use crate::ops::index::index_copy::IndexCopy;
use crate::ops::index::index_select::IndexSelect;
use crate::ops::index::one_hot::OneHot;
use crate::ops::index::scatter::Scatter;
use crate::ops::index::scatter_add::ScatterAdd;
use crate::shape::{Strides, contiguous_strides};
use smallvec::SmallVec;

fn refused(name: &str, shape: &[usize]) -> Refusal {
    Refusal::kernel(format!("{name} of shape {shape:?} has no CUDA kernel"))
}

/// Looks at the indices of a result that has no elements, so that a bad one is found there, too.
pub(super) fn look(
    cuda: &mut CudaRun<'_>,
    index: CudaView<'_>,
    size: usize,
    from_end: bool,
) -> Result<(), Refusal> {
    if index.numel() == 0 {
        return Ok(());
    }
    // Every place is read from the same byte: that of the first index.
    let nothing: Strides = SmallVec::from_elem(0, index.shape.len());
    let positions = contiguous_strides(index.shape);
    let (mut shape, mut strides, mut at) = (index.shape, index.strides, &positions[..]);
    let (one, none) = ([0isize], [0isize]);
    let mut from: &[isize] = &nothing;
    if shape.is_empty() {
        (shape, strides, at, from) = (&[1], &one, &none, &none);
    }
    let x = CudaView { shape, strides: from, ..index };
    let indexed = Indexed { dtype: index.dtype, strides, positions: at, from_end };
    let to = CudaViewMut { ptr: cuda.scratch(index.numel())?, dtype: DType::U8, shape };
    let plan = index::gather(1, shape, 0, operand(&x), size, indexed, align(to.ptr));
    run(cuda, plan.ok_or_else(|| refused("an index", shape))?, &[x, index], &[to])
}

/// `out[i] = x[.., index[i], ..]`, where `index_at` are the strides of the index over the result's
/// shape and `positions` those of a contiguous one.
fn gather(
    cuda: &mut CudaRun<'_>,
    x: CudaView<'_>,
    dim: usize,
    index_at: &[isize],
    positions: &[isize],
    from_end: bool,
    name: &str,
) -> Result<(), Refusal> {
    let (out, index) = (cuda.output(), cuda.inputs()[1]);
    let size = x.shape[dim];
    if out.numel() == 0 {
        return look(cuda, index, size, from_end);
    }
    let indexed = Indexed { dtype: index.dtype, strides: index_at, positions, from_end };
    let plan =
        index::gather(x.dtype.size(), out.shape, dim, operand(&x), size, indexed, align(out.ptr));
    if let Some(plan) = plan {
        return run(cuda, plan, &[x, index], &[out]);
    }
    let mut strides = Strides::new();
    let x = super::packed(cuda, x, &mut strides)?;
    let plan =
        index::gather(x.dtype.size(), out.shape, dim, operand(&x), size, indexed, align(out.ptr));
    run(cuda, plan.ok_or_else(|| refused(name, out.shape))?, &[x, index], &[out])
}

/// Strides of a row along one dimension that repeats in the others.
fn on_dim(rank: usize, dim: usize, step: isize) -> Strides {
    (0..rank).map(|d| if d == dim { step } else { 0 }).collect()
}

/// One index an element of the result.
fn each(cuda: &mut CudaRun<'_>, dim: usize, from_end: bool) -> Result<(), Refusal> {
    let (x, index) = (cuda.inputs()[0], cuda.inputs()[1]);
    let positions = contiguous_strides(index.shape);
    gather(cuda, x, dim, index.strides, &positions, from_end, "gather")
}

/// Whole slices along a dimension, by a row of indices.
fn slices(cuda: &mut CudaRun<'_>, dim: usize, from_end: bool) -> Result<(), Refusal> {
    let (x, index) = (cuda.inputs()[0], cuda.inputs()[1]);
    let along = |step: isize| on_dim(x.shape.len(), dim, step);
    gather(cuda, x, dim, &along(index.strides[0]), &along(1), from_end, "index_select")
}

/// Rows of a table, for indices of any shape.
fn embedding(cuda: &mut CudaRun<'_>) -> Result<(), Refusal> {
    let (table, index, out) = (cuda.inputs()[0], cuda.inputs()[1], cuda.output());
    let (rank, size) = (index.shape.len(), table.shape[0]);
    if out.numel() == 0 {
        return look(cuda, index, size, false);
    }
    // The indices as one row: a kernel indexes along one dimension.
    let mut lent = Strides::new();
    let index = super::contiguous(cuda, index, &mut lent)?;
    let rows = [index.numel(), table.shape[1]];
    debug_assert_eq!(out.shape.len(), rank + 1);
    let indexed =
        Indexed { dtype: index.dtype, strides: &[1, 0], positions: &[1, 0], from_end: false };
    let plan =
        index::gather(table.dtype.size(), &rows, 0, operand(&table), size, indexed, align(out.ptr));
    run(cuda, plan.ok_or_else(|| refused("embedding", out.shape))?, &[table, index], &[out])
}

/// The value with the source's elements joined to it at the indices; `positions` are the strides in
/// which the places of these are counted.
fn scatter(
    cuda: &mut CudaRun<'_>,
    dim: usize,
    mode: ScatterMode,
    from_end: bool,
    index: CudaView<'_>,
    positions: &[isize],
) -> Result<(), Refusal> {
    let (source, out) = (cuda.inputs()[2], cuda.output());
    if out.numel() == 0 {
        return look(cuda, cuda.inputs()[1], out.shape[dim], from_end);
    }
    let mut lent = [Strides::new(), Strides::new()];
    let [a, b] = &mut lent;
    let (mut index, mut source) = (index, source);
    let plan = |index: &CudaView<'_>, source: &CudaView<'_>| {
        let indexed = Indexed { dtype: index.dtype, strides: index.strides, positions, from_end };
        index::scatter(mode, out.dtype, index.shape, dim, source.strides, indexed, out.shape)
    };
    if plan(&index, &source).is_none() {
        index = super::packed(cuda, index, a)?;
        source = super::packed(cuda, source, b)?;
    }
    let plan = plan(&index, &source).ok_or_else(|| refused("scatter", out.shape))?;
    run(cuda, plan, &[source, index], &[out])
}

/// One index an element of the source.
fn scatter_each(
    cuda: &mut CudaRun<'_>,
    dim: isize,
    mode: ScatterMode,
    from_end: bool,
) -> Result<(), Refusal> {
    let index = cuda.inputs()[1];
    let dim = checked(dim, index.shape.len());
    scatter(cuda, dim, mode, from_end, index, &contiguous_strides(index.shape))
}

/// A row of zeros with a one, for each index.
fn one_hot(cuda: &mut CudaRun<'_>, classes: usize) -> Result<(), Refusal> {
    let (index, out) = (cuda.inputs()[0], cuda.output());
    if classes == 0 {
        return look(cuda, index, 0, false);
    }
    super::walk(cuda, index, &[out], "one_hot", |index| {
        index::one_hot(index.shape, index.dtype, index.strides, classes)
    })
}

impl OnCuda for Classes {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let rank = run.inputs()[0].shape().len();
        each(run, checked(self.dim, rank), false)
    }
}

impl OnCuda for Gather {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let rank = run.inputs()[0].shape().len();
        each(run, checked(self.dim, rank), self.from_end)
    }

    fn looks(&self) -> bool {
        true
    }
}

impl OnCuda for IndexSelect {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let rank = run.inputs()[0].shape().len();
        slices(run, checked(self.dim, rank), self.from_end)
    }

    fn looks(&self) -> bool {
        true
    }
}

impl OnCuda for Embedding {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        embedding(run)
    }

    fn looks(&self) -> bool {
        true
    }
}

impl OnCuda for ScatterAdd {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        scatter_each(run, self.dim, ScatterMode::Sum, self.from_end)
    }

    fn looks(&self) -> bool {
        true
    }
}

impl OnCuda for OneHot {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        one_hot(run, self.classes)
    }

    fn looks(&self) -> bool {
        true
    }
}

impl OnCuda for Scatter {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        scatter_each(run, self.dim, self.mode, false)
    }

    fn looks(&self) -> bool {
        true
    }
}

/// A scatter whose indices repeat in all other dimensions.
impl OnCuda for IndexCopy {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (index, source) = (run.inputs()[1], run.inputs()[2]);
        let dim = checked(self.dim, source.shape.len());
        let along = |step: isize| on_dim(source.shape.len(), dim, step);
        let index = CudaView { shape: source.shape, strides: &along(index.strides[0]), ..index };
        scatter(run, dim, ScatterMode::Assign, self.from_end, index, &along(1))
    }

    fn looks(&self) -> bool {
        true
    }
}
