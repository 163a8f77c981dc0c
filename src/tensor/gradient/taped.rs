//! Putting values on the tape: what `build` calls once an operand is on it, and the three ways on
//! and off.

use super::table;
use crate::graph::node::NodeHandle;
use crate::graph::operation::Needs;
use crate::graph::tape::{Entry, Given, Made};
use crate::sync::threads::thread_local;
use crate::tensor::future::TensorFuture;
use smallvec::SmallVec;
use std::cell::Cell;

thread_local! {
    static RECORDING: Cell<bool> = const { Cell::new(true) };
}

/// True where ops on values of the tape put their results on it.
pub(crate) fn is_taping() -> bool {
    RECORDING.get()
}

/// Calls `f` with recording on or off, and puts it back as it was, after a panic too.
pub(super) fn with_taping<R>(on: bool, f: impl FnOnce() -> R) -> R {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            RECORDING.set(self.0);
        }
    }
    let _back = Back(RECORDING.replace(on));
    f()
}

/// Calls `f` with the tape off: what is made in it has no gradient. It is a synchronous closure, so
/// that nothing of it can leak across an await; an `async` block made in it is not covered once it
/// is polled.
///
/// ```
/// let w = futensor::Device::cpu().ones([2]).requires_grad();
/// let updated = futensor::no_grad(|| &w - 0.1);
/// assert!(w.is_on_tape() && !updated.is_on_tape());
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    with_taping(false, f)
}

/// A value as the operand of an op on the tape.
pub(super) fn given(x: &TensorFuture) -> Given<'_> {
    Given {
        node: Some(&x.node),
        meta: x.node.meta.clone(),
        entry: x.tape.as_ref().map(|tape| tape.link()),
    }
}

/// The result of an op as a value on the tape.
#[cold]
#[inline(never)]
pub(crate) fn taped(made: Made, operands: &[&TensorFuture], node: NodeHandle) -> TensorFuture {
    let wanted: SmallVec<[bool; 4]> =
        operands.iter().map(|x| x.tape.is_some() && x.dtype().is_float()).collect();
    let needs = table::needs(&made, &wanted, node.meta.dtype);
    let tape = Entry::record(made, operands.iter().map(|x| given(x)), &node, needs);
    TensorFuture::taped(node, tape)
}

/// # Gradients
///
/// The tape: which values have gradients.
impl TensorFuture {
    /// This value as a leaf of the tape: gradients can be asked for it, and what is made from the
    /// handle that this returns is recorded. (Values are immutable: the handle it is called on
    /// stays as it was.)
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let w = futensor::Device::cpu().from_vec(vec![3.0f32], [1]).requires_grad();
    /// let loss = (&w * &w).sum_all();
    /// let gradients = futensor::grad(&loss, &[&w]);        // nothing has waited
    /// assert_eq!(gradients[0].to_vec::<f32>().await?, [6.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// A value whose type is no floating point type has no gradient: asking for it is an error
    /// then.
    pub fn requires_grad(&self) -> TensorFuture {
        let node = self.node.clone();
        let tape = Entry::record(Made::Leaf, std::iter::empty(), &node, Needs::NOTHING);
        TensorFuture::taped(node, tape)
    }

    /// The same value off the tape: no gradient goes through it. PyTorch's `detach`, which here is
    /// the name of fire-and-forget.
    ///
    /// ```
    /// let w = futensor::Device::cpu().ones([2]).requires_grad();
    /// assert!(!(&w * 2.0).stop_gradient().is_on_tape());
    /// ```
    pub fn stop_gradient(&self) -> TensorFuture {
        TensorFuture::new(self.node.clone())
    }

    /// True where a gradient can go through this value.
    pub fn is_on_tape(&self) -> bool {
        self.tape.is_some()
    }
}
