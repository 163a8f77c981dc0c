//! The seam between the engine and a device.
//!
//! Device-independent code runs steps, groups and region calls over a [`Backend`] (`engine/fused`,
//! `engine/run`). That code decides which ops fail together, whose memory is overwritten, and what
//! happens to results. A device locates elements, allocates memory, and runs kernels. `host/` and
//! `cuda/` implement the trait. Nothing here knows when or why a step runs.

use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, bytes_of};
use crate::graph::claim::Claim;
use crate::graph::node::{Node, Reduction, Sink};
use crate::graph::program::{Program, Reg};
use crate::graph::refusal::Refusal;
use crate::graph::value::{Buffer, Value};
use crate::guard::panic_message;
use crate::room::NoRoom;
use crate::shape::{Shape, Strides};
use crate::view::{Parallel, View};
use smallvec::SmallVec;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A value that a step reads, or its error.
pub(crate) type Operand<'v> = Result<&'v Value, &'v Error>;

/// The results of a step: one for each member that is written to memory, in order, and one more for
/// a final reduction.
pub(crate) type Results = SmallVec<[Result<Value, Error>; 2]>;

/// A device's memory and kernels, during a step.
pub(crate) trait Backend: Sized {
    /// The location of elements, as kernels take it.
    type At: Copy;
    /// Memory for a result, before it is a value.
    type Place;
    /// The form in which a call of a region keeps a value until it has been read.
    type Kept;
    /// A fault of a kernel or of its preparation.
    type Trouble: From<Refusal>;
    /// A fault beyond one node: the step has to be retried, or the device is lost.
    type Stop;

    /// The location of an operand that is not read.
    fn nowhere() -> Self::At;

    /// The single number of a value, if a fused program takes it as a constant.
    fn number(&self, _value: &Value, _of: &Node) -> Option<Scalar> {
        None
    }

    /// The location of the first element of a node's value.
    fn find(&mut self, value: &Value, of: &Node) -> Result<Self::At, Self::Trouble>;

    /// Allocates memory for a node's value.
    fn place(&mut self, of: &Node) -> Result<Self::Place, Self::Trouble>;

    /// Reuses the memory of an operand without other readers for a result: one that is the operand
    /// where nothing new is written, if it `keeps` its elements, else one that is written as a
    /// whole.
    fn take_over(&mut self, buffer: &Arc<dyn Buffer>, keeps: bool) -> Self::Place;

    /// Makes a value of written memory.
    fn value(place: Self::Place) -> Value;

    /// Runs a fused program.
    fn fused(&mut self, fused: Fused<'_, Self>) -> Result<(), Self::Trouble>;

    /// Runs an op that is not elementwise; of the views, only a reshape that copies.
    fn op(&mut self, call: OpRun<'_, Self>) -> Result<(), Self::Trouble>;

    /// Passes the value of `of` to a sink, whose node is `node`.
    fn give(
        &mut self,
        sink: &dyn Sink,
        node: &Node,
        value: &Value,
        of: &Node,
    ) -> Result<(), Self::Trouble>;

    /// Whether a node has so few elements that running it takes less time than fusing it.
    fn is_tiny(&self, _node: &Node) -> bool {
        false
    }

    /// Runs an op on a few elements directly into the node, to be published by the caller; false if
    /// the op is not that simple.
    fn run_tiny(&self, _claim: &mut Claim<'_>) -> bool {
        false
    }

    /// The error of a node, if the trouble concerns only this node.
    ///
    /// # Errors
    /// Trouble that does not.
    fn blame(&self, trouble: Self::Trouble, node: &Node) -> Result<Error, Self::Stop>;

    /// A kept value, as an operand.
    fn kept(kept: &Self::Kept) -> Operand<'_>;
}

/// A device whose kernels have run when a call returns: nothing is retried, and no result is
/// pending.
pub(crate) trait Immediate:
    Backend<Stop = Infallible, Kept = Result<Value, Error>> + Copy
{
    /// Runs `n` tasks in parallel, each on a thread.
    fn side_by_side(self, n: usize, each: &(dyn Fn(usize, Self) + Sync));
}

/// An operand's elements as a kernel reads them.
pub(crate) struct Read<'a, At> {
    pub at: At,
    pub dtype: DType,
    pub shape: &'a Shape,
    pub strides: Strides,
    /// The buffer of the elements, unless they are stored in the node.
    pub buffer: Option<&'a dyn Buffer>,
}

/// A program over a shape, with its operands and results.
pub(crate) struct Fused<'a, B: Backend> {
    pub program: &'a Program,
    pub shape: &'a Shape,
    /// In the order of `Code::Input`; an operand that no instruction reads is `nowhere`.
    pub reads: &'a [Read<'a, B::At>],
    /// The memory for each of the program's outputs.
    pub places: &'a mut [B::Place],
    pub end: Option<End<'a, B::Place>>,
}

/// A final reduction of a program's register.
pub(crate) struct End<'a, P> {
    pub node: &'a Node,
    pub reduction: &'a Reduction,
    pub reg: Reg,
    pub place: &'a mut P,
}

/// An op that is not elementwise, with its operands and result.
pub(crate) struct OpRun<'a, B: Backend> {
    pub node: &'a Node,
    pub reads: &'a [Read<'a, B::At>],
    pub place: &'a mut B::Place,
    /// The place is the memory of the input that
    /// [`Operation::reuses`](crate::custom::Operation::reuses) names. Otherwise the device copies
    /// that input there first, and counts the copy.
    pub in_place: bool,
}

/// Runs code that may be a user's kernel; a panic becomes a kernel error, and a lack of
/// [`room`](crate::room) an out-of-memory error.
pub(crate) fn guarded<R, T: From<Refusal>>(kernel: impl FnOnce() -> Result<R, T>) -> Result<R, T> {
    ended(kernel).unwrap_or_else(|refusal| Err(refusal.into()))
}

/// A sink's answer to a value; a panic is handled as in [`guarded`].
pub(crate) fn given(
    sink: &dyn Sink,
    node: &Node,
    value: View<'_>,
    parallel: &dyn Parallel,
) -> Result<(), Error> {
    ended(|| sink.take(value, parallel))
        .unwrap_or_else(|refusal| Err(node.fail(refusal.kind, refusal.message)))
}

/// The result of a kernel, or the error of its unwinding.
fn ended<R>(kernel: impl FnOnce() -> R) -> Result<R, Refusal> {
    catch_unwind(AssertUnwindSafe(kernel)).map_err(|panic| match panic.downcast::<NoRoom>() {
        Ok(denied) => Refusal { kind: ErrorKind::OutOfMemory, message: denied.to_string() },
        Err(panic) => Refusal::kernel(format!("the kernel panicked: {}", panic_message(panic))),
    })
}

/// The error of a node without memory for its result.
pub(crate) fn out_of_memory(node: &Node, bytes: usize, live: usize) -> Error {
    let text = format!(
        "out of memory: {} for {} {} ({} live)",
        bytes_of(bytes),
        node.dtype,
        node.shape,
        bytes_of(live)
    );
    node.fail(ErrorKind::OutOfMemory, text)
}
