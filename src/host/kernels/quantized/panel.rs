//! Sixteen rows of a weight by some rows of activations, once for each format.
//!
//! Each result is a sum, block of 32 after block of 32 along the row. A block gives the product of
//! the bytes in integers, scaled; of plain elements, a chain of fused multiply-adds. So its bits
//! depend on its own row alone, whatever stands beside it and however many there are.

use super::lanes::Lanes;
use super::words::{Fifths, LowThenHigh, Nibbles, Pairs, Sixes, Words};
use crate::format::{Format, ROWS};
use crate::host::kernels::stream::{LINE, prefetch_here, prefetch_second_here};
use half::{bf16, f16};
use std::marker::PhantomData;

/// 32 activations in 8 bits, as ggml's Q8_1: `x` is about `q * d`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(super) struct Activations {
    pub q: [i8; 32],
    pub d: f32,
    /// The sum of `q`, and that of its first half: whole numbers.
    pub sum: f32,
    pub low: f32,
    pub high: f32,
}

/// How a format's part of 32 columns meets activations.
pub(super) trait Kind {
    const FORMAT: Format;
    /// Bytes of a tile's 32 columns.
    const PART: usize = ROWS * Self::FORMAT.block_bytes() * 32 / Self::FORMAT.block();
    /// What 32 activations are.
    type X;
    /// Adds a tile (sixteen rows' block) by some rows of activations to their sums.
    ///
    /// # Safety
    /// As [`Lanes`] says; the tile is whole, and each row has a block's activations.
    unsafe fn tile<L: Lanes, const R: usize>(
        tile: *const u8,
        rows: [*const Self::X; R],
        sums: &mut [L::Float; R],
    );
}

/// Bytes between a weight that is read and the line that is asked for.
const AHEAD: usize = 6144;

/// Asks for lines that come [`AHEAD`] of part `part` of a tile: those that fall to word `i` of its
/// eight. They are asked for in their order, however the words' bits are mixed up in them, and a
/// few at a time: a processor that is asked for a whole block at once waits. A block of several
/// parts comes into the second-level cache.
///
/// With one row, two threads of a Zen 4 read so many GB a second, where each word asked for the
/// line 4 KiB after its own, and so: Q6_K 20 and 45, with AVX2 alone 21 and 47; Q5_K 42 and 54, 33
/// and 45; the others differed less than two runs did. (Eight rows of Q8_0 read 36 and 32.) Asked
/// for into the first cache, Q6_K has 22; Q4_0, asked for into the second, 53 and not 63. For whole
/// models see `measure MODEL.gguf one` in benches/RESULTS.md.
#[inline(always)]
fn ask<K: Kind>(tile: *const u8, part: usize, i: usize) {
    let lines = const { K::PART.div_ceil(LINE) };
    for line in i * lines / 8..(i + 1) * lines / 8 {
        let at = tile.wrapping_add(AHEAD + part * K::PART + line * LINE);
        if K::FORMAT.block() > 32 { prefetch_second_here(at) } else { prefetch_here(at) }
    }
}

/// Where the activations of part `part`, 32 columns of a block, lie.
///
/// # Safety
/// Each row has more than `part` parts.
#[inline(always)]
unsafe fn part_of<const R: usize>(
    mut rows: [*const Activations; R],
    part: usize,
) -> [*const Activations; R] {
    for row in &mut rows {
        // SAFETY: by the caller's promise.
        *row = unsafe { row.add(part) };
    }
    rows
}

/// Runs the code for each of a block's eight parts. For one row it is written out eight times, so
/// the compiler knows the part. For several rows a loop is faster: written out, words that two
/// parts share end up on the stack.
macro_rules! in_turn {
    ($R:ident, |$part:ident| $do:block) => {
        if $R == 1 {
            in_turn!(written out, $part, $do, 0 1 2 3 4 5 6 7);
        } else {
            for $part in 0..8usize $do
        }
    };
    (written out, $part:ident, $do:block, $($n:literal)*) => {
        $({ let $part: usize = $n; $do })*
    };
}

