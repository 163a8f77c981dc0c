//! The CUDA side of the ops: the plans of `cuda/kernels` for each of them.
//!
//! Where a kernel cannot walk an operand as it lies, the operand is copied to scratch memory first.
//! Pure description: an op hands plans over with addresses, and `cuda/device/launch` launches them.

mod attention;
mod checks;
mod conv;
mod index;
mod place;
mod pool;
mod product;
mod quantized;
mod roll;
mod rope;
mod rows;
mod scan;
mod sort;
mod top_p;
mod triangle;

use crate::cuda::kernels::{Operand, Plan, align, elementwise};
use crate::dtype::{DType, Scalar};
use crate::graph::device_run::{CudaRun, CudaView, CudaViewMut};
use crate::graph::operation::{Operation, Refusal};
use crate::graph::program::{Arg, Code, Program};
use crate::ops::for_each_operation;
use crate::shape::{Strides, contiguous_strides};
use smallvec::SmallVec;
use std::any::Any;

/// One of the crate's ops on a GPU.
trait OnCuda {
    /// Queues its launches, and returns.
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal>;

    /// A result without elements has indices to look at all the same.
    fn looks(&self) -> bool {
        false
    }
}

/// An op as what a GPU is told of it, by its word on the list.
macro_rules! plan {
    (plan, $op:ident) => {
        Some($op)
    };
    (none, $op:ident) => {
        None
    };
}

macro_rules! plans {
    ($($family:ident::$op:ident::$Op:ident {
        values: $values:tt, gradients: $gradients:tt, gpu: $gpu:ident, storage: $storage:ident,
    })*) => {
        /// The plan of an op, where it has one here.
        fn plan_of(op: &dyn Operation) -> Option<&dyn OnCuda> {
            let any: &dyn Any = op;
            $(if let Some(_op) = any.downcast_ref::<crate::ops::$family::$op::$Op>() {
                return plan!($gpu, _op);
            })*
            None
        }
    };
}
for_each_operation!(plans);

/// Queues the launches of an op: by its plan here, or by the kernel that it brings itself.
pub(crate) fn queue(op: &dyn Operation, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
    match plan_of(op) {
        Some(op) => op.queue(run),
        None => op.run_cuda(run),
    }
}

/// True for an op of the crate's with a plan for a GPU.
pub(crate) fn has_plan(op: &dyn Operation) -> bool {
    plan_of(op).is_some()
}

/// True for an op that is queued even where its result has no elements.
pub(crate) fn looks(op: &dyn Operation) -> bool {
    plan_of(op).is_some_and(OnCuda::looks)
}

/// A view as a kernel is planned for it.
pub(crate) fn operand<'a>(view: &CudaView<'a>) -> Operand<'a> {
    Operand::at(view.ptr, view.strides)
}

/// A result as an operand of a later launch; `strides` are those of its shape without gaps.
pub(crate) fn reread<'a>(out: CudaViewMut<'a>, strides: &'a [isize]) -> CudaView<'a> {
    CudaView { ptr: out.ptr, dtype: out.dtype, shape: out.shape, strides }
}

/// Queues a plan.
pub(crate) fn run(
    run: &mut CudaRun<'_>,
    plan: Plan,
    inputs: &[CudaView<'_>],
    outputs: &[CudaViewMut<'_>],
) -> Result<(), Refusal> {
    if plan.launches.is_empty() {
        return Ok(());
    }
    run.work(&plan, inputs, outputs)
}

/// Copies elements in row-major order to contiguous memory that does not overlap.
pub(crate) fn copy_to(
    cuda: &mut CudaRun<'_>,
    from: CudaView<'_>,
    to: CudaViewMut<'_>,
) -> Result<(), Refusal> {
    cuda.queue.copy(from, to)
}

/// A copy without gaps in scratch memory; `strides` lends the memory for its strides.
pub(crate) fn packed<'a>(
    cuda: &mut CudaRun<'_>,
    view: CudaView<'a>,
    strides: &'a mut Strides,
) -> Result<CudaView<'a>, Refusal> {
    let ptr = cuda.scratch(view.numel() * view.dtype.size())?;
    copy_to(cuda, view, CudaViewMut { ptr, dtype: view.dtype, shape: view.shape })?;
    *strides = contiguous_strides(view.shape);
    Ok(CudaView { ptr, strides, ..view })
}

