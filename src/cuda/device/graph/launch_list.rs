//! A list of launches that are recorded instead of made. A graph is built of it.
//!
//! While the device context has a launch list, a call of a region goes its ordinary way (`step`,
//! `group`, `launcher`), but on placeholders: each buffer and each block of scratch memory has an
//! address of its own that nobody ever follows, and the list keeps each launch with the positions
//! of such addresses. So a graph does the same as the launches would do. The list knows nothing of
//! graphs, and of the driver only a launch's arguments.

use crate::cuda::device::index_check::IndexCheck;
use crate::cuda::device::launch::args::Words;
use crate::cuda::device::libraries::library_call::LibraryCall;
use crate::cuda::device::libraries::nvidia::Function;
use crate::error::bytes_of;
use crate::graph::value::{Buffer, INLINE_BYTES};
use crate::sync::{Mutex, lock};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A piece of memory, by number.
pub(crate) type Base = usize;

/// Addresses of one base from those of the next: far more than a value has bytes.
const SHIFT: u32 = 44;
/// So many bases have addresses.
const BASES_MAX: usize = (1 << (64 - SHIFT)) - 2;

/// A place in a base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BaseOffset {
    pub base: Base,
    pub bytes: i64,
}

/// A launch: its arguments by word, and which of them are addresses.
#[derive(Clone, Debug)]
pub(crate) struct RecordedLaunch {
    pub function: Function,
    /// In blocks, and a block in threads.
    pub grid: [[u32; 3]; 2],
    pub shared: u32,
    pub words: Vec<u64>,
    /// The word at which each argument begins.
    pub starts: Vec<usize>,
    pub addresses: Vec<(usize, BaseOffset)>,
}

pub(crate) enum Item {
    Launch(RecordedLaunch),
    Library(LibraryCall<BaseOffset>),
}

/// How long a base lives, in items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveRange {
    pub bytes: usize,
    pub born: usize,
    /// The first item that may have its memory; `usize::MAX` while it lives.
    pub died: usize,
}

/// A base as it was recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    pub kind: Kind,
    pub life: LiveRange,
    /// The base whose last reader writes this one, element by element: both may be one memory.
    pub over: Option<Base>,
}

/// The kind of a base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A value from outside, by number.
    Given(usize),
    /// Memory of the call's own.
    Own,
    /// The same, with something in it that has to stay.
    Kept,
}

#[derive(Default)]
struct Entries {
    bases: Vec<Recorded>,
    items: Vec<Item>,
    /// Words that are in a base from the start.
    constants: Vec<(Base, [u64; INLINE_BYTES / 8])>,
    /// Index checks, and where the records are.
    checks: Vec<(Arc<IndexCheck>, Base)>,
    /// Values from outside that were changed in place.
    taken: Vec<usize>,
    /// Bytes that each run copies because they could not be written over.
    copied: usize,
    refused: Option<&'static str>,
}

/// The launches recorded so far, with the memory that they use.
#[derive(Default)]
pub(crate) struct LaunchList(Mutex<Entries>);

/// All of it.
pub(crate) struct Recording {
    pub bases: Vec<Recorded>,
    pub items: Vec<Item>,
    pub constants: Vec<(Base, [u64; INLINE_BYTES / 8])>,
    pub checks: Vec<(Arc<IndexCheck>, Base)>,
    pub taken: Vec<usize>,
    pub copied: usize,
}

impl fmt::Debug for LaunchList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LaunchList({} items)", lock(&self.0).items.len())
    }
}

/// The address of a base.
fn address(base: Base) -> u64 {
    (base as u64 + 1) << SHIFT
}

/// Where an address is.
fn spot(address: u64) -> BaseOffset {
    // Half a stride on either side: an address a little before a base's start belongs to it.
    let base = ((address.wrapping_add(1 << (SHIFT - 1))) >> SHIFT).wrapping_sub(1);
    BaseOffset {
        base: base as Base,
        bytes: address.wrapping_sub(base.wrapping_add(1) << SHIFT) as i64,
    }
}

