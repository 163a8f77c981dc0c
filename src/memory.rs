//! A device's account of its memory, a GPU's too; and a caching allocator for values in host
//! memory.
//!
//! Fresh pages are the hidden cost of eager CPU tensors: a first touch of 64 MiB takes longer than
//! ten passes over it. So freed blocks above 4 KiB stay in a cache by size class. A thread first
//! uses the block that it freed last, since its core still has it. Where the cache is full, blocks
//! of sizes that have not been used for longest make room: else a program whose sizes change would
//! have fresh pages from then on (a gradient of 16 MiB, behind ops of other sizes, took 6.6 ms, and
//! 0.9 with this). Called by threads that start a step or drop a value; never waits. Knows nothing
//! of the bytes.

#![allow(unsafe_code)]

mod chunks;
mod freed;
mod pages;
mod system;

use crate::dtype::Element;
use crate::error::bytes_of;
use crate::graph::value::{Buffer, Keep, Kept};
use crate::sync::plain::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::sync::{Mutex, lock};
use freed::Freed;
pub(crate) use pages::Pages;
use std::alloc::{Layout, alloc_zeroed};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};
use system::{fresh, release};
// Plain counters, not part of a protocol: std's atomics.

/// Below this, the allocator's own caches serve.
const CACHED_FROM: usize = 4 << 10;
/// Quarter steps between powers of two, from 4 KiB up.
const CLASSES: usize = 4 * (usize::BITS as usize - 12);
/// Least that the cache may keep, whatever was live before.
const KEEP_MIN: usize = 64 << 20;
pub(crate) struct Memory {
    live: AtomicUsize,
    peak: AtomicUsize,
    cached: AtomicUsize,
    limit: usize,
    /// Bytes of values that an op was to change in place and had to copy.
    copied: AtomicU64,
    /// Times that memory for values was asked of the system, or of a driver.
    asked: AtomicU64,
    /// For the simulated device: this many more allocations succeed, then one fails; 0 is never.
    refuse_in: AtomicUsize,
    freed: Freed,
    /// The data that kernels keep beside values: it goes when memory is needed.
    kept: Mutex<Vec<Weak<Kept>>>,
}

/// The bytes that a device keeps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bytes {
    pub live: usize,
    pub peak: usize,
    pub cached: usize,
    pub copied: u64,
    pub asked: u64,
}

/// Bytes of memory of a device: see [`Device::memory`](crate::Device::memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Free bytes. `None` if unknown: for a GPU before its first op.
    pub free: Option<usize>,
    /// Total bytes; 0 if unknown.
    pub total: usize,
}

/// Bytes of one pool of memory of a device: see [`Device::pools`](crate::Device::pools).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolMemory {
    /// `values` (the memory of values), and on a GPU `driver` (the driver's pool, from which the
    /// memory of values, steps and graphs comes) and `page-locked` (host memory for copies).
    pub name: &'static str,
    /// Bytes in use. Memory that streams keep for their next steps is in use as the driver sees it.
    pub used: usize,
    /// Bytes that the system or the driver has given, used or not.
    pub reserved: usize,
    /// The largest `used` so far.
    pub peak: usize,
}

impl DeviceMemory {
    /// The computer's, where the system tells.
    pub(crate) fn of_computer() -> DeviceMemory {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: usize = line.trim().trim_end_matches("kB").trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        DeviceMemory { free: of("MemAvailable:"), total: of("MemTotal:").unwrap_or(0) }
    }
}

/// Zeros in host memory that no device accounts for; `None` where there is no room.
pub(crate) fn zeros<T: Element>(n: usize) -> Option<Vec<T>> {
    if n == 0 {
        return Some(Vec::new());
    }
    let layout = Layout::array::<T>(n).ok()?;
    // SAFETY: it has a size; elements are numbers and truth values, of which zero bytes are one.
    let ptr = unsafe { alloc_zeroed(layout) }.cast::<T>();
    // SAFETY: where it is not null it has room for so many, all of them zero, in this layout.
    (!ptr.is_null()).then(|| unsafe { Vec::from_raw_parts(ptr, n, n) })
}

