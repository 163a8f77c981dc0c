//! Page-locked host memory for copies, in both directions.
//!
//! The driver gives it plainly (cudarc's own is write-combined: slow to read back), in one block
//! when the device opens, since to get more may wait for all running work. It is cut into blocks of
//! powers of two that are joined again (Knowlton 1965, the buddy system). A step that finds no
//! block tries again when some have come back. A value larger than a block goes in chunks.

#![allow(unsafe_code)]

use crate::cuda::device::libraries::nvidia::{Idle, Raw, Span, lock_pages, unlock_pages};
use crate::cuda::device::memory::page_locked;
use crate::cuda::device::{Trouble, Until};
use crate::graph::value::{Buffer, Storage, Value};
use crate::memory::PoolMemory;
use crate::sync::{Mutex, lock};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Sizes of blocks, as powers of two: 256 bytes to 1 MiB.
const SMALLEST: usize = 8;
const LARGEST: usize = 20;

#[derive(Default, Debug)]
struct Arena {
    /// Where it begins; 0 before there is one.
    base: usize,
    bytes: usize,
    /// Offsets of free blocks, by the power of two of their size.
    free: [BTreeSet<usize>; LARGEST + 1],
    /// Blocks in use.
    lent: usize,
    /// Their bytes, and the most that there were.
    used: usize,
    peak: usize,
}

impl Arena {
    fn take(&mut self, class: usize) -> Option<usize> {
        let from = (class..=LARGEST).find(|&from| !self.free[from].is_empty())?;
        let at = self.free[from].pop_first()?;
        // The upper halves stay.
        for half in class..from {
            self.free[half].insert(at + (1 << half));
        }
        self.lent += 1;
        self.used += 1 << class;
        self.peak = self.peak.max(self.used);
        Some(at)
    }

    fn put(&mut self, mut at: usize, mut class: usize) {
        self.lent -= 1;
        self.used -= 1 << class;
        while class < LARGEST && self.free[class].remove(&(at ^ (1 << class))) {
            at &= !(1 << class);
            class += 1;
        }
        self.free[class].insert(at);
    }
}

/// The page-locked memory of a device.
#[derive(Debug)]
pub(crate) struct Pinned {
    arena: Mutex<Arena>,
    bytes: usize,
}

/// A block of it; dropping it puts it back.
#[derive(Debug)]
pub(crate) struct PinnedBlock {
    ptr: *mut u8,
    class: usize,
    owner: Arc<Pinned>,
}

// SAFETY: plain memory of its own.
unsafe impl Send for PinnedBlock {}
// SAFETY: shared, it is only looked at.
unsafe impl Sync for PinnedBlock {}

impl PinnedBlock {
    /// The caller keeps to the block's bytes, and knows that no copy to it is under way.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    fn bytes(&self) -> usize {
        1 << self.class
    }

    /// The first words. A copy to it that is under way would have got to some of them.
    pub fn words<const N: usize>(&self) -> [u64; N] {
        assert!(size_of::<[u64; N]>() <= self.bytes(), "words of the block");
        // SAFETY: inside the block, which is aligned for words; any bits are one.
        std::array::from_fn(|k| unsafe { self.ptr.cast::<u64>().add(k).read_volatile() })
    }

    /// Puts words into it.
    pub fn put<const N: usize>(&mut self, words: &[u64; N]) {
        assert!(size_of_val(words) <= self.bytes(), "words of the block");
        // SAFETY: inside the block, as above; nobody else has it.
        unsafe { self.ptr.cast::<[u64; N]>().write(*words) };
    }
}

/// The memory that a submission keeps until it is reached: the memory that copies which are
/// queued on its lane read and write.
#[derive(Default, Debug)]
pub(crate) struct Retained {
    sent: SmallVec<[PinnedBlock; 1]>,
    read: SmallVec<[Arc<PinnedBlock>; 1]>,
    /// What is copied from where it lies, or to there: on another device, or in a user's
    /// page-locked memory.
    foreign: SmallVec<[Value; 1]>,
}

impl Retained {
    /// Copies from a block.
    pub fn upload(&mut self, to: Span, from: PinnedBlock, raw: Raw) -> Result<(), Trouble> {
        assert!(to.bytes() <= from.bytes(), "the block has all that is sent");
        // SAFETY: the block has so many bytes, and is kept until the stream has come past the copy.
        unsafe { raw.upload(to, from.ptr) }?;
        self.sent.push(from);
        Ok(())
    }

    /// Copies to a block, which may be read when the submission is reached.
    pub fn download(
        &mut self,
        to: PinnedBlock,
        from: Span,
        raw: Raw,
    ) -> Result<Arc<PinnedBlock>, Trouble> {
        assert!(from.bytes() <= to.bytes(), "the block has room for all that comes");
        // SAFETY: as above, and nobody writes to it meanwhile.
        unsafe { raw.download(to.ptr, from) }?;
        let to = Arc::new(to);
        self.read.push(to.clone());
        Ok(to)
    }

