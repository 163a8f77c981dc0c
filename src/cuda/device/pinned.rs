//! Page-locked host memory for copies, in both directions.
//!
//! Asked of the driver plainly (cudarc's own is write-combined: slow to read back), in blocks of
//! powers of two that are kept and used again, since getting and freeing them may block. Small
//! blocks are cut from slabs.

#![allow(unsafe_code)]

use super::Trouble;
use super::nvidia::{Idle, Raw, Span, lock_pages, unlock_pages};
use crate::graph::value::Value;
use crate::sync::{Mutex, lock};
use smallvec::SmallVec;
use std::sync::Arc;

const SMALLEST: usize = 256;
const SLAB: usize = 64 << 10;

#[derive(Default, Debug)]
struct Shelves {
    /// Free blocks by the power of two of their size.
    free: Vec<Vec<usize>>,
    /// What the driver gave.
    slabs: Vec<usize>,
    /// Blocks in use.
    lent: usize,
}

/// The page-locked memory of a device.
#[derive(Default, Debug)]
pub(crate) struct Pinned(Mutex<Shelves>);

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
    /// For who keeps to the block's bytes, and knows of no copy to it that is under way.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    fn bytes(&self) -> usize {
        1 << self.class
    }

    /// The first words. A copy to it that is under way would have got to some of them.
    pub fn words<const N: usize>(&self) -> [u64; N] {
        assert!(size_of::<[u64; N]>() <= self.bytes());
        // SAFETY: inside the block, which is aligned for words; any bits are one.
        std::array::from_fn(|k| unsafe { self.ptr.cast::<u64>().add(k).read_volatile() })
    }

    /// Puts words into it.
    pub fn put<const N: usize>(&mut self, words: &[u64; N]) {
        assert!(size_of_val(words) <= self.bytes());
        // SAFETY: inside the block, as above; nobody else has it.
        unsafe { self.ptr.cast::<[u64; N]>().write(*words) };
    }
}

/// What a flight keeps until it is reached, and nobody drops before: what copies that are queued on
/// its lane read and write.
#[derive(Default, Debug)]
pub(crate) struct Cargo {
    sent: SmallVec<[PinnedBlock; 1]>,
    read: SmallVec<[Arc<PinnedBlock>; 1]>,
    /// Another device's memory that is copied from.
    foreign: SmallVec<[Value; 1]>,
}

impl Cargo {
    /// Copies from a block.
    pub fn upload(&mut self, to: Span, from: PinnedBlock, raw: Raw) -> Result<(), Trouble> {
        assert!(to.bytes() <= from.bytes());
        // SAFETY: the block has so many bytes, and is kept until the stream has come past the copy.
        unsafe { raw.upload(to, from.ptr) }?;
        self.sent.push(from);
        Ok(())
    }

    /// Copies to a block; for who looks at it when the flight is reached.
    pub fn download(&mut self, to: PinnedBlock, from: Span, raw: Raw) -> Result<Arc<PinnedBlock>, Trouble> {
        assert!(from.bytes() <= to.bytes());
        // SAFETY: as above, and nobody writes to it meanwhile.
        unsafe { raw.download(to.ptr, from) }?;
        let to = Arc::new(to);
        self.read.push(to.clone());
        Ok(to)
    }

    /// Keeps what is copied from another device.
    pub fn keep(&mut self, value: Value) {
        self.foreign.push(value);
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        let mut shelves = lock(&self.owner.0);
        shelves.lent -= 1;
        shelves.free[self.class].push(self.ptr as usize);
    }
}

impl Pinned {
    /// A block of at least so many bytes.
    pub fn take(self: &Arc<Pinned>, bytes: usize) -> Result<PinnedBlock, Trouble> {
        let size = bytes.max(SMALLEST).checked_next_power_of_two().ok_or(Trouble::OutOfMemory { bytes })?;
        let class = size.trailing_zeros() as usize;
        let mut shelves = lock(&self.0);
        if shelves.free.is_empty() {
            shelves.free.resize(usize::BITS as usize, Vec::new());
        }
        let address = match shelves.free[class].pop() {
            Some(address) => address,
            None => {
                let slab = size.max(SLAB);
                let ptr = lock_pages(slab)?;
                shelves.slabs.push(ptr as usize);
                for at in (size..slab).step_by(size) {
                    shelves.free[class].push(ptr as usize + at);
                }
                ptr as usize
            }
        };
        shelves.lent += 1;
        Ok(PinnedBlock { ptr: address as *mut u8, class, owner: self.clone() })
    }

    /// Frees everything, if nothing is in use; says whether it did.
    pub fn close(&self, _: &Idle<'_>) -> bool {
        let mut shelves = lock(&self.0);
        if shelves.lent > 0 {
            return false;
        }
        shelves.free.clear();
        for slab in shelves.slabs.drain(..) {
            // SAFETY: the driver gave it, no block of it is in use, and no copy is under way.
            unsafe { unlock_pages(slab as *mut u8) };
        }
        true
    }
}