fn class(bytes: usize) -> (usize, usize) {
    let bytes = bytes.max(CACHED_FROM);
    let log = bytes.ilog2() as usize;
    let quarter = 1usize << (log - 2);
    let over = (bytes - (1 << log)).div_ceil(quarter);
    ((log - 12) * 4 + over, (1 << log) + over * quarter)
}

/// Bytes of a block of a class.
fn size_of_class(index: usize) -> usize {
    ((4 + index % 4) << (index / 4 + 12)) / 4
}

impl Memory {
    /// Memory that refuses to have more than `limit` bytes live.
    pub fn new(limit: usize) -> Arc<Memory> {
        Arc::new(Memory {
            live: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            cached: AtomicUsize::new(0),
            copied: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            limit,
            refuse_in: AtomicUsize::new(0),
            freed: Freed::default(),
            kept: Mutex::new(Vec::new()),
        })
    }

    pub fn bytes(&self) -> Bytes {
        Bytes {
            live: self.live.load(Relaxed),
            peak: self.peak.load(Relaxed),
            cached: self.cached.load(Relaxed),
            copied: self.copied.load(Relaxed),
            asked: self.asked.load(Relaxed),
        }
    }

    /// An op copied a value that it was to change in place, since somebody else may still read it.
    pub fn copied(&self, bytes: usize) {
        self.copied.fetch_add(bytes as u64, Relaxed);
    }

    /// Nothing that is kept fits: the system, or a driver, is asked.
    pub fn asked(&self) {
        self.asked.fetch_add(1, Relaxed);
    }

    /// Bytes that are to be allocated come to life: all that live then. `None`, and nothing, where
    /// that is beyond the limit. Whoever has the memory says so by [`had`](Memory::had); who is
    /// refused it [uncounts](Memory::uncount) the bytes.
    pub fn count(&self, bytes: usize) -> Option<usize> {
        // One that is refused is never counted, not even for a moment: another would be refused for
        // it.
        let more = |live: usize| live.checked_add(bytes).filter(|&live| live <= self.limit);
        self.live.fetch_update(Relaxed, Relaxed, more).ok().map(|before| before + bytes)
    }

    /// Bytes that were counted have been allocated: so many lived then. The peak knows what was
    /// had, and not what the system or a driver refused.
    pub fn had(&self, live: usize) {
        self.peak.fetch_max(live, Relaxed);
    }

    /// [`count`](Memory::count), if need be at the cost of what kernels keep.
    fn count_for_values(&self, bytes: usize) -> Option<usize> {
        let again = || self.let_go_of_kept(true).then(|| self.count(bytes)).flatten();
        self.count(bytes).or_else(again)
    }

    /// Drops what kernels keep beside values and nobody uses just now; false where that is nothing.
    /// If it is `denied`, it is not made again.
    fn let_go_of_kept(&self, denied: bool) -> bool {
        let mut gone = Vec::new();
        lock(&self.kept).retain(|kept| match kept.upgrade() {
            Some(kept) => {
                gone.extend(kept.let_go(denied));
                true
            }
            None => false,
        });
        !gone.is_empty()
    }