/// Products of `WORDS` words, from word `at` on, with the same columns of each row. The sums
/// move from [`few`](Lanes::few) to whole integers as soon as 16 bits have no more room.
///
/// Words outside, rows within: each row's sum is a chain of additions, and those of all rows go on
/// side by side. Row by row a processor holds too few of them at once: 128 to 512 rows took a
/// quarter longer. A word is made where it is used: eight at once would fill all of AVX2's
/// registers.
///
/// # Safety
/// As [`Lanes`] says.
#[inline(always)]
unsafe fn dots<L: Lanes, K: Kind, const R: usize, const WORDS: usize, W: Words<L>>(
    (tile, part): (*const u8, usize),
    words: W,
    at: usize,
    rows: [*const Activations; R],
) -> [L::Float; R] {
    // Words whose products 16 bits have room for, two of a lane's four bytes in each sum.
    let room = const { (i16::MAX as u32 / (2 * 127 * W::LARGEST)) as usize };
    const { assert!(W::LARGEST <= 127, "16 bits have room for one word") };
    // SAFETY: by the caller's promise; words 0 to 7 of 32 bytes.
    unsafe {
        let (mut sums, mut few) = ([L::zero(); R], [L::zero(); R]);
        // Written out: in a loop the compiler would keep the sums in memory.
        macro_rules! words {
            ($($i:literal)*) => {$(
                if $i < WORDS {
                    ask::<K>(tile, part, at + $i);
                    let word = words.word(at + $i);
                    for r in 0..R {
                        few[r] = L::few(few[r], word, (*rows[r]).q.as_ptr().add(4 * (at + $i)));
                        if ($i + 1) % room == 0 || $i + 1 == WORDS {
                            sums[r] = L::plus(sums[r], L::whole(few[r]));
                            few[r] = L::zero();
                        }
                    }
                }
            )*};
        }
        words!(0 1 2 3 4 5 6 7);
        let mut floats = [L::splat_float(0.0); R];
        for r in 0..R {
            floats[r] = L::floats(sums[r]);
        }
        floats
    }
}

/// `sum + x d`, of activations with the scale `d`.
#[inline(always)]
unsafe fn scaled<L: Lanes>(sum: L::Float, x: L::Float, d: f32) -> L::Float {
    // SAFETY: by the caller's promise.
    unsafe { L::add(sum, L::mul(x, L::splat_float(d))) }
}

pub(super) struct Q8_0;

impl Kind for Q8_0 {
    const FORMAT: Format = Format::Q8_0;
    type X = Activations;
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize>(
        tile: *const u8,
        rows: [*const Activations; R],
        sums: &mut [L::Float; R],
    ) {
        // SAFETY: by the caller's promise.
        unsafe {
            let d = L::halves(tile);
            let mut dots = [L::zero(); R];
            for i in 0..8 {
                ask::<Self>(tile, 0, i);
                let w = L::signed(L::load(tile.add(32 + 64 * i)));
                for r in 0..R {
                    dots[r] = L::dot_signed(dots[r], w, (*rows[r]).q.as_ptr().add(4 * i));
                }
            }
            for r in 0..R {
                let (x, mut sum) = (&*rows[r], L::floats(dots[r]));
                if L::OFFSET {
                    // Whole numbers below 2^24: exact.
                    sum = L::sub(sum, L::splat_float(128.0 * x.sum));
                }
                sums[r] = scaled::<L>(sums[r], L::mul(d, sum), x.d);
            }
        }
    }
}

pub(super) struct Q4_0;

impl Kind for Q4_0 {
    const FORMAT: Format = Format::Q4_0;
    type X = Activations;
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize>(
        tile: *const u8,
        rows: [*const Activations; R],
        sums: &mut [L::Float; R],
    ) {
        // SAFETY: by the caller's promise.
        unsafe {
            let d = L::halves(tile);
            let dots = dots::<L, Self, R, 8, _>((tile, 0), LowThenHigh(tile.add(32)), 0, rows);
            for r in 0..R {
                let x = &*rows[r];
                let sum = L::sub(dots[r], L::splat_float(8.0 * x.sum));
                sums[r] = scaled::<L>(sums[r], L::mul(d, sum), x.d);
            }
        }
    }
}

/// `sum + (dot d + m sum(x)) x.d` for each row, of 32 columns.
///
/// # Safety
/// As [`Lanes`] says.
#[inline(always)]
unsafe fn with_minimum<L: Lanes, K: Kind, const R: usize>(
    part: (*const u8, usize),
    words: impl Words<L>,
    [d, m]: [L::Float; 2],
    rows: [*const Activations; R],
    sums: &mut [L::Float; R],
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let dots = dots::<L, K, R, 8, _>(part, words, 0, rows);
        for r in 0..R {
            let x = &*rows[r];
            let least = L::mul(m, L::splat_float(x.sum));
            sums[r] = scaled::<L>(sums[r], L::add(L::mul(d, dots[r]), least), x.d);
        }
    }
}

