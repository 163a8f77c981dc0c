//! Notes launches instead of making them: what a graph is made from.
//!
//! While a gear has a transcript, a call of a region goes its ordinary way (`step`, `group`,
//! `launcher`), but on memory that is not there: each buffer and each piece of scratch memory has an
//! address of its own that nobody ever follows, and launches are written down with the places at
//! which such addresses stand. So what a graph does is what the launches would do. Knows nothing of
//! graphs, and of the driver only what a launch is.

use crate::cuda::device::index_check::Doubt;
use crate::cuda::device::launch::args::Words;
use crate::cuda::device::libraries::library_call::Called;
use crate::cuda::device::libraries::nvidia::Function;
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
pub(crate) struct Spot {
    pub base: Base,
    pub bytes: i64,
}

/// A launch: its arguments by word, and which of them are addresses.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    pub function: Function,
    /// In blocks, and a block in threads.
    pub grid: [[u32; 3]; 2],
    pub shared: u32,
    pub words: Vec<u64>,
    /// The word at which each argument begins.
    pub starts: Vec<usize>,
    pub addresses: Vec<(usize, Spot)>,
}

pub(crate) enum Item {
    Launch(Noted),
    Library(Called<Spot>),
}

/// How long a base lives, in items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub bytes: usize,
    pub born: usize,
    /// The first item that may have its memory; `usize::MAX` while it lives.
    pub died: usize,
}

/// What a base is.
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
struct Notes {
    bases: Vec<(Kind, Life)>,
    items: Vec<Item>,
    /// What is in a base from the start.
    constants: Vec<(Base, [u64; INLINE_BYTES / 8])>,
    /// Doubts about indices, and where the records are.
    doubts: Vec<(Arc<Doubt>, Base)>,
    /// Values from outside that were written over.
    taken: Vec<usize>,
    /// Bytes that each run copies because they could not be written over.
    copied: usize,
    refused: Option<&'static str>,
}

/// What has been noted so far.
#[derive(Default)]
pub(crate) struct Transcript(Mutex<Notes>);

/// All of it.
pub(crate) struct Played {
    pub bases: Vec<(Kind, Life)>,
    pub items: Vec<Item>,
    pub constants: Vec<(Base, [u64; INLINE_BYTES / 8])>,
    pub doubts: Vec<(Arc<Doubt>, Base)>,
    pub taken: Vec<usize>,
    pub copied: usize,
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transcript({} items)", lock(&self.0).items.len())
    }
}

/// The address of a base.
fn address(base: Base) -> u64 {
    (base as u64 + 1) << SHIFT
}

/// Where an address is.
fn spot(address: u64) -> Spot {
    // Half a stride on either side: what lies a little before a base's start belongs to it.
    let base = ((address.wrapping_add(1 << (SHIFT - 1))) >> SHIFT).wrapping_sub(1);
    Spot { base: base as Base, bytes: address.wrapping_sub(base.wrapping_add(1) << SHIFT) as i64 }
}

impl Transcript {
    fn base(&self, kind: Kind, bytes: usize) -> Base {
        let mut notes = lock(&self.0);
        if notes.bases.len() >= BASES_MAX {
            notes.refused.get_or_insert("too many values");
            return BASES_MAX - 1;
        }
        let born = if kind == Kind::Own { notes.items.len() } else { 0 };
        notes.bases.push((kind, Life { bytes, born, died: usize::MAX }));
        notes.bases.len() - 1
    }

    /// Scratch memory: its address.
    pub(crate) fn scratch(&self, bytes: usize) -> u64 {
        address(self.base(Kind::Own, bytes))
    }

    /// Memory that nobody else gets: its address.
    pub(crate) fn keep(&self, bytes: usize) -> u64 {
        address(self.base(Kind::Kept, bytes))
    }

    /// Memory for a value.
    pub(crate) fn buffer(self: &Arc<Transcript>, bytes: usize) -> Arc<Virtual> {
        let base = self.base(Kind::Own, bytes);
        Arc::new(Virtual { base, bytes, transcript: self.clone() })
    }

    /// The memory of a value from outside.
    pub(crate) fn given(self: &Arc<Transcript>, number: usize, bytes: usize) -> Arc<Virtual> {
        let base = self.base(Kind::Given(number), bytes);
        Arc::new(Virtual { base, bytes, transcript: self.clone() })
    }

