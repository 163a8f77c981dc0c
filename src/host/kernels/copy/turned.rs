//! Copies in which another dimension becomes the last one: tiles that are turned, and few rows
//! woven into one.
//!
//! Called by [`copy_nest`](super::copy_nest). Convolutions and packed operands turn tiles as well.

use super::super::isa::vectorize;
use super::super::nest::{Dim, Nest, Shared, in_parts, slice_of};
#[cfg(target_arch = "x86_64")]
use super::super::simd::{Level, level};
use super::super::stream::prefetch;
use super::rows::copy_row;
use crate::view::Parallel;

/// Copies lines of `n` elements of a few rows of the source, element by element side by side:
/// channels that become the last dimension, elements that are repeated.
pub(super) fn weave<T: Copy + Send + Sync>(
    lines: &Nest<2>,
    n: usize,
    row: Dim<2>,
    to: Shared<T>,
    from: Shared<T>,
    least: usize,
    par: &dyn Parallel,
) {
    let (k, step) = (row.size, row.step[1]);
    let cuts = (n * k).div_ceil(least).max(1);
    let each = (n * k).div_ceil(cuts);
    in_parts(lines.numel() * cuts, (least / each).max(1), par, &|part| {
        vectorize!(|| {
            for u in part {
                let [d, s] = lines.at(u / cuts);
                let cut = slice_of(n, cuts, u % cuts);
                let (d, s) = (d + (cut.start * k) as isize, s + cut.start as isize);
                let (d, s, n) = (to.at(d), from.at(s).cast_const(), cut.len());
                // SAFETY: both views are valid at every index of the shape, which these are; parts
                // write elements that do not meet.
                unsafe {
                    match k {
                        2 => woven::<T, 2>(d, rows(s, step), n),
                        3 => woven::<T, 3>(d, rows(s, step), n),
                        4 => woven::<T, 4>(d, rows(s, step), n),
                        _ => (0..k).for_each(|j| {
                            copy_row(d.add(j), s.offset(j as isize * step), n, [k as isize, 1])
                        }),
                    }
                }
            }
        });
    });
}

/// Where rows begin that are a step apart.
#[inline(always)]
fn rows<T, const K: usize>(s: *const T, step: isize) -> [*const T; K] {
    std::array::from_fn(|j| s.wrapping_offset(j as isize * step))
}

/// `d[i * K + j] = s[j][i]`.
///
/// # Safety
/// The addresses named for `i` below `n` are valid, and `d` overlaps none of `s`.
#[inline(always)]
pub(super) unsafe fn woven<T: Copy, const K: usize>(d: *mut T, s: [*const T; K], n: usize) {
    for i in 0..n {
        for j in 0..K {
            // SAFETY: by the caller's promise.
            unsafe { *d.add(i * K + j) = *s[j].add(i) };
        }
    }
}

/// Side of a transposed tile: for 4-byte elements a cache line each way.
pub(in super::super) const TILE: usize = 16;
/// A band of so many rows, at most, is asked for two bands before it is read: no machine foresees
/// many rows at a time, and of more the first cache would lose the lines until then. (On a Zen 3 32
/// planes of [64, 3136] took 2.9 ms with it and 4.0 without, of halves 1.3 and 2.2; one of [2048,
/// 2048] took 2.9 with it and 2.2 without.)
const ASKED: usize = 128;

/// Copies planes whose rows are `row` in the destination and whose source runs along `column`. Each
/// tile is read in whole lines into a buffer on the stack and written in whole lines from there.
pub(super) fn transpose<T: Copy + Send + Sync>(
    planes: &Nest<2>,
    column: Dim<2>,
    row: Dim<2>,
    to: Shared<T>,
    from: Shared<T>,
    least: usize,
    par: &dyn Parallel,
) {
    // A unit of work is a band of `TILE` columns of the source over the whole row.
    let bands = column.size.div_ceil(TILE);
    let unit = (TILE * row.size).max(1);
    // Rows that are whole pages apart have few places in a cache.
    let apart = row.step[1].unsigned_abs() * size_of::<T>();
    let (asks, later) = (row.size <= ASKED && !apart.is_multiple_of(4096), 2 * TILE);
    in_parts(planes.numel() * bands, (least / unit).max(1), par, &|part| {
        vectorize!(|| {
            for u in part {
                let [d, s] = planes.at(u / bands);
                let c = (u % bands) * TILE;
                let wide = TILE.min(column.size - c);
                let (d, s) = (d + c as isize * column.step[0], s + c as isize);
                let mut r = 0;
                while r < row.size {
                    let high = TILE.min(row.size - r);
                    let (d, s) = (to.at(d + r as isize), from.at(s + r as isize * row.step[1]));
                    if asks {
                        for k in 0..high as isize {
                            prefetch(s.wrapping_offset(k * row.step[1]).wrapping_add(later).cast());
                        }
                    }
                    // SAFETY: the tile's `wide` columns and `high` rows lie within both views.
                    unsafe { tile::<T>(d, s, column.step[0], row.step[1], wide, high) };
                    r += TILE;
                }
            }
        });
    });
}

