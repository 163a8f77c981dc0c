//! Scratch memory of kernels, in host memory; and huge pages for whatever is allocated there.
//!
//! The size of scratch memory depends on data, so an allocation may fail. Then the kernel ends
//! immediately by unwinding, and its value fails with an out-of-memory error
//! ([`guarded`](crate::backend::guarded)); Rust's own vectors would end the process. A panic in a
//! parallel part reaches the kernel's caller, so parts may allocate here
//! as well.

#![allow(unsafe_code)]

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
    if to.is_empty() {
        ask_for_huge_pages(to.as_ptr().cast(), to.capacity() * size_of::<T>());
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

/// Bytes of a huge page.
pub(crate) const HUGE: usize = 2 << 20;

/// Asks for huge pages for those of a fresh allocation's bytes that fill some. (A core of a Zen 4
/// knows 12 MiB of pages of 4 KiB: sums of 16 MiB on two of them, each row in turn, took 124 us in
/// such pages and 117 in huge ones. And there are 500 times fewer first touches.)
pub(crate) fn ask_for_huge_pages(ptr: *const u8, bytes: usize) {
    let first = ptr.align_offset(HUGE);
    let whole = bytes.saturating_sub(first) / HUGE * HUGE;
    #[cfg(target_os = "linux")]
    if whole > 0 {
        // SAFETY: advice changes no contents, whatever lies there. A refusal means small pages.
        unsafe { libc::madvise(ptr.wrapping_add(first) as *mut _, whole, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = whole;
}
