//! Scratch memory of kernels, in host memory.
//!
//! The size of scratch memory depends on data, so an allocation may fail. Then the kernel ends
//! immediately by unwinding, and its value fails with an out-of-memory error
//! ([`guarded`](crate::backend::guarded)); Rust's own vectors would end the process. A panic in a
//! parallel part reaches the kernel's caller, so parts may allocate here
//! as well.

use crate::error::bytes_of;
use std::fmt;
use std::panic::resume_unwind;

/// The payload of the unwinding: the number of bytes that could not be allocated.
pub(crate) struct NoRoom(usize);

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: {} to work in", bytes_of(self.0))
    }
}

/// Reserves room for more elements.
pub(crate) fn reserve<T>(to: &mut Vec<T>, more: usize) {
    if to.try_reserve(more).is_err() {
        denied(to.len().saturating_add(more).saturating_mul(size_of::<T>()));
    }
}

/// Ends the kernel, since this many bytes could not be allocated.
#[cold]
pub(crate) fn denied(bytes: usize) -> ! {
    // This is not a panic, so no panic hook runs.
    resume_unwind(Box::new(NoRoom(bytes)))
}

/// An empty vector with room for `n` elements.
pub(crate) fn with_capacity<T>(n: usize) -> Vec<T> {
    let mut made = Vec::new();
    reserve(&mut made, n);
    made
}

/// Extends a vector to at least `n` elements with `fill`.
pub(crate) fn at_least<T: Clone>(to: &mut Vec<T>, n: usize, fill: T) {
    if to.len() < n {
        reserve(to, n - to.len());
        to.resize(n, fill);
    }
}

/// A vector of `n` equal elements.
pub(crate) fn filled<T: Clone>(n: usize, fill: T) -> Vec<T> {
    let mut made = Vec::new();
    at_least(&mut made, n, fill);
    made
}