/// `d[i * ds + k] = s[k * ss + i]` for `i` below `wide` and `k` below `high`, at most `TILE` each.
///
/// # Safety
/// The addresses named are valid, and `d` and `s` do not overlap.
#[inline(always)]
pub(in super::super) unsafe fn tile<T: Copy>(
    d: *mut T,
    s: *const T,
    ds: isize,
    ss: isize,
    wide: usize,
    high: usize,
) {
    // SAFETY: by the caller's promise; the level is one that the machine has.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if level() == Level::Avx512 && (wide, high) == (TILE, TILE) {
            match size_of::<T>() {
                2 => return by_shuffles::halves(d.cast(), s.cast(), ds, ss),
                4 => return by_shuffles::words(d.cast(), s.cast(), ds, ss),
                _ => {}
            }
        }
        if (wide, high) == (TILE, TILE) {
            through_buffer::<T>(d, s, ds, ss, TILE, TILE);
        } else {
            through_buffer::<T>(d, s, ds, ss, wide, high);
        }
    }
}

/// A [`tile`] by way of a buffer on the stack.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn through_buffer<T: Copy>(
    d: *mut T,
    s: *const T,
    ds: isize,
    ss: isize,
    wide: usize,
    high: usize,
) {
    let mut buffer = [[std::mem::MaybeUninit::<T>::uninit(); TILE]; TILE];
    // SAFETY: by the caller's promise; what is read from the buffer has been written before.
    unsafe {
        for (k, line) in buffer[..high].iter_mut().enumerate() {
            std::ptr::copy_nonoverlapping(
                s.offset(k as isize * ss).cast(),
                line.as_mut_ptr(),
                wide,
            );
        }
        for i in 0..wide {
            let out = d.offset(i as isize * ds);
            for k in 0..high {
                *out.add(k) = buffer[k][i].assume_init();
            }
        }
    }
}

/// Tiles that are turned in registers. Rows are shuffled in pairs, `i` with `i + 8`, element by
/// element: that turns an element's address by one bit, and four times changes row and column. (By
/// single loads, 32 planes of [64, 3136] took twice as long, and three times in halves.)
#[cfg(target_arch = "x86_64")]
mod by_shuffles {
    use super::TILE;
    use std::arch::x86_64::*;

    /// The places of the shuffle's lower half, from `from` on.
    const fn places<const N: usize>(from: u8) -> [u8; N] {
        let mut all = [0; N];
        let mut i = 0;
        while i < N {
            all[i] = from + (i / 2) as u8 + (i % 2 * N) as u8;
            i += 1;
        }
        all
    }

    macro_rules! turned {
        ($name:ident, $T:ident, $features:literal, $load:ident, $store:ident, $widen:ident,
         $shuffle:ident) => {
            /// `d[i * ds + k] = s[k * ss + i]`.
            ///
            /// # Safety
            /// The machine has the features, and the addresses are valid.
            #[inline]
            #[target_feature(enable = $features)]
            pub unsafe fn $name(d: *mut $T, s: *const $T, ds: isize, ss: isize) {
                const LOW: [u8; TILE] = places(0);
                const HIGH: [u8; TILE] = places(TILE as u8 / 2);
                // SAFETY: by the caller's promise.
                unsafe {
                    let low = $widen(_mm_loadu_si128(LOW.as_ptr().cast()));
                    let high = $widen(_mm_loadu_si128(HIGH.as_ptr().cast()));
                    let row = |k: usize| $load(s.offset(k as isize * ss).cast());
                    let mut rows: [_; TILE] = std::array::from_fn(row);
                    for _ in 0..4 {
                        let next = |k: usize| {
                            let place = if k % 2 == 0 { low } else { high };
                            $shuffle(rows[k / 2], place, rows[k / 2 + TILE / 2])
                        };
                        rows = std::array::from_fn(next);
                    }
                    for (i, row) in rows.into_iter().enumerate() {
                        $store(d.offset(i as isize * ds).cast(), row);
                    }
                }
            }
        };
    }
    turned!(
        words,
        u32,
        "avx512f",
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_cvtepu8_epi32,
        _mm512_permutex2var_epi32
    );
    turned!(
        halves,
        u16,
        "avx512f,avx512bw,avx512vl",
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_cvtepu8_epi16,
        _mm256_permutex2var_epi16
    );
}