impl LaunchList {
    fn base(&self, kind: Kind, bytes: usize, over: Option<Base>) -> Base {
        let mut entries = lock(&self.0);
        if entries.bases.len() >= BASES_MAX {
            entries.refused.get_or_insert("too many values");
            return BASES_MAX - 1;
        }
        let born = if kind == Kind::Own { entries.items.len() } else { 0 };
        let life = LiveRange { bytes, born, died: usize::MAX };
        entries.bases.push(Recorded { kind, life, over });
        entries.bases.len() - 1
    }

    /// Scratch memory: its address.
    pub(crate) fn scratch(&self, bytes: usize) -> u64 {
        address(self.base(Kind::Own, bytes, None))
    }

    /// Memory that nobody else gets: its address.
    pub(crate) fn keep(&self, bytes: usize) -> u64 {
        address(self.base(Kind::Kept, bytes, None))
    }

    /// Memory for a value.
    pub(crate) fn buffer(self: &Arc<LaunchList>, bytes: usize) -> Arc<Placeholder> {
        self.over(bytes, None)
    }

    fn over(self: &Arc<LaunchList>, bytes: usize, over: Option<Base>) -> Arc<Placeholder> {
        let base = self.base(Kind::Own, bytes, over);
        Arc::new(Placeholder { base, bytes, launch_list: self.clone() })
    }

    /// The memory of a value from outside.
    pub(crate) fn given(self: &Arc<LaunchList>, number: usize, bytes: usize) -> Arc<Placeholder> {
        let base = self.base(Kind::Given(number), bytes, None);
        Arc::new(Placeholder { base, bytes, launch_list: self.clone() })
    }

    /// Nothing that is recorded from now on uses scratch memory any more.
    pub(crate) fn release(&self, ptr: u64) {
        self.die(spot(ptr).base);
    }

    fn die(&self, base: Base) {
        let mut entries = lock(&self.0);
        let now = entries.items.len();
        if let Some(Recorded { kind: Kind::Own, life, .. }) = entries.bases.get_mut(base) {
            life.died = now;
        }
    }

    /// These words have to be in scratch memory.
    pub(crate) fn constant(&self, words: &[u64; INLINE_BYTES / 8], to: u64) {
        let base = spot(to).base;
        let mut entries = lock(&self.0);
        if let Some(Recorded { kind, life, .. }) = entries.bases.get_mut(base) {
            (*kind, life.born) = (Kind::Kept, 0);
        }
        entries.constants.push((base, *words));
    }

    /// A value that an index check stands for, as the record at this address says.
    pub(crate) fn add_check(&self, check: Arc<IndexCheck>, record: u64) {
        lock(&self.0).checks.push((check, spot(record).base));
    }

    /// The call cannot be recorded, and this is why.
    pub(crate) fn refuse(&self, why: &'static str) {
        lock(&self.0).refused.get_or_insert(why);
    }

    /// A value was copied that was to be changed in place.
    pub(crate) fn copied(&self, bytes: usize) {
        lock(&self.0).copied += bytes;
    }

    /// Records a launch.
    pub(crate) fn launch(&self, function: Function, grid: [[u32; 3]; 2], shared: u32, of: &Words) {
        let addresses = of.addresses.iter().map(|&at| (at, spot(of.words[at]))).collect();
        let (words, starts) = (of.words.to_vec(), of.starts.to_vec());
        lock(&self.0).items.push(Item::Launch(RecordedLaunch {
            function,
            grid,
            shared,
            words,
            starts,
            addresses,
        }));
    }

    /// Records a library's call.
    pub(crate) fn library(&self, call: &LibraryCall<u64>) {
        lock(&self.0).items.push(Item::Library(call.placed(|&at| spot(at))));
    }

    /// The recording, or why there is none.
    pub(crate) fn take(&self) -> Result<Recording, &'static str> {
        let entries = std::mem::take(&mut *lock(&self.0));
        match entries.refused {
            Some(why) => Err(why),
            None => Ok(Recording {
                bases: entries.bases,
                items: entries.items,
                constants: entries.constants,
                checks: entries.checks,
                taken: entries.taken,
                copied: entries.copied,
            }),
        }
    }
}

