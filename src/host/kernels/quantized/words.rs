//! The words of quantised weights: the bits of a block, each column's as a byte.
//!
//! A kind of words says where its bits lie, and makes a word where it is used. Knows nothing of
//! scales.

use super::lanes::Lanes;
use crate::host::kernels::stream::prefetch_here;

/// How far ahead of its use a weight is asked for, line by line. One row of Q4_K reads 12 to 17 GB
/// a second and thread, and 8 to 13 where a block asks for all lines of the next one at once; one
/// of Q6_K 8 to 12, and 4 to 7 (two cores of a Zen 3). From 2 to 8 KiB are the same.
pub(super) const AHEAD: usize = 4096;

/// The weights of 32 columns, a word of sixteen lanes at a time: four columns' bytes a lane.
pub(super) trait Words<L: Lanes>: Copy {
    /// Word `i`, for `R` rows of activations.
    ///
    /// # Safety
    /// As [`Lanes`] says.
    unsafe fn word<const R: usize>(self, i: usize) -> L::Int;
}

/// A word of a weight, whose bits are used from bit `place` on. Asks for the line [`AHEAD`] of it:
/// once, where the bits from 0 on are used. Of several rows each time, which costs less than to ask
/// where that is.
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

/// Nibbles of bytes, the low ones or those from bit `place`, which is 4, on.
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

/// Nibbles below a fifth bit, which is bit `place` of the bytes at `tops`.
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

/// Pairs of bits, from bit `place` of bytes on.
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

/// Nibbles below two bits, which are those from bit `place` on of the bytes at `tops`.
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