pub(super) struct Q4_1;

impl Kind for Q4_1 {
    const FORMAT: Format = Format::Q4_1;
    type X = Activations;
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize>(
        tile: *const u8,
        rows: [*const Activations; R],
        sums: &mut [L::Float; R],
    ) {
        // SAFETY: by the caller's promise.
        unsafe {
            let scales = [L::halves(tile), L::halves(tile.add(32))];
            with_minimum::<L, Self, R>((tile, 0), LowThenHigh(tile.add(64)), scales, rows, sums);
        }
    }
}

/// A tile of Q4_K, or with a fifth bit of Q5_K.
///
/// # Safety
/// As [`Lanes`] says.
#[inline(always)]
unsafe fn in_eight_parts<L: Lanes, K: Kind, const R: usize, const FIFTH: bool>(
    tile: *const u8,
    rows: [*const Activations; R],
    sums: &mut [L::Float; R],
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let (d, least) = (L::halves(tile), L::sub(L::splat_float(0.0), L::halves(tile.add(32))));
        let (a, b, c) = (L::load(tile.add(64)), L::load(tile.add(128)), L::load(tile.add(192)));
        let (six, low, top) = (L::splat(0x3f3f_3f3f), L::splat(0x0f0f_0f0f), L::splat(0x3030_3030));
        // Scales and minima of the parts 0 to 3 and 4 to 7, a byte each.
        let scales = [L::and(a, six), L::or(L::and(c, low), L::and(L::right(a, 2), top))];
        let minima =
            [L::and(b, six), L::or(L::and(L::right(c, 4), low), L::and(L::right(b, 2), top))];
        let byte = L::splat(0xff);
        // The fifth bits of the parts 0 to 7 are bits 0 to 7 of each byte.
        let tops = tile.add(256);
        let nibbles = if FIFTH { tops.add(512) } else { tops };
        in_turn!(R, |part| {
            let (at, place) = (part / 4, 8 * (part as u32 % 4));
            let scale = L::mul(d, L::floats(L::and(L::right(scales[at], place), byte)));
            let min = L::mul(least, L::floats(L::and(L::right(minima[at], place), byte)));
            let rows = part_of(rows, part);
            let from = nibbles.add(512 * (part / 2));
            let nibbles = Nibbles { from, place: 4 * (part % 2) as u32 };
            if FIFTH {
                let words = Fifths { nibbles, tops, place: part as u32 };
                with_minimum::<L, K, R>((tile, part), words, [scale, min], rows, sums);
            } else {
                with_minimum::<L, K, R>((tile, part), nibbles, [scale, min], rows, sums);
            }
        });
    }
}

pub(super) struct Q4K;

impl Kind for Q4K {
    const FORMAT: Format = Format::Q4_K;
    type X = Activations;
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize>(
        tile: *const u8,
        rows: [*const Activations; R],
        sums: &mut [L::Float; R],
    ) {
        // SAFETY: by the caller's promise.
        unsafe { in_eight_parts::<L, Self, R, false>(tile, rows, sums) }
    }
}

pub(super) struct Q5K;

impl Kind for Q5K {
    const FORMAT: Format = Format::Q5_K;
    type X = Activations;
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize>(
        tile: *const u8,
        rows: [*const Activations; R],
        sums: &mut [L::Float; R],
    ) {
        // SAFETY: by the caller's promise.
        unsafe { in_eight_parts::<L, Self, R, true>(tile, rows, sums) }
    }
}

pub(super) struct Q6K;

impl Kind for Q6K {
    const FORMAT: Format = Format::Q6_K;
    type X = Activations;
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize>(
        tile: *const u8,
        rows: [*const Activations; R],
        sums: &mut [L::Float; R],
    ) {
        // SAFETY: by the caller's promise.
        unsafe {
            let d = L::halves(tile);
            let (low, high, scales) = (tile.add(32), tile.add(32 + 2048), tile.add(32 + 3072));
            in_turn!(R, |part| {
                let (half, quarter) = (part / 4, part % 4);
                // A signed byte for each half of a part.
                let word = L::right(L::load(scales.add(64 * (part / 2))), 16 * (part as u32 % 2));
                let (a, b) = (L::left::<24>(word), L::left::<16>(word));
                let a = L::mul(d, L::floats(L::right_signed::<24>(a)));
                let b = L::mul(d, L::floats(L::right_signed::<24>(b)));
                let rows = part_of(rows, part);
                let from = low.add(1024 * half + 512 * (part % 2));
                let nibbles = Nibbles { from, place: 4 * (quarter / 2) as u32 };
                let words =
                    Sixes { nibbles, tops: high.add(512 * half), place: 2 * quarter as u32 };
                let lows = dots::<L, Self, R, 4, _>((tile, part), words, 0, rows);
                let highs = dots::<L, Self, R, 4, _>((tile, part), words, 4, rows);
                for r in 0..R {
                    let x = &*rows[r];
                    let low = L::sub(lows[r], L::splat_float(32.0 * x.low));
                    let high = L::sub(highs[r], L::splat_float(32.0 * x.high));
                    sums[r] = scaled::<L>(sums[r], L::add(L::mul(a, low), L::mul(b, high)), x.d);
                }
            });
        }
    }
}