/// Placeholder memory: an address that nothing follows.
pub(crate) struct Placeholder {
    pub base: Base,
    bytes: usize,
    launch_list: Arc<LaunchList>,
}

/// A buffer as a placeholder, where it is one.
pub(crate) fn as_placeholder(buffer: &dyn Buffer) -> Option<&Placeholder> {
    buffer.as_any().downcast_ref()
}

impl Placeholder {
    pub fn ptr(&self) -> u64 {
        address(self.base)
    }

    /// An op changes some of its elements.
    pub fn changed(&self) {
        let mut entries = lock(&self.launch_list.0);
        if let Some(Recorded { kind: Kind::Given(number), .. }) = entries.bases.get(self.base) {
            let number = *number;
            entries.taken.push(number);
        }
    }

    /// Memory for a result that may be written over it, or elsewhere.
    pub fn taken_over(&self) -> Arc<Placeholder> {
        self.launch_list.over(self.bytes, Some(self.base))
    }
}

impl fmt::Debug for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Placeholder({}, base {})", bytes_of(self.bytes), self.base)
    }
}

impl Buffer for Placeholder {
    fn host(&self) -> Option<*mut u8> {
        None
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn is_reusable(&self) -> bool {
        true
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        self.launch_list.die(self.base);
    }
}

/// Places in one block of memory for values that live at different times: where each begins, and
/// the bytes of the whole. Starts are aligned to 256. First the largest; each goes as low as those
/// that live beside it let it.
pub(crate) fn pack(lives: &[LiveRange]) -> (Vec<usize>, usize) {
    let size = |life: &LiveRange| life.bytes.max(1).next_multiple_of(256);
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&k| (std::cmp::Reverse(lives[k].bytes), k));
    let mut starts = vec![0; lives.len()];
    let (mut whole, mut placed) = (0, Vec::<usize>::new());
    for k in order {
        let mine = lives[k];
        let beside = |&&o: &&usize| lives[o].born < mine.died && mine.born < lives[o].died;
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(beside)
            .map(|&o| (starts[o], starts[o] + size(&lives[o])))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for (from, to) in taken {
            if at + size(&mine) <= from {
                break;
            }
            at = at.max(to);
        }
        starts[k] = at;
        whole = whole.max(at + size(&mine));
        placed.push(k);
    }
    (starts, whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_tells_its_base_and_place() {
        for base in [0, 1, 7, 5000] {
            for bytes in [0i64, 8, -64, 1 << 40, -(1 << 40)] {
                let at = address(base).wrapping_add_signed(bytes);
                assert_eq!(spot(at), BaseOffset { base, bytes });
            }
        }
    }

    #[test]
    fn values_that_live_at_different_times_share_memory_and_others_never_do() {
        let life = |bytes, born, died| LiveRange { bytes, born, died };
        // A chain: each is read by the next item alone.
        let chain: Vec<LiveRange> = (0..10).map(|i| life(1000, i, i + 2)).collect();
        let (_, whole) = pack(&chain);
        assert_eq!(whole, 2 * 1024);
        let mixed: Vec<LiveRange> = (0..60usize)
            .map(|i| life(1 + i * 7919 % 5000, i % 13, i % 13 + 1 + i * 31 % 7))
            .chain([life(300, 0, usize::MAX)])
            .collect();
        let (starts, whole) = pack(&mixed);
        for a in 0..mixed.len() {
            assert!(starts[a].is_multiple_of(256) && starts[a] + mixed[a].bytes <= whole);
            for b in 0..a {
                let together = mixed[a].born < mixed[b].died && mixed[b].born < mixed[a].died;
                let apart = starts[a] + mixed[a].bytes <= starts[b]
                    || starts[b] + mixed[b].bytes <= starts[a];
                assert!(!together || apart, "{a} and {b}");
            }
        }
    }
}
