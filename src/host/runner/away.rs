//! Workers that are away: they call a waker, or drop what is a user's, which may take long and may
//! wait for what it asks of this very device.
//!
//! Who goes away leaves the post to another worker. Where none is free (each is inside a step, or
//! there is only one), what comes in would wait for the first to be back. So a thread stands in: it
//! takes the place of a worker that has been away for a while, and that one ends once its call
//! returns. The thread that looks after this is there only while somebody is away and something is
//! left to do (`stand_in`). Here stands who is away.

use crate::sync::Apart;
use crate::sync::plain::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use crate::sync::threads::thread_local;
use std::cell::Cell;

thread_local! {
    /// Another thread has the place that this one had.
    static IS_REPLACED: Cell<bool> = const { Cell::new(false) };
}

/// True where this thread, which has been away, is a worker no more: it is to end.
pub(super) fn is_replaced() -> bool {
    IS_REPLACED.get()
}

pub(super) struct Away {
    /// When each worker went, in nanoseconds since the device's epoch, plus one; 0 while it is
    /// there.
    since: Box<[Apart<AtomicU64>]>,
    /// So many are away.
    count: AtomicUsize,
    /// A thread looks after it.
    pub is_looked_after: AtomicBool,
}

impl Away {
    pub fn new(workers: usize) -> Away {
        let since = (0..workers).map(|_| Apart::default()).collect();
        Away { since, count: AtomicUsize::new(0), is_looked_after: AtomicBool::new(false) }
    }

    /// Somebody is away.
    #[inline]
    pub fn is_any(&self) -> bool {
        // SeqCst: who goes away counts itself before it looks at what is left, see `hand_over`.
        self.count.load(SeqCst) > 0
    }

    /// A worker goes away now.
    pub fn go(&self, me: usize, since: u64) -> Absence<'_> {
        self.count.fetch_add(1, SeqCst);
        self.since[me].store(since, SeqCst);
        Absence(self, me, since)
    }

    /// A worker that went before this, and when.
    pub fn find_before(&self, time: u64) -> Option<(usize, u64)> {
        let mut since = self.since.iter().map(|since| since.load(SeqCst)).enumerate();
        since.find(|&(_, since)| since != 0 && since < time)
    }

    /// Ends an absence; true for the one who did.
    pub fn end(&self, me: usize, since: u64) -> bool {
        let ended = self.since[me].compare_exchange(since, 0, SeqCst, SeqCst).is_ok();
        self.count.fetch_sub(usize::from(ended), SeqCst);
        ended
    }
}

/// While a worker is away; it is back also where something panics.
pub(super) struct Absence<'a>(&'a Away, usize, u64);

impl Drop for Absence<'_> {
    fn drop(&mut self) {
        if !self.0.end(self.1, self.2) {
            IS_REPLACED.set(true);
        }
    }
}