pub(super) struct Q2K;

impl Kind for Q2K {
    const FORMAT: Format = Format::Q2_K;
    type X = Activations;
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize>(
        tile: *const u8,
        rows: [*const Activations; R],
        sums: &mut [L::Float; R],
    ) {
        // SAFETY: by the caller's promise.
        unsafe {
            let (d, least) =
                (L::halves(tile), L::sub(L::splat_float(0.0), L::halves(tile.add(32))));
            let (scales, pairs) = (tile.add(64), tile.add(64 + 256));
            let nibble = L::splat(0x0f);
            in_turn!(R, |part| {
                // A byte for each half of a part: a scale and a minimum.
                let word = L::right(L::load(scales.add(64 * (part / 2))), 16 * (part as u32 % 2));
                let upper = L::right(word, 8);
                let scales = [
                    L::mul(d, L::floats(L::and(word, nibble))),
                    L::mul(d, L::floats(L::and(upper, nibble))),
                ];
                let minima = [
                    L::mul(least, L::floats(L::and(L::right(word, 4), nibble))),
                    L::mul(least, L::floats(L::and(L::right(upper, 4), nibble))),
                ];
                let rows = part_of(rows, part);
                let from = pairs.add(512 * (part / 4));
                let words = Pairs { from, place: 2 * (part as u32 % 4) };
                let lows = dots::<L, Self, R, 4, _>((tile, part), words, 0, rows);
                let highs = dots::<L, Self, R, 4, _>((tile, part), words, 4, rows);
                for r in 0..R {
                    let x = &*rows[r];
                    let least = L::add(
                        L::mul(minima[0], L::splat_float(x.low)),
                        L::mul(minima[1], L::splat_float(x.high)),
                    );
                    let sum = L::add(L::mul(scales[0], lows[r]), L::mul(scales[1], highs[r]));
                    sums[r] = scaled::<L>(sums[r], L::add(sum, least), x.d);
                }
            });
        }
    }
}

/// A type whose elements are weights as they are.
pub(super) trait Stored {
    const FORMAT: Format;
    /// Sixteen of them.
    ///
    /// # Safety
    /// As [`Lanes`] says.
    unsafe fn lanes<L: Lanes>(from: *const u8) -> L::Float;
}
macro_rules! stored {
    ($($t:ident $format:ident $load:ident;)*) => {$(
        impl Stored for $t {
            const FORMAT: Format = Format::$format;
            #[inline(always)]
            unsafe fn lanes<L: Lanes>(from: *const u8) -> L::Float {
                // SAFETY: by the caller's promise.
                unsafe { L::$load(from) }
            }
        }
    )*};
}
stored! {
    f16 F16 halves;
    bf16 BF16 bhalves;
    f32 F32 singles;
}

/// Plain elements.
pub(super) struct Elements<T>(PhantomData<T>);

impl<T: Stored> Kind for Elements<T> {
    const FORMAT: Format = T::FORMAT;
    type X = [f32; 32];
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize>(
        tile: *const u8,
        rows: [*const [f32; 32]; R],
        sums: &mut [L::Float; R],
    ) {
        let sixteen = ROWS * size_of::<T>();
        // SAFETY: by the caller's promise. Blocks start anew: that of one runs beside the next.
        unsafe {
            let mut own = [L::splat_float(0.0); R];
            for i in 0..32 {
                let from = tile.add(sixteen * i);
                if (sixteen * i).is_multiple_of(64) {
                    prefetch_here(from.wrapping_add(AHEAD));
                }
                let w = T::lanes::<L>(from);
                for r in 0..R {
                    own[r] = L::fma(w, L::splat_float((*rows[r])[i]), own[r]);
                }
            }
            for r in 0..R {
                sums[r] = L::add(sums[r], own[r]);
            }
        }
    }
}
