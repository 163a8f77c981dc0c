//! Sixteen rows of a weight by some rows of activations, once for each format.
//!
//! Each result is a sum, block of 32 after block of 32 along the row. A block gives the product of
//! the bytes in integers, scaled; of plain elements, a chain of fused multiply-adds. So its bits
//! depend on its own row alone, whatever stands beside it and however many there are.

use super::lanes::Lanes;
use crate::format::{Format, ROWS};
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

/// Nibbles of eight words of sixteen lanes: the low ones, then the high ones.
///
/// # Safety
/// As [`Lanes`] says; 256 bytes.
#[inline(always)]
unsafe fn nibbles<L: Lanes>(from: *const u8) -> [L::Int; 8] {
    // SAFETY: by the caller's promise.
    unsafe {
        let mask = L::splat(0x0f0f_0f0f);
        let mut w = [L::zero(); 8];
        for i in 0..4 {
            let both = L::load(from.add(64 * i));
            w[i] = L::and(both, mask);
            w[i + 4] = L::and(L::right::<4>(both), mask);
        }
        w
    }
}

/// The products of four bytes a word of `w` with as many of each row's, from byte `first` on.
///
/// Words outside, rows within: each row's sum is a chain of additions, and those of all rows go on
/// side by side. Row by row a processor holds too few of them at once: 128 to 512 rows took a
/// quarter longer.
///
/// # Safety
/// As [`Lanes`] says.
#[inline(always)]
unsafe fn dots<L: Lanes, const R: usize, const WORDS: usize, const SIGNED: bool>(
    w: &[L::Int; WORDS],
    rows: [*const Activations; R],
    first: usize,
) -> [L::Float; R] {
    // SAFETY: by the caller's promise; four of 32 bytes.
    unsafe {
        let mut sums = [L::zero(); R];
        for i in 0..WORDS {
            for r in 0..R {
                let q = (*rows[r]).q.as_ptr().add(first + 4 * i);
                sums[r] =
                    if SIGNED { L::dot_signed(sums[r], w[i], q) } else { L::dot(sums[r], w[i], q) };
            }
        }
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
            let mut w = [L::zero(); 8];
            for i in 0..8 {
                w[i] = L::signed(L::load(tile.add(32 + 64 * i)));
            }
            let dots = dots::<L, R, 8, true>(&w, rows, 0);
            for r in 0..R {
                let (x, mut sum) = (&*rows[r], dots[r]);
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
            let (d, w) = (L::halves(tile), nibbles::<L>(tile.add(32)));
            let dots = dots::<L, R, 8, false>(&w, rows, 0);
            for r in 0..R {
                let x = &*rows[r];
                let sum = L::sub(dots[r], L::splat_float(8.0 * x.sum));
                sums[r] = scaled::<L>(sums[r], L::mul(d, sum), x.d);
            }
        }
    }
}

/// `sum + (dot d + m sum(x)) x.d` for each row, of 32 columns of nibbles.
///
/// # Safety
/// As [`Lanes`] says.
#[inline(always)]
unsafe fn with_minimum<L: Lanes, const R: usize>(
    w: &[L::Int; 8],
    [d, m]: [L::Float; 2],
    rows: [*const Activations; R],
    sums: &mut [L::Float; R],
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let dots = dots::<L, R, 8, false>(w, rows, 0);
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
            with_minimum::<L, R>(&nibbles::<L>(tile.add(64)), scales, rows, sums);
        }
    }
}