    /// Bytes that were counted are given back.
    pub fn uncount(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Relaxed);
    }

    /// A block of at least `bytes`, not initialised; `None` where it cannot be had.
    pub fn alloc(self: &Arc<Memory>, bytes: usize) -> Option<Arc<Block>> {
        let refused =
            self.refuse_in.load(Relaxed) != 0 && self.refuse_in.fetch_sub(1, Relaxed) == 1;
        if refused { None } else { self.alloc_if(bytes, |size| self.count_for_values(size)) }
    }

    /// A block for what a kernel keeps: of what is there to spare.
    fn alloc_beside(self: &Arc<Memory>, bytes: usize) -> Option<Arc<dyn Buffer>> {
        self.alloc_if(bytes, |size| self.count(size)).map(|block| block as Arc<dyn Buffer>)
    }

    /// A block, if so many bytes can be counted.
    fn alloc_if(
        self: &Arc<Memory>,
        bytes: usize,
        count: impl FnOnce(usize) -> Option<usize>,
    ) -> Option<Arc<Block>> {
        let (index, size) = match bytes {
            0..CACHED_FROM => (usize::MAX, bytes.next_multiple_of(64).max(64)),
            _ if bytes > isize::MAX as usize / 2 => return None,
            _ => class(bytes),
        };
        let live = count(size)?;
        // Nothing is looked for where nothing can be.
        let cached = index < CLASSES && self.cached.load(Relaxed) >= size;
        let ptr = match cached.then(|| self.freed.take(index)).flatten() {
            Some(address) => {
                self.cached.fetch_sub(size, Relaxed);
                address as *mut u8
            }
            None => {
                if index < usize::MAX {
                    self.asked();
                }
                let Some(ptr) = fresh(size) else {
                    self.uncount(size);
                    return None;
                };
                ptr
            }
        };
        self.had(live);
        Some(Arc::new(Block::new(ptr, size, index, self.clone())))
    }

    /// Makes the `n`th allocation from now fail (1 is the next).
    pub fn refuse(&self, n: usize) {
        self.refuse_in.store(n, Relaxed);
    }

    /// Gives cached blocks back to the system, and what kernels keep beside values; returns how
    /// many bytes that was.
    pub fn trim(&self) -> usize {
        self.let_go_of_kept(false);
        let mut given = 0;
        for (index, list) in self.freed.take_all() {
            let size = size_of_class(index);
            for address in list {
                given += size;
                release(address as *mut u8, size);
            }
        }
        self.cached.fetch_sub(given, Relaxed);
        given
    }

    /// Data that is kept from now on may be let go when memory is needed.
    fn remember(&self, kept: &Arc<Kept>) {
        let mut list = lock(&self.kept);
        if list.len() == list.capacity() {
            list.retain(|kept| kept.strong_count() > 0);
        }
        list.push(Arc::downgrade(kept));
    }

    /// Takes elements over from the host without a copy.
    pub fn adopt<T: Element, D: HostData<T>>(self: &Arc<Memory>, data: D) -> Option<Arc<Adopted>> {
        let elements = data.as_ref();
        let (ptr, bytes) = (elements.as_ptr() as *mut u8, std::mem::size_of_val(elements));
        self.had(self.count_for_values(bytes)?);
        let (memory, owner) = (self.clone(), Box::new(data));
        Some(Arc::new(Adopted { ptr, bytes, _owner: owner, memory, keep: Keep::default() }))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.trim();
    }
}

/// A block of host memory.
pub(crate) struct Block {
    ptr: *mut u8,
    size: usize,
    class: usize,
    memory: Arc<Memory>,
    keep: Keep,
    /// Its memory is another block's now.
    is_moved_out: AtomicBool,
}

impl Block {
    fn new(ptr: *mut u8, size: usize, class: usize, memory: Arc<Memory>) -> Block {
        Block {
            ptr,
            size,
            class,
            memory,
            keep: Keep::default(),
            is_moved_out: AtomicBool::new(false),
        }
    }

    /// Its memory in a block of its own, for the last reader of its value, who writes over it. So
    /// nodes that are done with, and not gone yet, own nothing that anybody writes. (The address
    /// stays: an op that works in place reads it.)
    pub fn move_out(&self) -> Arc<Block> {
        let before = self.is_moved_out.swap(true, Relaxed);
        assert!(!before, "memory is moved out once");
        Arc::new(Block::new(self.ptr, self.size, self.class, self.memory.clone()))
    }
}

