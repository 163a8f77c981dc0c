//! Page-locked buffers that the host touches while a copy is under way.
//!
//! The host's reads and writes are not seen, but their effects can be made visible. The source of a
//! queued copy must not change until the copy runs: its hash is taken at both times. The target of
//! a queued copy holds nothing until the copy has run: it is filled with ones when the copy is
//! enqueued, so that a host that reads too early does not find old values that happen to be right.
//! Both only where no earlier device work that the host has not waited for uses the buffer, and no
//! host function is queued, as these may rightly touch it in between.

use crate::machine::sim::Sim;
use crate::machine::work::{Item, Work};
use crate::memory::Touch;

impl Sim {
    /// True where nothing but the host could rightly touch the buffer now.
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
    // SAFETY: page-locked memory inside a live allocation, which the client has handed over until
    // the copy has run.
    unsafe { std::ptr::write_bytes(address as *mut u8, 0xFF, bytes) };
}
