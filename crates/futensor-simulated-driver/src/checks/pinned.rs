//! Detects accesses of the host to page-locked buffers while a copy is in progress.
//!
//! The check cannot see the host's reads and writes, but it can make their effects visible. The
//! source of a queued copy must not change until the copy runs: its hash is compared at both times.
//! The target of a queued copy has no valid contents until the copy has run: it is filled with ones
//! when the copy is enqueued, so that a host that reads too early does not find old values that
//! happen to be right. Both checks apply only if the buffer is not used by earlier device work that
//! the host has not waited for, and if no host function is queued, since these may legitimately
//! access it.

use crate::machine::sim::Sim;
use crate::machine::work::{Item, Work};
use crate::memory::Touch;

impl Sim {
    /// True if only the host may access the buffer now.
    pub fn host_only(&mut self, touch: &Touch) -> bool {
        let queued_host = |item: &Item| matches!(item.work, Work::Host { .. } | Work::Graph(_));
        if self.streams.values().any(|stream| stream.queue.iter().any(queued_host)) {
            return false;
        }
        let race = &self.race;
        self.memory
            .at(touch.base)
            .is_some_and(|allocation| allocation.history.unknown_to_host(race).is_none())
    }
}

/// Fills the target of a queued copy with ones.
pub fn spoil(address: usize, bytes: usize) {
    // SAFETY: this is page-locked memory inside a live allocation, which the client has handed over
    // until the copy has run.
    unsafe { std::ptr::write_bytes(address as *mut u8, 0xFF, bytes) };
}