/// A view without gaps: itself, or a copy.
pub(crate) fn contiguous<'a>(
    cuda: &mut CudaRun<'_>,
    view: CudaView<'a>,
    strides: &'a mut Strides,
) -> Result<CudaView<'a>, Refusal> {
    if view.is_contiguous() { Ok(view) } else { packed(cuda, view, strides) }
}

/// Plans with the operand as it lies or, where that is no use, with a copy of it, and queues the
/// plan.
pub(crate) fn walk(
    cuda: &mut CudaRun<'_>,
    view: CudaView<'_>,
    outputs: &[CudaViewMut<'_>],
    name: &str,
    plan: impl Fn(&CudaView<'_>) -> Option<Plan>,
) -> Result<(), Refusal> {
    walk_all(cuda, [view], outputs, name, |[view]| plan(view))
}

/// [`walk`] of several operands.
pub(crate) fn walk_all<const N: usize>(
    cuda: &mut CudaRun<'_>,
    views: [CudaView<'_>; N],
    outputs: &[CudaViewMut<'_>],
    name: &str,
    plan: impl Fn(&[CudaView<'_>; N]) -> Option<Plan>,
) -> Result<(), Refusal> {
    if let Some(plan) = plan(&views) {
        return run(cuda, plan, &views, outputs);
    }
    let mut lent = [(); N].map(|()| Strides::new());
    let mut views = views;
    for (view, strides) in views.iter_mut().zip(&mut lent) {
        *view = packed(cuda, *view, strides)?;
    }
    match plan(&views) {
        Some(plan) => run(cuda, plan, &views, outputs),
        None => {
            Err(Refusal::kernel(format!("{name} of shape {:?} has no CUDA kernel", views[0].shape)))
        }
    }
}

/// Runs a program of one op over views of one shape, broadcast to it by strides of 0.
pub(crate) fn program(
    cuda: &mut CudaRun<'_>,
    program: &Program,
    inputs: &[CudaView<'_>],
    output: CudaViewMut<'_>,
) -> Result<(), Refusal> {
    let operands: SmallVec<[Operand<'_>; 4]> = inputs.iter().map(operand).collect();
    let plan = elementwise::plan(program, output.shape, &operands, align(output.ptr));
    run(cuda, plan, inputs, &[output])
}

/// Converts elements to another type.
pub(crate) fn cast(
    cuda: &mut CudaRun<'_>,
    from: CudaView<'_>,
    to: CudaViewMut<'_>,
) -> Result<(), Refusal> {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), from.dtype, from.dtype);
    let y = if from.dtype == to.dtype {
        x
    } else {
        p.push(Code::Cast(Arg::Reg(x)), from.dtype, to.dtype)
    };
    p.outputs.push(y);
    program(cuda, &p, &[from], to)
}

/// The same number everywhere.
pub(crate) fn fill(
    cuda: &mut CudaRun<'_>,
    number: Scalar,
    to: CudaViewMut<'_>,
) -> Result<(), Refusal> {
    let mut p = Program::default();
    let y = p.push(Code::Fill(number), to.dtype, to.dtype);
    p.outputs.push(y);
    program(cuda, &p, &[], to)
}

/// A value of another type in scratch memory; itself where it has the type already.
pub(crate) fn converted<'a>(
    cuda: &mut CudaRun<'_>,
    view: CudaView<'a>,
    dtype: DType,
    strides: &'a mut Strides,
) -> Result<CudaView<'a>, Refusal> {
    if view.dtype == dtype {
        return Ok(view);
    }
    let ptr = cuda.scratch(view.numel() * dtype.size())?;
    cast(cuda, view, CudaViewMut { ptr, dtype, shape: view.shape })?;
    *strides = contiguous_strides(view.shape);
    Ok(CudaView { ptr, dtype, strides, ..view })
}