// SAFETY: plain memory; who may write it and when is the engine's promise (a value is written
// before it is published, and taken over in place only by its last reader).
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Buffer for Block {
    fn host(&self) -> Option<*mut u8> {
        Some(self.ptr)
    }
    fn bytes(&self) -> usize {
        self.size
    }
    fn is_reusable(&self) -> bool {
        !self.keep.has_something() && !self.is_moved_out.load(Relaxed)
    }
    fn keep(&self) -> Option<&Keep> {
        Some(&self.keep)
    }
    fn beside(&self, bytes: usize) -> Option<Arc<dyn Buffer>> {
        self.memory.alloc_beside(bytes)
    }
    fn remember(&self, kept: &Arc<Kept>) {
        self.memory.remember(kept);
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({})", bytes_of(self.size))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if *self.is_moved_out.get_mut() {
            return;
        }
        let memory = &self.memory;
        memory.live.fetch_sub(self.size, Relaxed);
        if self.class >= CLASSES {
            return release(self.ptr, self.size);
        }
        let keep = memory.peak.load(Relaxed).max(KEEP_MIN);
        let cached = memory.cached.fetch_add(self.size, Relaxed) + self.size;
        memory.freed.put(self.class, self.ptr as usize);
        if cached > keep {
            for (class, address) in memory.freed.take_idle(cached - keep, size_of_class) {
                memory.cached.fetch_sub(size_of_class(class), Relaxed);
                release(address as *mut u8, size_of_class(class));
            }
        }
    }
}

/// What owns elements in host memory: they stay where they are while it lives.
pub(crate) trait HostData<T>: AsRef<[T]> + Any + Send + Sync {}
impl<T: Element> HostData<T> for Vec<T> {}
impl HostData<u8> for Pages {}

/// Elements that the host handed in.
pub(crate) struct Adopted {
    ptr: *mut u8,
    bytes: usize,
    _owner: Box<dyn Any + Send + Sync>,
    memory: Arc<Memory>,
    keep: Keep,
}

// SAFETY: as of a block; the owner is `Send` and `Sync`.
unsafe impl Send for Adopted {}
// SAFETY: as above.
unsafe impl Sync for Adopted {}

