//! Mixed precision: which ops of a task in a scope are computed in 16 bits, and which in float32.
//!
//! The lists are those of PyTorch's `autocast` on CUDA. What multiplies matrices takes its operands
//! in the scope's type ([`narrowed`]), what loses too much in halves takes them in float32
//! ([`widened`]), and everything else takes them as they are. Methods that are one op are found by
//! its name here; those that are composed ask at their beginning, and the ops that they are
//! composed of are left alone.

use super::caller::is_part;
use crate::dtype::DType;
use crate::sync::threads::thread_local;
use crate::tensor::future::{At, TensorFuture};
use smallvec::SmallVec;
use std::cell::Cell;

thread_local! {
    /// The type of the scope of the task that this thread polls.
    static SCOPE: Cell<Option<DType>> = const { Cell::new(None) };
}

/// Ops that take halves in float32. Logarithms and powers lose most of their digits in halves, and
/// sums overflow in float16.
const WIDE: [&str; 26] = [
    "acos",
    "asin",
    "cosh",
    "cumprod",
    "cumsum",
    "erfinv",
    "exp",
    "expm1",
    "layer_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "logsumexp",
    "pow",
    "prod",
    "recip",
    "rms_norm",
    "rsqrt",
    "sinh",
    "softmax",
    "softplus",
    "square",
    "sum",
    "tan",
];

/// The type of the scope that this thread's ops are in.
#[inline]
pub(crate) fn scope() -> Option<DType> {
    SCOPE.get()
}

/// A scope while its task is polled: the setting before it comes back when it is dropped.
#[must_use]
pub(crate) struct Within(Option<DType>);

/// Has this thread's products computed in a half, or all ops as they are, until the result is
/// dropped.
pub(crate) fn within(half: Option<DType>) -> Within {
    Within(SCOPE.replace(half))
}

impl Drop for Within {
    fn drop(&mut self) {
        SCOPE.set(self.0);
    }
}

/// The scope's type, for a method that the user called.
#[inline]
fn asked() -> Option<DType> {
    scope().filter(|_| !is_part())
}

/// Operands of a product in the scope's type. `None` if they stay as they are: outside a scope, if
/// they have that type, and if one is an integer or float64.
#[inline]
pub(crate) fn narrowed<const N: usize>(
    operands: [Option<&TensorFuture>; N],
    at: At,
) -> Option<[Option<TensorFuture>; N]> {
    let half = asked()?;
    narrows(half, operands.iter().flatten()).then(|| operands.map(|x| x.map(|x| x.cast(half, at))))
}

/// [`narrowed`], of any number of operands.
#[inline]
pub(crate) fn each_narrowed(operands: &[&TensorFuture], at: At) -> Option<Vec<TensorFuture>> {
    let half = asked()?;
    narrows(half, operands.iter()).then(|| operands.iter().map(|x| x.cast(half, at)).collect())
}

fn narrows<'a>(
    half: DType,
    mut operands: impl Iterator<Item = &'a &'a TensorFuture> + Clone,
) -> bool {
    let fits = |x: &&TensorFuture| x.dtype().is_half() || x.dtype() == DType::F32;
    operands.clone().any(|x| x.dtype() != half) && operands.all(fits)
}

/// A half in float32, for a method that is composed of ops and computed in float32. `None` if it
/// stays as it is.
#[inline]
pub(crate) fn widened(x: &TensorFuture, at: At) -> Option<TensorFuture> {
    asked()?;
    x.dtype().is_half().then(|| x.cast(DType::F32, at))
}

/// [`widened`], for an op of this name.
#[inline]
pub(super) fn widened_in(op: &str, x: &TensorFuture, at: At) -> Option<TensorFuture> {
    asked()?;
    WIDE.contains(&op).then(|| widened(x, at))?
}

/// The operands of an op of this name, if one of them is widened.
#[inline]
pub(super) fn each_widened(
    op: &str,
    operands: &[&TensorFuture],
    at: At,
) -> Option<SmallVec<[TensorFuture; 4]>> {
    asked()?;
    if !WIDE.contains(&op) || !operands.iter().any(|x| x.dtype().is_half()) {
        return None;
    }
    let wide = |x: &&TensorFuture| widened(x, at).unwrap_or_else(|| TensorFuture::clone(x));
    Some(operands.iter().map(wide).collect())
}
