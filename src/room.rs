//! Scratch memory of kernels, in host memory.
//!
//! Its size depends on data, so an allocation may fail. Then the kernel ends at once, by unwinding,
//! and its value fails as out of memory ([`guarded`](crate::backend::guarded)); Rust's own vectors
//! would end the process. A panic of a part goes to the kernel's caller, so parts may allocate here
//! as well.

use crate::error::bytes_of;
use std::fmt;
use std::panic::resume_unwind;

/// So many bytes are not to be had: what a kernel unwinds with.
pub(crate) struct NoRoom(usize);

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: {} to work in", bytes_of(self.0))
    }
}

/// Room for so many elements more.
pub(crate) fn reserve<T>(to: &mut Vec<T>, more: usize) {
    if to.try_reserve(more).is_err() {
        denied(to.len().saturating_add(more).saturating_mul(size_of::<T>()));
    }
}

/// So many bytes are not to be had: the kernel ends.
#[cold]
pub(crate) fn denied(bytes: usize) -> ! {
    // No panic of anybody's: no hook is told.
    resume_unwind(Box::new(NoRoom(bytes)))
}

/// An empty vector with room for so many elements.
pub(crate) fn with_capacity<T>(n: usize) -> Vec<T> {
    let mut made = Vec::new();
    reserve(&mut made, n);
    made
}

/// At least so many elements: `fill` behind those that are there.
pub(crate) fn at_least<T: Clone>(to: &mut Vec<T>, n: usize, fill: T) {
    if to.len() < n {
        reserve(to, n - to.len());
        to.resize(n, fill);
    }
}

/// So many times the same element.
pub(crate) fn filled<T: Clone>(n: usize, fill: T) -> Vec<T> {
    let mut made = Vec::new();
    at_least(&mut made, n, fill);
    made
}
