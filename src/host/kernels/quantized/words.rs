//! Words of quantised weights: the bits of four columns a lane, each column's widened to a byte.
//!
//! A type of words knows where its bits lie. It makes a word only when one is asked for. Knows
//! nothing of scales.

use super::lanes::Lanes;
use crate::host::kernels::stream::prefetch_here;

/// Bytes between a weight that is read and the line that is asked for. With one row, GB a second
/// and thread on two cores of a Zen 3: Q4_K 12 to 17, or 8 to 13 where each block asked for all
/// lines of the next at once; Q6_K 8 to 12, or 4 to 7. Distances of 2 to 8 KiB do equally well. To
/// ask for a block's scales as well changes nothing.
pub(super) const AHEAD: usize = 4096;

/// The weights of 32 columns, a word of sixteen lanes at a time: four columns' bytes a lane.
pub(super) trait Words<L: Lanes>: Copy {
    /// Word `i`, for `R` rows of activations.
    ///
    /// # Safety
    /// As [`Lanes`] says.
    unsafe fn word<const R: usize>(self, i: usize) -> L::Int;
}

/// Loads a word and shifts it right by `place`. Asks for the line that is [`AHEAD`]. For one row
/// only where `place` is 0, so once a line. For several rows always: `place` is known only as the
/// loop runs, and a branch on it costs more than asking twice.
///
/// # Safety
/// As [`Lanes`] says.
#[inline(always)]
pub(super) unsafe fn from_bit<L: Lanes, const R: usize>(from: *const u8, place: u32) -> L::Int {
    if R > 1 || place == 0 {
        prefetch_here(from.wrapping_add(AHEAD));
    }
    // SAFETY: by the caller's promise.
    unsafe { L::right(L::load(from), place) }
}

/// One nibble of each byte: the low one where `place` is 0, the high one where it is 4.
#[derive(Clone, Copy)]
pub(super) struct Nibbles {
    pub from: *const u8,
    pub place: u32,
}

impl<L: Lanes> Words<L> for Nibbles {
    #[inline(always)]
    unsafe fn word<const R: usize>(self, i: usize) -> L::Int {
        // SAFETY: by the caller's promise.
        unsafe {
            let both = from_bit::<L, R>(self.from.add(64 * i), self.place);
            L::and(both, L::splat(0x0f0f_0f0f))
        }
    }
}

/// The low nibbles of four words, then the high ones of the same.
#[derive(Clone, Copy)]
pub(super) struct LowThenHigh(pub *const u8);

impl<L: Lanes> Words<L> for LowThenHigh {
    #[inline(always)]
    unsafe fn word<const R: usize>(self, i: usize) -> L::Int {
        // SAFETY: by the caller's promise.
        unsafe {
            let place = if i < 4 { 0 } else { 4 };
            Words::<L>::word::<R>(Nibbles { from: self.0, place }, i % 4)
        }
    }
}

/// Five bits: a nibble, and above it bit `place` of the byte at `tops`.
#[derive(Clone, Copy)]
pub(super) struct Fifths {
    pub nibbles: Nibbles,
    pub tops: *const u8,
    pub place: u32,
}

impl<L: Lanes> Words<L> for Fifths {
    #[inline(always)]
    unsafe fn word<const R: usize>(self, i: usize) -> L::Int {
        // SAFETY: by the caller's promise.
        unsafe {
            let bit = from_bit::<L, R>(self.tops.add(64 * i), self.place);
            let top = L::and(L::left::<4>(bit), L::splat(0x1010_1010));
            L::or(Words::<L>::word::<R>(self.nibbles, i), top)
        }
    }
}

/// Two bits of each byte, from bit `place` on.
#[derive(Clone, Copy)]
pub(super) struct Pairs {
    pub from: *const u8,
    pub place: u32,
}

impl<L: Lanes> Words<L> for Pairs {
    #[inline(always)]
    unsafe fn word<const R: usize>(self, i: usize) -> L::Int {
        // SAFETY: by the caller's promise.
        unsafe {
            let bits = from_bit::<L, R>(self.from.add(64 * i), self.place);
            L::and(bits, L::splat(0x0303_0303))
        }
    }
}

/// Six bits: a nibble, and above it two bits of the byte at `tops`, from bit `place` on.
#[derive(Clone, Copy)]
pub(super) struct Sixes {
    pub nibbles: Nibbles,
    pub tops: *const u8,
    pub place: u32,
}

impl<L: Lanes> Words<L> for Sixes {
    #[inline(always)]
    unsafe fn word<const R: usize>(self, i: usize) -> L::Int {
        // SAFETY: by the caller's promise.
        unsafe {
            let bits = from_bit::<L, R>(self.tops.add(64 * i), self.place);
            let top = L::and(L::left::<4>(bits), L::splat(0x3030_3030));
            L::or(Words::<L>::word::<R>(self.nibbles, i), top)
        }
    }
}