    /// Copies from a value in a user's page-locked memory, from a byte on.
    pub fn upload_in_place(
        &mut self,
        to: Span,
        value: &Value,
        from: usize,
        raw: Raw,
    ) -> Result<(), Trouble> {
        let (Some(at), Some(buffer)) = (page_locked::address(value), value.buffer()) else {
            unreachable!("it lies in page-locked memory")
        };
        assert!(from + to.bytes() <= buffer.bytes(), "the value has all that is sent");
        // SAFETY: as above: the value is kept.
        unsafe { raw.upload(to, at.add(from)) }?;
        self.keep(value.clone());
        Ok(())
    }

    /// Copies to a user's page-locked memory, from a byte on.
    pub fn download_in_place(
        &mut self,
        to: Arc<dyn Buffer>,
        first: usize,
        from: Span,
        raw: Raw,
    ) -> Result<(), Trouble> {
        let Some(at) = page_locked::address_of(&*to) else {
            unreachable!("it is page-locked memory")
        };
        assert!(first + from.bytes() <= to.bytes(), "the buffer has room for all that comes");
        // Also where the driver says no: it may have begun.
        self.keep(Value::contiguous(Storage::Shared(to)));
        // SAFETY: as above: the buffer is kept.
        unsafe { raw.download(at.add(first), from) }
    }

    /// Keeps a value that is copied from another device.
    pub fn keep(&mut self, value: Value) {
        self.foreign.push(value);
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        let mut arena = lock(&self.owner.arena);
        let at = self.ptr as usize - arena.base;
        arena.put(at, self.class);
    }
}

impl Pinned {
    /// For this many bytes, and at least for a few of the largest blocks.
    pub fn of(bytes: usize) -> Pinned {
        let blocks = bytes.div_ceil(1 << LARGEST).max(4);
        Pinned { arena: Mutex::default(), bytes: blocks.saturating_mul(1 << LARGEST) }
    }

    /// Gets the memory; at a time when nothing runs. Where it cannot be had, the first block asks
    /// again.
    pub fn reserve(&self) -> Result<(), Trouble> {
        let mut arena = lock(&self.arena);
        if arena.base == 0 {
            arena.base = lock_pages(self.bytes)? as usize;
            arena.bytes = self.bytes;
            let all = (0..self.bytes).step_by(1 << LARGEST);
            arena.free[LARGEST].extend(all);
        }
        Ok(())
    }

    /// A block of at least this many bytes, and at most 1 MiB.
    ///
    /// # Errors
    /// [`Trouble::Later`] where all are lent.
    pub fn take(self: &Arc<Pinned>, bytes: usize) -> Result<PinnedBlock, Trouble> {
        let class = (bytes.next_power_of_two().trailing_zeros() as usize).max(SMALLEST);
        assert!(class <= LARGEST, "what is larger goes in chunks");
        self.reserve()?;
        let mut arena = lock(&self.arena);
        let at = arena.take(class).ok_or(Trouble::Later(Until::Moved))?;
        Ok(PinnedBlock { ptr: (arena.base + at) as *mut u8, class, owner: self.clone() })
    }

    /// Bytes of it.
    pub fn bytes(&self) -> PoolMemory {
        let arena = lock(&self.arena);
        let Arena { bytes: reserved, used, peak, .. } = *arena;
        PoolMemory { name: "page-locked", used, reserved, peak }
    }

    /// Frees everything, if nothing is in use; says whether it did.
    pub fn close(&self, _: &Idle<'_>) -> bool {
        let mut arena = lock(&self.arena);
        if arena.lent > 0 {
            return false;
        }
        let base = std::mem::take(&mut *arena).base;
        if base != 0 {
            // SAFETY: the driver gave it, no block of it is in use, and no copy is under way.
            unsafe { unlock_pages(base as *mut u8) };
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_never_overlap_and_join_again() {
        let mut arena = Arena { bytes: 4 << LARGEST, ..Arena::default() };
        arena.free[LARGEST].extend((0..4).map(|k| k << LARGEST));
        let mut state = 7u64;
        let mut lent: Vec<(usize, usize)> = Vec::new();
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let draw = (state >> 33) as usize;
            if !draw.is_multiple_of(3) {
                let class = SMALLEST + draw / 3 % (LARGEST - SMALLEST + 1);
                if let Some(at) = arena.take(class) {
                    let end = at + (1 << class);
                    assert!(at.is_multiple_of(1 << class) && end <= arena.bytes);
                    assert!(lent.iter().all(|&(a, c)| end <= a || a + (1 << c) <= at));
                    lent.push((at, class));
                }
            } else if !lent.is_empty() {
                let (at, class) = lent.swap_remove(draw / 3 % lent.len());
                arena.put(at, class);
            }
        }
        lent.drain(..).for_each(|(at, class)| arena.put(at, class));
        assert_eq!(arena.free[LARGEST].len(), 4);
        assert_eq!((arena.lent, arena.used), (0, 0));
    }
}
