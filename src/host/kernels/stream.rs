//! Traffic with memory: stores that go around the cache, and loads that are asked for early.
//!
//! Called by kernels for arrays that no cache holds. An ordinary store first reads the line that it
//! overwrites, so a third of the traffic would be for nothing.

#![allow(unsafe_code)]

use crate::host::kernels::run::copy_run;
use crate::host::kernels::simd::{Level, Simd, level, multiversion};
use crate::view::Parallel;

/// Outputs that together have so many bytes are written around the cache.
pub(super) const STREAM_FROM: usize =
    if cfg!(all(test, debug_assertions)) { 1 << 16 } else { 32 << 20 };
/// Bytes of a line: what a store around the cache fills, what a prefetch brings.
pub(super) const LINE: usize = 64;

/// Asks for a line that will be read soon.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    ask::<false>(at);
}

/// As [`prefetch`], but it stays where it is written. The compiler would move several to the end of
/// a stretch of code, and a processor that is asked for many lines at once waits.
#[inline(always)]
pub(super) fn prefetch_here(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address is harmless. Without `nomem` and `readonly`, so that it
    // stays between the loads around it.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    prefetch(at);
}

/// The same into the second-level cache.
#[inline(always)]
pub(super) fn prefetch_second_here(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prefetcht1 [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    prefetch_second(at);
}

/// Asks for a line into the second-level cache. Stores around the cache take up what the first has
/// for lines on their way: of 16 Mi `gelu` on a Xeon took 4.2 ms, and 5.1 with [`prefetch`];
/// softmax of [4096, 4096] 3.3 and 3.4, where the rows come from memory and not from the shared
/// cache 4.3 and 4.7.
#[inline(always)]
pub(super) fn prefetch_second(at: *const u8) {
    ask::<true>(at);
}

/// Asks for the lines of `n` elements.
#[inline(always)]
pub(super) fn prefetch_all<T>(x: *const T, n: usize) {
    let bytes = n * size_of::<T>();
    (0..bytes).step_by(LINE).for_each(|at| prefetch(x.cast::<u8>().wrapping_add(at)));
}

/// The same into the second-level cache.
#[inline(always)]
pub(super) fn prefetch_all_second<T>(x: *const T, n: usize) {
    let bytes = n * size_of::<T>();
    (0..bytes).step_by(LINE).for_each(|at| prefetch_second(x.cast::<u8>().wrapping_add(at)));
}

#[inline(always)]
fn ask<const SECOND: bool>(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        use std::arch::x86_64::*;
        match SECOND {
            true => _mm_prefetch::<_MM_HINT_T1>(at.cast()),
            false => _mm_prefetch::<_MM_HINT_T0>(at.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Copies `n` bytes, the destination around the cache where the machine can; [`fence`] ends a
/// series.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `n` bytes; they do not overlap.
pub(super) unsafe fn copy(level: Level, src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let head = dst.align_offset(LINE).min(n);
        let lines = (n - head) / LINE;
        let done = head + LINE * lines;
        std::ptr::copy_nonoverlapping(src, dst, head);
        copy_lines_at(level, src.add(head), dst.add(head), lines);
        std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), n - done);
    }
}

multiversion! {
    fn copy_lines_at(src: *const u8, dst: *mut u8, lines: usize) = copy_lines
}

/// Copies whole lines to memory that is aligned to them. Only [`copy`] calls it, with its promise.
#[inline(always)]
fn copy_lines<S: Simd>(src: *const u8, dst: *mut u8, lines: usize) {
    for i in 0..lines {
        // SAFETY: line i is inside both, and `dst` is aligned to lines.
        unsafe { copy_line::<S>(src.add(LINE * i), dst.add(LINE * i)) }
    }
}

/// Writes `n` times the same element around the cache; [`fence`] ends a series.
///
/// # Safety
/// `dst` is valid for writes of `n` elements of at most 8 bytes.
pub(super) unsafe fn fill<T: Copy>(level: Level, x: T, dst: *mut T, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let head = dst.align_offset(LINE).min(n);
        let lines = (n - head) * size_of::<T>() / LINE;
        let done = head + lines * LINE / size_of::<T>();
        (0..head).chain(done..n).for_each(|i| dst.add(i).write(x));
        // More than a line, of which a line is read.
        let line = [x; LINE];
        repeat_line_at(level, line.as_ptr().cast(), dst.add(head).cast(), lines);
    }
}

multiversion! {
    fn repeat_line_at(line: *const u8, dst: *mut u8, lines: usize) = repeat_line
}

/// Writes the same line to memory that is aligned to lines. Only [`fill`] calls it, with its
/// promise.
#[inline(always)]
fn repeat_line<S: Simd>(line: *const u8, dst: *mut u8, lines: usize) {
    for i in 0..lines {
        // SAFETY: line i is inside, and `dst` is aligned to lines.
        unsafe { copy_line::<S>(line, dst.add(LINE * i)) }
    }
}

/// Copies a line around the cache.
///
/// # Safety
/// One line at `src` may be read, and one at `dst`, aligned to lines, written.
#[inline(always)]
pub(super) unsafe fn copy_line<S: Simd>(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's promise; SSE2 is part of x86-64, and where a register holds a line there
    // is AVX-512.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::*;
        // One entry of the store buffer a line instead of four.
        if S::LINE {
            return _mm512_stream_si512(dst.cast(), _mm512_loadu_si512(src.cast()));
        }
        for part in 0..LINE / 16 {
            _mm_stream_si128(dst.add(16 * part).cast(), _mm_loadu_si128(src.add(16 * part).cast()));
        }
    }
    // SAFETY: the caller's promise.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, LINE)
    }
}

/// Copies `n` bytes of a value to where it lies; around the cache where no cache holds all of its
/// `whole` bytes. Then a [`fence`] has to end the series, on each thread: see [`Fenced`].
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `n` bytes; they do not overlap.
pub(crate) unsafe fn put(src: *const u8, dst: *mut u8, n: usize, whole: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match whole >= STREAM_FROM {
            true => copy(level(), src, dst, n),
            false => copy_run(dst, src, n),
        }
    }
}

/// Threads whose streamed stores are visible when their part is done.
pub(crate) struct Fenced<'a>(pub &'a dyn Parallel);

impl Parallel for Fenced<'_> {
    fn threads(&self) -> usize {
        self.0.threads()
    }
    fn is_awake(&self) -> bool {
        self.0.is_awake()
    }
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        self.0.run(parts, &|i| {
            part(i);
            fence();
        });
    }
}

/// Makes streamed stores visible before whatever this thread publishes next.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    }
}
