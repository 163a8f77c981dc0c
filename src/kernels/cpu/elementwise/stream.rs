//! A copy that writes around the cache.
//!
//! Called by the executor for results that are larger than any cache: an ordinary store first reads the
//! line that it overwrites, so a third of the memory traffic is for nothing.

#![allow(unsafe_code)]

/// Copies `n` bytes, the destination around the cache where the machine can. [`fence`] ends a series.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `n` bytes; they do not overlap.
pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64; loads are unaligned, stores begin where `dst` is aligned and stay
    // inside the n bytes.
    unsafe {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
        let head = dst.align_offset(64).min(n);
        std::ptr::copy_nonoverlapping(src, dst, head);
        let lines = (n - head) / 64;
        for i in 0..lines {
            let (from, to) = (src.add(head + 64 * i), dst.add(head + 64 * i));
            for part in 0..4 {
                _mm_stream_si128(to.add(16 * part).cast(), _mm_loadu_si128(from.add(16 * part).cast()));
            }
        }
        let done = head + 64 * lines;
        std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), n - done);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, n)
    }
}

/// Makes streamed stores visible before whatever this thread publishes next.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    }
}
