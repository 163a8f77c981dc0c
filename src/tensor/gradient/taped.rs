//! Putting values on the tape: `build` calls this if an operand is on it; and the three ways on and
//! off the tape.

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

/// True if ops on values on the tape put their results on it.
pub(crate) fn is_taping() -> bool {
    RECORDING.get()
}

/// Calls `f` with taping on or off, and restores the setting afterwards, also after a panic.
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

/// Calls `f` with the tape off: values computed inside have no gradient. `f` is a synchronous
/// closure, so the setting cannot leak across an await. An `async` block that is created inside is
/// not covered when it is polled later.
///
/// ```
/// let w = futensor::Device::cpu().ones([2]).requires_grad();
/// let updated = futensor::no_grad(|| &w - 0.1);
/// assert!(w.is_on_tape() && !updated.is_on_tape());
/// ```
#[doc(alias = "inference_mode")]
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    with_taping(false, f)
}

/// A value, as an operand of an op on the tape.
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
        operands.iter().map(|x| x.tape.is_some() && x.dtype().is_differentiable()).collect();
    let needs = table::needs(&made, &wanted, node.meta.dtype);
    let tape = Entry::record(made, operands.iter().map(|x| given(x)), &node, needs);
    TensorFuture::taped(node, tape)
}

/// # Gradients
///
/// The tape records which values have gradients.
impl TensorFuture {
    /// This value as a leaf of the tape: [`grad`](crate::grad) can compute its gradients, and ops
    /// on the returned handle are recorded. (Values are immutable: the handle it is called on does
    /// not change.)
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
    /// Only floating point values have gradients: `grad` with respect to another value is an error.
    #[doc(alias = "requires_grad_")]
    pub fn requires_grad(&self) -> TensorFuture {
        let node = self.node.clone();
        let tape = Entry::record(Made::Leaf, std::iter::empty(), &node, Needs::NOTHING);
        TensorFuture::taped(node, tape)
    }

    /// The same value off the tape: no gradient flows through it. PyTorch's `detach`; here
    /// [`detach`](Self::detach) means fire and forget.
    ///
    /// ```
    /// let w = futensor::Device::cpu().ones([2]).requires_grad();
    /// assert!(!(&w * 2.0).stop_gradient().is_on_tape());
    /// ```
    #[doc(alias = "detach")]
    pub fn stop_gradient(&self) -> TensorFuture {
        TensorFuture::new(self.node.clone())
    }

    /// True if a gradient can flow through this value.
    pub fn is_on_tape(&self) -> bool {
        self.tape.is_some()
    }
}
