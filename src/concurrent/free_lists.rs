//! Free lists for counted values: blocks of one size that threads keep and pass on.
//!
//! The thread that calls an op makes a node; another thread, or the same one much later, lets it
//! go. The general allocator pays for both: a block from another thread goes back under a lock, and
//! the memory of ten thousand nodes dropped together goes back to the system and is touched anew,
//! page by page, by the next ten thousand. So freed blocks stay with the freeing thread, up to two
//! batches. Further batches go to a list that all threads share, up to a limit, and the rest goes
//! back to the allocator. Called by [`counted`](crate::concurrent::counted) alone. Knows nothing of
//! a block's content.

#![allow(unsafe_code)]

use crate::sync::plain::{Mutex, MutexGuard};
use crate::sync::threads::thread_local;
use crate::sync::{lock_plain, statics};
use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::ptr::{NonNull, null_mut};

/// Bytes of a block; a node and its counts fit.
const SIZE: usize = 384;
/// Blocks begin with a line of the cache, so that it is known which fields share one.
pub(crate) const ALIGN: usize = 64;
/// Lines of a block that a node takes.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const LINES: usize = 4;
const LAYOUT: Layout = match Layout::from_size_align(SIZE, ALIGN) {
    Ok(layout) => layout,
    Err(_) => panic!("a block has a layout"),
};
/// Blocks that go to the shared list, and come from it, together.
const BATCH: usize = 64;
/// Batches that the shared list keeps: 6 MiB.
const SHARED_MAX: usize = 256;

/// A free block: its first word points to the next.
struct Free {
    next: *mut Free,
}

/// A chain of exactly `BATCH` free blocks.
struct Chain(*mut Free);

// SAFETY: free blocks belong to the holder of the chain.
unsafe impl Send for Chain {}

statics! { static SHARED: Mutex<Vec<Chain>> = Mutex::new(Vec::new()); }

fn shared() -> MutexGuard<'static, Vec<Chain>> {
    lock_plain(&SHARED)
}

/// A thread's own blocks: a chain that it takes from and gives to, and perhaps a whole batch.
struct Own {
    chain: Cell<*mut Free>,
    count: Cell<usize>,
    batch: Cell<*mut Free>,
}

thread_local! {
    static OWN: Own = const {
        Own { chain: Cell::new(null_mut()), count: Cell::new(0), batch: Cell::new(null_mut()) }
    };
}

/// True where a value of this layout may lie in a block.
pub(crate) const fn fits(layout: Layout) -> bool {
    layout.size() <= SIZE && layout.align() <= ALIGN
}

/// A block, not initialised. Ends the process where there is no memory, as `Box` does.
#[inline]
pub(crate) fn take() -> NonNull<u8> {
    let own = OWN.try_with(|own| {
        let first = own.chain.get();
        if first.is_null() {
            return own.refill();
        }
        // SAFETY: a free block of this thread's.
        let next = unsafe { (*first).next };
        own.chain.set(next);
        own.count.set(own.count.get() - 1);
        ask_for(next.cast());
        first
    });
    match NonNull::new(own.unwrap_or(null_mut())) {
        Some(block) => block.cast(),
        None => fresh(),
    }
}

