//! The seam between the engine and a device.
//!
//! Code that is written once runs steps, groups and calls of regions over a [`Backend`]
//! (`engine/fused`, `engine/run`). That code says which op fails with which, whose memory is
//! written over, and what becomes of the result. A device says where elements are, makes room, and
//! runs kernels. `host/` and `cuda/` implement the trait. Nothing here knows the time or the reason
//! of a step.

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

/// A value that a step reads, or the error that is there instead.
pub(crate) type Operand<'v> = Result<&'v Value, &'v Error>;

/// The results of a step: one for each member that is written out, in order, and one more for the
/// reduction at its end.
pub(crate) type Results = SmallVec<[Result<Value, Error>; 2]>;

/// A device's memory and kernels, for the time of a step.
pub(crate) trait Backend: Sized {
    /// Where elements are, as its kernels are told.
    type At: Copy;
    /// Memory for a result, before it is a value.
    type Place;
    /// The form in which a call of a region keeps a value until it has been read.
    type Kept;
    /// A fault of a kernel or of its preparation.
    type Trouble: From<Refusal>;
    /// A fault beyond one node: the step has to be tried again, or the device is at its end.
    type Stop;

    /// Where nothing is read.
    fn nowhere() -> Self::At;

    /// The number that is all of a value, where a fused program takes it as a constant of its own.
    fn number(&self, _value: &Value, _of: &Node) -> Option<Scalar> {
        None
    }

    /// Where the first element of a node's value is.
    fn find(&mut self, value: &Value, of: &Node) -> Result<Self::At, Self::Trouble>;

    /// Memory for a node's value.
    fn place(&mut self, of: &Node) -> Result<Self::Place, Self::Trouble>;

    /// The memory of an operand that nobody else will read, for a result.
    fn take_over(&mut self, buffer: &Arc<dyn Buffer>) -> Self::Place;

    /// The elements that were written to a place, as a value.
    fn value(place: Self::Place) -> Value;

    /// Runs a fused program.
    fn fused(&mut self, fused: Fused<'_, Self>) -> Result<(), Self::Trouble>;

    /// Runs an op that is not elementwise: of views, the reshape that copies.
    fn op(&mut self, call: OpRun<'_, Self>) -> Result<(), Self::Trouble>;

    /// Has a sink take a value of `of`; `node` is the sink's.
    fn give(
        &mut self,
        sink: &dyn Sink,
        node: &Node,
        value: &Value,
        of: &Node,
    ) -> Result<(), Self::Trouble>;

    /// A few elements, whose op is done sooner than it is grouped with another.
    fn is_tiny(&self, _node: &Node) -> bool {
        false
    }

    /// Runs an op of a few elements straight to where its value is read, and leaves it to be
    /// published; false where it is not as simple as that.
    fn run_tiny(&self, _claim: &mut Claim<'_>) -> bool {
        false
    }

    /// The error of a node that trouble befell, where it is the node's own.
    ///
    /// # Errors
    /// Trouble that is not.
    fn blame(&self, trouble: Self::Trouble, node: &Node) -> Result<Error, Self::Stop>;

    /// A kept value, as an operand.
    fn kept(kept: &Self::Kept) -> Operand<'_>;
}

/// A device whose kernels have run when a call returns: nothing is tried again, and nothing is in
/// doubt.
pub(crate) trait Immediate:
    Backend<Stop = Infallible, Kept = Result<Value, Error>> + Copy
{
    /// Does so many things side by side, each on a thread.
    fn side_by_side(self, n: usize, each: &(dyn Fn(usize, Self) + Sync));
}

/// An operand's elements as a kernel reads them.
pub(crate) struct Read<'a, At> {
    pub at: At,
    pub dtype: DType,
    pub shape: &'a Shape,
    pub strides: Strides,
    /// The buffer of the elements, if they lie in one and not in the node.
    pub buffer: Option<&'a dyn Buffer>,
}

/// A program over a shape, with what it reads and where it writes.
pub(crate) struct Fused<'a, B: Backend> {
    pub program: &'a Program,
    pub shape: &'a Shape,
    /// In the order of `Code::Input`; what no instruction reads is nowhere.
    pub reads: &'a [Read<'a, B::At>],
    /// For each of the program's outputs.
    pub places: &'a mut [B::Place],
    pub end: Option<End<'a, B::Place>>,
}

/// A reduction of a register at the end of a program.
pub(crate) struct End<'a, P> {
    pub node: &'a Node,
    pub reduction: &'a Reduction,
    pub reg: Reg,
    pub place: &'a mut P,
}

/// An op that is not elementwise, with what it reads and where it writes.
pub(crate) struct OpRun<'a, B: Backend> {
    pub node: &'a Node,
    pub reads: &'a [Read<'a, B::At>],
    pub place: &'a mut B::Place,
    /// The place is the memory of the input that
    /// [`Operation::reuses`](crate::custom::Operation::reuses) names. Else the device copies that
    /// input there first, and counts it.
    pub in_place: bool,
}

/// Runs what may be a user's; of its panic it is said that it was the kernel's. One that had no
/// [`room`](crate::room) to work in is out of memory.
pub(crate) fn guarded<R, T: From<Refusal>>(kernel: impl FnOnce() -> Result<R, T>) -> Result<R, T> {
    ended(kernel).unwrap_or_else(|refusal| Err(refusal.into()))
}

/// A sink's answer to a value; of its panic, as [`guarded`].
pub(crate) fn given(
    sink: &dyn Sink,
    node: &Node,
    value: View<'_>,
    parallel: &dyn Parallel,
) -> Result<(), Error> {
    ended(|| sink.take(value, parallel))
        .unwrap_or_else(|refusal| Err(node.fail(refusal.kind, refusal.message)))
}

/// The result of a kernel, unless the kernel ends in the middle.
fn ended<R>(kernel: impl FnOnce() -> R) -> Result<R, Refusal> {
    catch_unwind(AssertUnwindSafe(kernel)).map_err(|panic| match panic.downcast::<NoRoom>() {
        Ok(denied) => Refusal { kind: ErrorKind::OutOfMemory, message: denied.to_string() },
        Err(panic) => Refusal::kernel(format!("the kernel panicked: {}", panic_message(panic))),
    })
}

/// The error of a node for which there is no memory.
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