    /// Nothing that is noted from now on uses scratch memory any more.
    pub(crate) fn release(&self, ptr: u64) {
        self.die(spot(ptr).base);
    }

    fn die(&self, base: Base) {
        let mut notes = lock(&self.0);
        let now = notes.items.len();
        if let Some((Kind::Own, life)) = notes.bases.get_mut(base) {
            life.died = now;
        }
    }

    /// These words have to be in scratch memory.
    pub(crate) fn constant(&self, words: &[u64; INLINE_BYTES / 8], to: u64) {
        let base = spot(to).base;
        let mut notes = lock(&self.0);
        if let Some((kind, life)) = notes.bases.get_mut(base) {
            (*kind, life.born) = (Kind::Kept, 0);
        }
        notes.constants.push((base, *words));
    }

    /// A value that is doubted, as the record at this address says.
    pub(crate) fn doubts(&self, doubt: Arc<Doubt>, record: u64) {
        lock(&self.0).doubts.push((doubt, spot(record).base));
    }

    /// What is asked for cannot be noted.
    pub(crate) fn refuse(&self, why: &'static str) {
        lock(&self.0).refused.get_or_insert(why);
    }

    /// A value was copied that was to be changed in place.
    pub(crate) fn copied(&self, bytes: usize) {
        lock(&self.0).copied += bytes;
    }

    /// Notes a launch.
    pub(crate) fn launch(&self, function: Function, grid: [[u32; 3]; 2], shared: u32, of: &Words) {
        let addresses = of.addresses.iter().map(|&at| (at, spot(of.words[at]))).collect();
        let (words, starts) = (of.words.to_vec(), of.starts.to_vec());
        lock(&self.0).items.push(Item::Launch(Noted {
            function,
            grid,
            shared,
            words,
            starts,
            addresses,
        }));
    }

    /// Notes a library's call.
    pub(crate) fn library(&self, called: &Called<u64>) {
        lock(&self.0).items.push(Item::Library(called.placed(|&at| spot(at))));
    }

    /// What was noted, or why it cannot be.
    pub(crate) fn take(&self) -> Result<Played, &'static str> {
        let notes = std::mem::take(&mut *lock(&self.0));
        match notes.refused {
            Some(why) => Err(why),
            None => Ok(Played {
                bases: notes.bases,
                items: notes.items,
                constants: notes.constants,
                doubts: notes.doubts,
                taken: notes.taken,
                copied: notes.copied,
            }),
        }
    }
}

/// Memory that is only spoken of.
pub(crate) struct Virtual {
    pub base: Base,
    bytes: usize,
    transcript: Arc<Transcript>,
}

/// A buffer as one that is only spoken of, where it is that.
pub(crate) fn spoken_of(buffer: &dyn Buffer) -> Option<&Virtual> {
    buffer.as_any().downcast_ref()
}

impl Virtual {
    pub fn ptr(&self) -> u64 {
        address(self.base)
    }

    /// A result is written over it.
    pub fn taken_over(&self) {
        let mut notes = lock(&self.transcript.0);
        if let Some(&(Kind::Given(number), _)) = notes.bases.get(self.base) {
            notes.taken.push(number);
        }
    }
}

impl fmt::Debug for Virtual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Virtual({} bytes, base {})", self.bytes, self.base)
    }
}

impl Buffer for Virtual {
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

impl Drop for Virtual {
    fn drop(&mut self) {
        self.transcript.die(self.base);
    }
}

/// Places in one block of memory for what lives at different times: where each begins, and the
/// bytes of the whole. Starts are aligned to 256. First the largest; each goes as low as those that
/// live beside it let it.
pub(crate) fn pack(lives: &[Life]) -> (Vec<usize>, usize) {
    let size = |life: &Life| life.bytes.max(1).next_multiple_of(256);
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
                assert_eq!(spot(at), Spot { base, bytes });
            }
        }
    }

    #[test]
    fn values_that_live_at_different_times_share_memory_and_others_never_do() {
        let life = |bytes, born, died| Life { bytes, born, died };
        // A chain: each is read by the next item alone.
        let chain: Vec<Life> = (0..10).map(|i| life(1000, i, i + 2)).collect();
        let (_, whole) = pack(&chain);
        assert_eq!(whole, 2 * 1024);
        let mixed: Vec<Life> = (0..60usize)
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
