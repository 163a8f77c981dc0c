//! Device memory: a pool of the device's own, and the freed blocks that each lane keeps for its
//! next step.
//!
//! To ask the driver for memory and to give it back costs a microsecond or two each, about as much
//! as a launch. So a block that is freed in the order of a lane stays with the lane, by size, and
//! the lane's next step of that size has it, in the same order. Large blocks, and blocks beyond a
//! lane's limit, go back to the driver. Where memory is short, all kept blocks go back.
//!
//! The device's thread uses it.

use crate::cuda::device::lanes::Lanes;
use crate::cuda::device::libraries::nvidia::{self, Allocation};
use crate::cuda::device::{Stream, Trouble};
use crate::memory::Memory;
use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::sync::Arc;

/// A larger block takes longer to use than to ask for.
const KEPT_SIZE_MAX: usize = 16 << 20;
const SMALLEST: usize = 512;

/// Bytes from which a piece of so many is cut: four sizes a doubling, so an eighth is lost on
/// average.
fn class(bytes: usize) -> usize {
    if bytes <= SMALLEST {
        return SMALLEST;
    }
    let step = 1 << (usize::BITS - 1 - (bytes - 1).leading_zeros()).saturating_sub(2);
    bytes.next_multiple_of(step)
}

#[derive(Default)]
struct Kept {
    /// By lane and size.
    free: HashMap<(usize, usize), Vec<Allocation>>,
    bytes: usize,
}

/// A device's memory.
pub(crate) struct Pool {
    raw: nvidia::Pool,
    kept: Mutex<Kept>,
    kept_max: usize,
    account: Arc<Memory>,
}

impl Pool {
    /// Of a context's pool; `kept_max` bytes are kept at most, and the account has how often the
    /// driver is asked.
    pub fn new(raw: nvidia::Pool, kept_max: usize, account: Arc<Memory>) -> Arc<Pool> {
        Arc::new(Pool { raw, kept: Mutex::default(), kept_max, account })
    }

    /// Memory for later work on a lane.
    pub fn allocate(&self, lane: Stream, bytes: usize) -> Result<Allocation, Trouble> {
        if bytes == 0 {
            return Ok(Allocation::NOWHERE);
        }
        if bytes > KEPT_SIZE_MAX || self.kept_max == 0 {
            self.account.asked();
            return lane.raw.allocate(self.raw, bytes, bytes);
        }
        let size = class(bytes);
        let mut kept = lock(&self.kept);
        if let Some(memory) = kept.free.get_mut(&(lane.number, size)).and_then(Vec::pop) {
            kept.bytes -= size;
            return Ok(memory.of(bytes));
        }
        drop(kept);
        self.account.asked();
        match lane.raw.allocate(self.raw, bytes, size) {
            // There may be just enough.
            Err(Trouble::OutOfMemory { .. }) => lane.raw.allocate(self.raw, bytes, bytes),
            got => got,
        }
    }

    /// Gives memory back, behind all queued work of a lane: the caller promises that no other work
    /// uses it. True
    /// where the driver has it.
    pub fn free(&self, lane: Stream, memory: Allocation) -> Result<bool, Trouble> {
        let size = memory.room();
        if size == 0 {
            return Ok(false);
        }
        let mut kept = lock(&self.kept);
        if size <= KEPT_SIZE_MAX && size == class(size) && kept.bytes + size <= self.kept_max {
            kept.bytes += size;
            kept.free.entry((lane.number, size)).or_default().push(memory);
            return Ok(false);
        }
        drop(kept);
        lane.raw.free(memory).map(|()| true)
    }

    /// Gives all that is kept back to the driver, each piece in the order of its lane.
    pub fn give_back(&self, lanes: &Lanes) -> Result<(), Trouble> {
        let kept = std::mem::take(&mut *lock(&self.kept));
        for ((lane, _), pieces) in kept.free {
            for memory in pieces {
                lanes.raw(lane).free(memory)?;
                lanes.freed(lane);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_room_for_what_asks_and_little_more() {
        for bytes in (1..5000).chain([1 << 20, (1 << 20) + 1, KEPT_SIZE_MAX]) {
            let size = class(bytes);
            assert!(size >= bytes && size.is_multiple_of(128), "{bytes}: {size}");
            assert!(size <= SMALLEST || size <= bytes + bytes / 4, "{bytes}: {size}");
            assert_eq!(class(size), size);
        }
    }
}