impl Buffer for Adopted {
    fn host(&self) -> Option<*mut u8> {
        Some(self.ptr)
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn keep(&self) -> Option<&Keep> {
        Some(&self.keep)
    }
    fn beside(&self, bytes: usize) -> Option<Arc<dyn Buffer>> {
        self.memory.alloc_beside(bytes)
    }
    fn remember(&self, kept: &Arc<Kept>) {
        self.memory.remember(kept);
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for Adopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Adopted({})", bytes_of(self.bytes))
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        self.memory.live.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use system::HUGE;

    #[test]
    fn classes_cover_their_sizes_with_at_most_a_quarter_of_waste() {
        for bytes in [4096, 4097, 5000, 5120, 5121, 1 << 20, (1 << 20) + 1, 3_000_000_000] {
            let (index, size) = class(bytes);
            assert!(size >= bytes && size as f64 <= bytes as f64 * 1.25, "{bytes} {size}");
            assert_eq!(size, size_of_class(index));
        }
    }

    #[test]
    fn a_cache_full_of_one_size_makes_room_for_another() {
        let memory = Memory::new(usize::MAX);
        let many: Vec<_> = (0..16).map(|_| memory.alloc(KEEP_MIN / 16).unwrap()).collect();
        drop(many);
        assert_eq!(memory.bytes().cached, KEEP_MIN);
        drop(memory.alloc(3 * KEEP_MIN / 4).unwrap());
        let asked = memory.bytes().asked;
        for _ in 0..3 {
            drop(memory.alloc(3 * KEEP_MIN / 4).unwrap());
        }
        assert_eq!(memory.bytes().asked, asked, "it is kept");
        assert_eq!(memory.bytes().cached, KEEP_MIN, "and a quarter of the others");
        drop(memory.alloc(KEEP_MIN / 16).unwrap());
        assert_eq!((memory.bytes().asked, memory.trim()), (asked, KEEP_MIN));
    }

    #[test]
    fn memory_that_is_moved_out_has_one_owner_and_is_freed_once() {
        let memory = Memory::new(usize::MAX);
        let old = memory.alloc(100_000).unwrap();
        assert!(old.is_reusable());
        let new = old.move_out();
        assert_eq!((new.host(), Arc::strong_count(&new)), (old.host(), 1));
        assert!(!old.is_reusable() && new.is_reusable());
        let live = memory.bytes().live;
        drop(old);
        assert_eq!(memory.bytes().live, live);
        drop(new);
        assert_eq!(memory.bytes().live, 0);
        assert_eq!(memory.bytes().cached, live);
    }

    #[test]
    fn a_freed_block_is_used_again_and_trim_gives_it_back() {
        let memory = Memory::new(usize::MAX);
        let a = memory.alloc(100_000).unwrap();
        let address = a.host();
        drop(a);
        assert_eq!(memory.bytes().live, 0);
        let b = memory.alloc(99_000).unwrap();
        assert_eq!(b.host(), address);
        drop(b);
        assert!(memory.trim() >= 100_000);
        assert_eq!(memory.bytes().cached, 0);
    }

    #[test]
    fn freed_blocks_are_kept_up_to_what_was_live_and_the_last_freed_is_the_first_used() {
        let memory = Memory::new(usize::MAX);
        let blocks: Vec<_> = (0..4).map(|_| memory.alloc(32 << 20).unwrap()).collect();
        let last = blocks[3].host();
        drop(blocks);
        let Bytes { live, peak, cached, .. } = memory.bytes();
        assert_eq!((live, peak, cached), (0, 128 << 20, 128 << 20));
        assert_eq!(memory.alloc(32 << 20).unwrap().host(), last);
        // Another size comes on top: what is kept stays within the peak.
        drop((0..3).map(|_| memory.alloc(40 << 20).unwrap()).collect::<Vec<_>>());
        let Bytes { peak, cached, .. } = memory.bytes();
        assert!(cached <= peak, "{cached} bytes kept, {peak} at the peak");
        assert_eq!(memory.trim(), cached);
        assert_eq!(memory.bytes().cached, 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn large_blocks_and_pieces_have_asked_for_huge_pages() {
        let memory = Memory::new(usize::MAX);
        let addresses = [8 << 20, 1 << 20].map(|size| {
            let block = memory.alloc(size).unwrap();
            let address = block.host().unwrap() as usize;
            (block, address)
        });
        assert_eq!(addresses[0].1 % HUGE, 0);
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists() {
            return; // A kernel without them refuses the advice.
        }
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        for (_block, address) in &addresses {
            let mut inside = false;
            let flags = maps.lines().find_map(|line| {
                let range = line.split(' ').next().and_then(|range| range.split_once('-'));
                let range = range.map(|(a, b)| [a, b].map(|n| usize::from_str_radix(n, 16)));
                if let Some([Ok(from), Ok(to)]) = range {
                    inside = (from..to).contains(address);
                }
                line.strip_prefix("VmFlags:").filter(|_| inside)
            });
            let flags = flags.expect("the block is in a mapping");
            assert!(flags.split_whitespace().any(|flag| flag == "hg"), "{flags}");
        }
    }

    #[test]
    fn beyond_the_limit_and_beyond_reason_is_refused() {
        let memory = Memory::new(1 << 20);
        assert!(memory.alloc(2 << 20).is_none());
        assert!(memory.alloc(usize::MAX - 5).is_none());
        assert_eq!(memory.bytes().live, 0);
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_peak_knows_what_was_had_and_nothing_that_was_refused() {
        let memory = Memory::new(usize::MAX);
        let had = memory.alloc(1 << 20).unwrap();
        // More than any processor addresses: the limit lets it pass, and the system does not.
        assert!(memory.alloc(1 << 60).is_none());
        let Bytes { live, peak, .. } = memory.bytes();
        assert_eq!((live, peak), (1 << 20, 1 << 20));
        drop(had);
    }
}
