//! Workers inside user code: a waker, or the drop of a captured value. User code may take long, and
//! may wait for work that it has queued on this very device.
//!
//! A worker that enters user code hands the attendance over to another worker. If no other worker
//! is free (each is inside a step, or there is only one), new work would wait for the first return.
//! So another thread replaces a worker that has been inside user code for a while; the replaced
//! worker's thread ends once its call returns. The thread that watches for this (`replacement`)
//! lives only while some worker is inside user code and work is left. This file counts the workers
//! inside user code.

use crate::sync::CachePadded;
use crate::sync::plain::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use crate::sync::threads::thread_local;
use std::cell::Cell;

thread_local! {
    /// Another thread has this thread's place.
    static IS_REPLACED: Cell<bool> = const { Cell::new(false) };
}

/// True if this thread was replaced while it was inside user code: the thread has to end.
pub(super) fn is_replaced() -> bool {
    IS_REPLACED.get()
}

pub(super) struct UserCode {
    /// When each worker entered, in nanoseconds since the device's epoch, plus one; 0 while the
    /// worker is outside.
    since: Box<[CachePadded<AtomicU64>]>,
    /// The number of workers inside.
    count: AtomicUsize,
    /// A thread watches for workers to replace.
    pub is_watched: AtomicBool,
}

impl UserCode {
    pub fn new(workers: usize) -> UserCode {
        let since = (0..workers).map(|_| CachePadded::default()).collect();
        UserCode { since, count: AtomicUsize::new(0), is_watched: AtomicBool::new(false) }
    }

    /// True while a worker is inside user code.
    #[inline]
    pub fn is_any(&self) -> bool {
        // SeqCst: a worker counts itself before it looks for work that is left, see `hand_over`.
        self.count.load(SeqCst) > 0
    }

    /// A worker enters user code now.
    pub fn enter(&self, me: usize, since: u64) -> Inside<'_> {
        self.count.fetch_add(1, SeqCst);
        self.since[me].store(since, SeqCst);
        Inside(self, me, since)
    }

    /// A worker that entered before this time, and when.
    pub fn find_before(&self, time: u64) -> Option<(usize, u64)> {
        let mut since = self.since.iter().map(|since| since.load(SeqCst)).enumerate();
        since.find(|&(_, since)| since != 0 && since < time)
    }

    /// Ends a worker's stay; true for the one caller that ended it.
    pub fn leave(&self, me: usize, since: u64) -> bool {
        let ended = self.since[me].compare_exchange(since, 0, SeqCst, SeqCst).is_ok();
        self.count.fetch_sub(usize::from(ended), SeqCst);
        ended
    }
}

/// A worker's stay inside user code; a panic ends it as well.
pub(super) struct Inside<'a>(&'a UserCode, usize, u64);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if !self.0.leave(self.1, self.2) {
            IS_REPLACED.set(true);
        }
    }
}