/// A tile of Q4_K, or with a fifth bit of Q5_K.
///
/// # Safety
/// As [`Lanes`] says.
#[inline(always)]
unsafe fn in_eight_parts<L: Lanes, const R: usize, const FIFTH: bool>(
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
        let mut scales = [L::and(a, six), L::or(L::and(c, low), L::and(L::right::<2>(a), top))];
        let mut minima =
            [L::and(b, six), L::or(L::and(L::right::<4>(c), low), L::and(L::right::<2>(b), top))];
        let (byte, bit) = (L::splat(0xff), L::splat(0x1010_1010));
        // Fifth bits: those of the next part are the lowest of each byte.
        let mut tops = [L::zero(); 8];
        if FIFTH {
            for i in 0..8 {
                tops[i] = L::load(tile.add(256 + 64 * i));
            }
        }
        let nibbles = tile.add(256 + if FIFTH { 512 } else { 0 });
        for chunk in 0..4 {
            let from = nibbles.add(512 * chunk);
            for part in 0..2 {
                let mut w = [L::zero(); 8];
                for i in 0..8 {
                    let both = L::load(from.add(64 * i));
                    w[i] = L::and(if part == 0 { both } else { L::right::<4>(both) }, low);
                    if FIFTH {
                        w[i] = L::or(w[i], L::and(L::left::<4>(tops[i]), bit));
                        tops[i] = L::right::<1>(tops[i]);
                    }
                }
                let at = chunk / 2;
                let scale = L::mul(d, L::floats(L::and(scales[at], byte)));
                let min = L::mul(least, L::floats(L::and(minima[at], byte)));
                scales[at] = L::right::<8>(scales[at]);
                minima[at] = L::right::<8>(minima[at]);
                let rows = rows.map(|row| row.add(2 * chunk + part));
                with_minimum::<L, R>(&w, [scale, min], rows, sums);
            }
        }
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
        unsafe { in_eight_parts::<L, R, false>(tile, rows, sums) }
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
        unsafe { in_eight_parts::<L, R, true>(tile, rows, sums) }
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
            let (nibble, pair) = (L::splat(0x0f0f_0f0f), L::splat(0x3030_3030));
            for half in 0..2 {
                let mut tops = [L::zero(); 8];
                for i in 0..8 {
                    tops[i] = L::load(high.add(64 * (8 * half + i)));
                }
                for part in 0..4 {
                    let mut w = [[L::zero(); 4]; 2];
                    for i in 0..8 {
                        let both = L::load(low.add(64 * (16 * half + 8 * (part % 2) + i)));
                        let bits =
                            L::and(if part < 2 { both } else { L::right::<4>(both) }, nibble);
                        // The pair of this part, at bits 4 and 5.
                        let top = match part {
                            0 => L::left::<4>(tops[i]),
                            1 => L::left::<2>(tops[i]),
                            2 => tops[i],
                            _ => L::right::<2>(tops[i]),
                        };
                        w[i / 4][i % 4] = L::or(bits, L::and(top, pair));
                    }
                    // Four signed scales a word: of this part's halves, the lower two or the upper.
                    let word = L::load(scales.add(64 * (2 * half + part / 2)));
                    let (a, b) = match part % 2 {
                        0 => (L::left::<24>(word), L::left::<16>(word)),
                        _ => (L::left::<8>(word), word),
                    };
                    let a = L::mul(d, L::floats(L::right_signed::<24>(a)));
                    let b = L::mul(d, L::floats(L::right_signed::<24>(b)));
                    let rows = rows.map(|row| row.add(4 * half + part));
                    let lows = dots::<L, R, 4, false>(&w[0], rows, 0);
                    let highs = dots::<L, R, 4, false>(&w[1], rows, 16);
                    for r in 0..R {
                        let x = &*rows[r];
                        let low = L::sub(lows[r], L::splat_float(32.0 * x.low));
                        let high = L::sub(highs[r], L::splat_float(32.0 * x.high));
                        sums[r] =
                            scaled::<L>(sums[r], L::add(L::mul(a, low), L::mul(b, high)), x.d);
                    }
                }
            }
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
            let (pair, nibble) = (L::splat(0x0303_0303), L::splat(0x0f));
            for half in 0..2 {
                let mut bits = [L::zero(); 8];
                for i in 0..8 {
                    bits[i] = L::load(pairs.add(64 * (8 * half + i)));
                }
                for part in 0..4 {
                    let mut w = [[L::zero(); 4]; 2];
                    for i in 0..8 {
                        w[i / 4][i % 4] = L::and(bits[i], pair);
                        bits[i] = L::right::<2>(bits[i]);
                    }
                    // A byte for each half of a part: a scale and a minimum.
                    let word = L::load(scales.add(64 * (2 * half + part / 2)));
                    let word = if part % 2 == 0 { word } else { L::right::<16>(word) };
                    let upper = L::right::<8>(word);
                    let scale = |word| L::mul(d, L::floats(L::and(word, nibble)));
                    let min = |word| L::mul(least, L::floats(L::and(L::right::<4>(word), nibble)));
                    let (scales, minima) = ([scale(word), scale(upper)], [min(word), min(upper)]);
                    let rows = rows.map(|row| row.add(4 * half + part));
                    let lows = dots::<L, R, 4, false>(&w[0], rows, 0);
                    let highs = dots::<L, R, 4, false>(&w[1], rows, 16);
                    for r in 0..R {
                        let x = &*rows[r];
                        let least = L::add(
                            L::mul(minima[0], L::splat_float(x.low)),
                            L::mul(minima[1], L::splat_float(x.high)),
                        );
                        let sum = L::add(L::mul(scales[0], lows[r]), L::mul(scales[1], highs[r]));
                        sums[r] = scaled::<L>(sums[r], L::add(sum, least), x.d);
                    }
                }
            }
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
                let w = T::lanes::<L>(tile.add(sixteen * i));
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
