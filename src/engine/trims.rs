//! The trims that a device was asked for, and the tasks that wait for their ends.
//!
//! Any thread asks; the runner has a thread of its own carry a trim out, since memory that goes
//! back to the system takes longer than a poll may.

use crate::guard::wake_all;
use crate::sync::plain::{AtomicU64, Ordering::SeqCst};
use crate::sync::{Mutex, lock};
use std::collections::BTreeMap;
use std::task::Waker;

#[derive(Default)]
pub(crate) struct Trims {
    asked: AtomicU64,
    ended: AtomicU64,
    /// Held by the thread that carries a trim out.
    under_way: Mutex<()>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    wakers: BTreeMap<u64, Waker>,
    next: u64,
}

impl Trims {
    /// Asks for a trim: its number.
    pub fn ask(&self) -> u64 {
        self.asked.fetch_add(1, SeqCst) + 1
    }

    /// The number of the last trim that was asked for.
    #[allow(dead_code)] // Read by devices whose own thread looks for trims.
    pub fn asked(&self) -> u64 {
        self.asked.load(SeqCst)
    }

    /// Carries a trim out, behind those that are under way: what one of them has taken may not be
    /// the system's yet.
    pub fn carry_out(&self, number: u64, trim: impl FnOnce()) {
        let under_way = lock(&self.under_way);
        trim();
        drop(under_way);
        self.end(number);
    }

    /// All trims up to this number are done.
    pub fn end(&self, number: u64) {
        self.ended.fetch_max(number, SeqCst);
        self.wake();
    }

    /// Has all who wait look again: a trim is done, or the device has ended.
    pub fn wake(&self) {
        let wakers = std::mem::take(&mut lock(&self.waiting).wakers);
        wake_all(wakers.into_values());
    }

    /// True once this trim `is_over`; else the waker goes onto the list under the key.
    pub fn is_ended(
        &self,
        number: u64,
        is_over: impl Fn() -> bool,
        key: &mut Option<u64>,
        waker: &Waker,
    ) -> bool {
        let mut waiting = lock(&self.waiting);
        // Under the lock: who ends it takes the list afterwards.
        if self.ended.load(SeqCst) >= number || is_over() {
            return true;
        }
        let next = waiting.next;
        let key = *key.get_or_insert(next);
        waiting.next = next.max(key + 1);
        let before = waiting.wakers.insert(key, waker.clone());
        // A waker is the user's: it goes outside of the lock.
        drop(waiting);
        drop(before);
        false
    }

    /// Takes a waker off the list.
    pub fn forget(&self, key: u64) {
        let before = lock(&self.waiting).wakers.remove(&key);
        drop(before);
    }
}
