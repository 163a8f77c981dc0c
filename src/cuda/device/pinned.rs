//! Page-locked host memory for copies, in both directions.
//!
//! Asked of the driver plainly (cudarc's own is write-combined: slow to read back), in blocks of
//! powers of two that are kept and used again, since getting and freeing them may block. Small
//! blocks are cut from slabs.

#![allow(unsafe_code)]

use super::Trouble;
use crate::sync::{Mutex, lock};
use cudarc::driver::sys;
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
// SAFETY: shared, it is only read, and only after the copy that fills it.
unsafe impl Sync for PinnedBlock {}

impl PinnedBlock {
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
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
                let mut ptr = std::ptr::null_mut();
                // SAFETY: `ptr` can be written; the context is current. No flags: plainly
                // page-locked.
                let status = unsafe { sys::cuMemHostAlloc(&mut ptr, slab, 0) };
                Trouble::of("cuMemHostAlloc", status).map_err(|trouble| match trouble {
                    Trouble::OutOfMemory { .. } => Trouble::OutOfMemory { bytes: slab },
                    other => other,
                })?;
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
    pub fn close(&self) -> bool {
        let mut shelves = lock(&self.0);
        if shelves.lent > 0 {
            return false;
        }
        shelves.free.clear();
        for slab in shelves.slabs.drain(..) {
            // SAFETY: the driver gave it, no block of it is in use, and no copy is under way.
            unsafe { sys::cuMemFreeHost(slab as *mut _) };
        }
        true
    }
}
