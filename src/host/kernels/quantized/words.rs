//! Words of quantised weights: the bits of four columns a lane, each column's widened to a byte.
//!
//! A type of words knows where its bits lie. It makes a word only when one is asked for. Knows
//! nothing of scales.

use super::lanes::Lanes;

/// The weights of 32 columns, a word of sixteen lanes at a time: four columns' bytes a lane.
pub(super) trait Words<L: Lanes>: Copy {
    /// The largest byte that a word can have.
    const LARGEST: u32;
    /// Word `i`.
    ///
    /// # Safety
    /// As [`Lanes`] says.
    unsafe fn word(self, i: usize) -> L::Int;
}

/// The bits of each byte that `MASK` has, once the byte is shifted right by `place`.
#[derive(Clone, Copy)]
pub(super) struct Bits<const MASK: u8> {
    pub from: *const u8,
    pub place: u32,
}

/// The low nibbles where `place` is 0, the high ones where it is 4.
pub(super) type Nibbles = Bits<0x0f>;
/// Two bits.
pub(super) type Pairs = Bits<0x03>;

impl<L: Lanes, const MASK: u8> Words<L> for Bits<MASK> {
    const LARGEST: u32 = MASK as u32;
    #[inline(always)]
    unsafe fn word(self, i: usize) -> L::Int {
        // SAFETY: by the caller's promise.
        unsafe {
            let bits = L::right(L::load(self.from.add(64 * i)), self.place);
            L::and(bits, L::splat(u32::from_ne_bytes([MASK; 4])))
        }
    }
}

/// The low nibbles of four words, then the high ones of the same.
#[derive(Clone, Copy)]
pub(super) struct LowThenHigh(pub *const u8);

impl<L: Lanes> Words<L> for LowThenHigh {
    const LARGEST: u32 = <Nibbles as Words<L>>::LARGEST;
    #[inline(always)]
    unsafe fn word(self, i: usize) -> L::Int {
        // SAFETY: by the caller's promise.
        unsafe {
            let place = if i < 4 { 0 } else { 4 };
            Words::<L>::word(Nibbles { from: self.0, place }, i % 4)
        }
    }
}

/// Nibbles, and above them bits of the bytes at `tops`: those that `MASK` has, once the bytes are
/// shifted right by `place` and left by 4.
#[derive(Clone, Copy)]
pub(super) struct Topped<const MASK: u8> {
    pub nibbles: Nibbles,
    pub tops: *const u8,
    pub place: u32,
}

/// Five bits.
pub(super) type Fifths = Topped<0x10>;
/// Six bits.
pub(super) type Sixes = Topped<0x30>;

impl<L: Lanes, const MASK: u8> Words<L> for Topped<MASK> {
    const LARGEST: u32 = <Nibbles as Words<L>>::LARGEST | MASK as u32;
    #[inline(always)]
    unsafe fn word(self, i: usize) -> L::Int {
        // SAFETY: by the caller's promise.
        unsafe {
            let bits = L::right(L::load(self.tops.add(64 * i)), self.place);
            let top = L::and(L::left::<4>(bits), L::splat(u32::from_ne_bytes([MASK; 4])));
            L::or(Words::<L>::word(self.nibbles, i), top)
        }
    }
}