/// Asks for the lines of a block that will be written soon: another core has them, as a rule, and
/// the caller's next atomic instruction waits for all that it has stored before.
#[inline(always)]
fn ask_for(block: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..LINES {
        let line = block.wrapping_add(line * ALIGN);
        // SAFETY: a hint, of which a processor that does not know it makes nothing, whatever the
        // address is.
        unsafe {
            std::arch::asm!(
                "prefetchw [{}]",
                in(reg) line,
                options(nostack, preserves_flags, readonly)
            )
        };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    for line in 0..LINES {
        let line = block.wrapping_add(line * ALIGN);
        // SAFETY: a hint, whatever the address is.
        unsafe {
            std::arch::asm!(
                "prfm pstl1keep, [{}]",
                in(reg) line,
                options(nostack, preserves_flags, readonly)
            )
        };
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = block;
}

#[cold]
fn fresh() -> NonNull<u8> {
    // SAFETY: the layout is not empty.
    match NonNull::new(unsafe { alloc(LAYOUT) }) {
        Some(block) => block,
        None => std::alloc::handle_alloc_error(LAYOUT),
    }
}

/// Takes a block back.
///
/// # Safety
/// It came from [`take`], and nobody uses it any more.
#[inline]
pub(crate) unsafe fn give(block: NonNull<u8>) {
    let block = block.as_ptr().cast::<Free>();
    let kept = OWN.try_with(|own| {
        // SAFETY: the block is ours, large enough and aligned.
        unsafe { (*block).next = own.chain.get() };
        own.chain.set(block);
        let count = own.count.get() + 1;
        own.count.set(count);
        if count == BATCH {
            own.set_aside();
        }
    });
    if kept.is_err() {
        // The thread is ending.
        // SAFETY: it came from `alloc` with this layout.
        unsafe { dealloc(block.cast(), LAYOUT) }
    }
}

impl Own {
    /// The first block of a batch from beside or from the shared list; null where there is none.
    #[cold]
    fn refill(&self) -> *mut Free {
        let mut batch = self.batch.replace(null_mut());
        if batch.is_null() {
            batch = shared().pop().map_or(null_mut(), |chain| chain.0);
        }
        if !batch.is_null() {
            // SAFETY: a chain of `BATCH` free blocks that is ours now.
            self.chain.set(unsafe { (*batch).next });
            self.count.set(BATCH - 1);
        }
        batch
    }

    /// Puts the chain, a whole batch by now, beside; the one that was there goes to the shared
    /// list.
    #[cold]
    fn set_aside(&self) {
        let batch = self.chain.replace(null_mut());
        self.count.set(0);
        let before = self.batch.replace(batch);
        if !before.is_null() {
            put_up(Chain(before));
        }
    }
}

/// Puts a batch on the shared list, or gives it back where that is full.
fn put_up(batch: Chain) {
    {
        let mut shared = shared();
        if shared.len() < SHARED_MAX {
            shared.push(batch);
            return;
        }
    }
    release(batch.0);
}

/// Gives a chain of free blocks to the allocator.
fn release(mut first: *mut Free) {
    while !first.is_null() {
        // SAFETY: free blocks that are the caller's, from `alloc` with this layout.
        unsafe {
            let next = (*first).next;
            dealloc(first.cast(), LAYOUT);
            first = next;
        }
    }
}

/// Gives what lies on the shared list back to the allocator.
pub(crate) fn trim() {
    let batches = std::mem::take(&mut *shared());
    batches.into_iter().for_each(|batch| release(batch.0));
}

impl Drop for Own {
    fn drop(&mut self) {
        // Fewer than a batch.
        release(self.chain.get());
        if !self.batch.get().is_null() {
            put_up(Chain(self.batch.get()));
        }
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn blocks_that_are_taken_are_all_different_whichever_thread_freed_them() {
        let mut taken: Vec<usize> = (0..5 * BATCH).map(|_| take().as_ptr() as usize).collect();
        for round in 0..4 {
            let all: HashSet<usize> = taken.iter().copied().collect();
            assert_eq!(all.len(), taken.len(), "round {round}");
            assert!(taken.iter().all(|block| block % ALIGN == 0));
            for (i, &block) in taken.iter().enumerate() {
                // SAFETY: the block is ours.
                unsafe { std::ptr::write_bytes(block as *mut u8, i as u8, SIZE) };
            }
            let gone = taken.split_off(BATCH + round);
            std::thread::spawn(move || {
                // SAFETY: taken above, once.
                gone.into_iter().for_each(|b| unsafe { give(NonNull::new(b as *mut u8).unwrap()) });
            })
            .join()
            .unwrap();
            taken.extend((0..3 * BATCH).map(|_| take().as_ptr() as usize));
        }
        // SAFETY: taken above, once.
        taken.into_iter().for_each(|b| unsafe { give(NonNull::new(b as *mut u8).unwrap()) });
        trim();
    }
}
