//! Parts of a result that come from different values, on CUDA: cat and slice_assign are copies into
//! windows.

use super::OnCuda;
use super::{operand, run};
use crate::cuda::kernels::{Operand, copy};
use crate::graph::device_run::{CudaRun, CudaView};
use crate::graph::operation::Refusal;
use crate::ops::check::checked;
use crate::ops::shaping::cat::Cat;
use crate::ops::shaping::slice_assign::SliceAssign;
use crate::shape::{Layout, Strides, contiguous_strides};

/// Copies a view into a window of the output: `strides` over the view's shape, from `first`, in
/// elements.
fn copy_into(
    cuda: &mut CudaRun<'_>,
    from: CudaView<'_>,
    strides: &[isize],
    first: usize,
) -> Result<(), Refusal> {
    let (out, size) = (cuda.output(), from.dtype.size());
    let to = Operand::at(out.ptr, strides);
    let plan = copy::plan(size, from.shape, operand(&from), to, first * size);
    run(cuda, plan, &[from], &[out])
}

/// The inputs one after the other along a dimension.
fn cat(cuda: &mut CudaRun<'_>, dim: usize) -> Result<(), Refusal> {
    let strides = contiguous_strides(cuda.output().shape);
    let mut at = 0;
    for &input in cuda.inputs() {
        copy_into(cuda, input, &strides, at * strides[dim] as usize)?;
        at += input.shape[dim];
    }
    Ok(())
}

/// The first input with a part of it replaced by the second, which is broadcast to the part.
fn assign(cuda: &mut CudaRun<'_>, part: &Layout) -> Result<(), Refusal> {
    let source = cuda.inputs()[1];
    let lead = part.shape.rank() - source.shape.len();
    let own =
        |i: usize| (i >= lead && source.shape[i - lead] != 1).then(|| source.strides[i - lead]);
    let strides: Strides = (0..part.shape.rank()).map(|i| own(i).unwrap_or(0)).collect();
    let source = CudaView { shape: &part.shape, strides: &strides, ..source };
    copy_into(cuda, source, &part.strides, part.offset)
}

impl OnCuda for Cat {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let dim = checked(self.dim, run.output().shape().len());
        cat(run, dim)
    }
}

impl OnCuda for SliceAssign {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        assign(run, self.part.as_ref().map_err(Clone::clone)?)
    }
}
