//! Memory that the system gives and takes back: where a size allows, in huge pages.

use super::chunks;
use std::alloc::{Layout, alloc, dealloc};

/// Bytes of a huge page.
pub(super) const HUGE: usize = 2 << 20;

fn layout(size: usize) -> Option<Layout> {
    let align = if size >= HUGE { HUGE } else { 64 };
    Layout::from_size_align(size, align).ok().filter(|l| l.size() <= isize::MAX as usize - HUGE)
}

/// Memory that the system gives.
pub(super) fn fresh(size: usize) -> Option<*mut u8> {
    if chunks::is_piece(size) {
        return chunks::take(size);
    }
    // SAFETY: the layout has a size above zero.
    let ptr = unsafe { alloc(layout(size)?) };
    #[cfg(target_os = "linux")]
    if size >= HUGE && !ptr.is_null() {
        // SAFETY: the range was just allocated, and advice changes no contents. A refusal only
        // means small pages.
        unsafe { libc::madvise(ptr.cast(), size, libc::MADV_HUGEPAGE) };
    }
    (!ptr.is_null()).then_some(ptr)
}

/// Gives memory back that [`fresh`] gave, with its size.
pub(super) fn release(ptr: *mut u8, size: usize) {
    if chunks::is_piece(size) {
        // SAFETY: `fresh` took it from there, with this size, and nobody uses it any more.
        unsafe { chunks::release(ptr, size) };
    } else if let Some(layout) = layout(size) {
        // SAFETY: the block came from `alloc` with this very layout, which `size` determines.
        unsafe { dealloc(ptr, layout) };
    }
}
