//! Rows of a copy.
//!
//! Called by [`copy_nest`](super::copy_nest), which has put the loops into their order.

use super::super::isa::vectorize;
use super::super::nest::{Dim, Nest, Shared, in_parts};
use super::super::run::{by_pieces, copy_run};
use super::super::simd::level;
use super::super::stream::{self, LINE, prefetch_all};
use crate::view::Parallel;

/// Rows of so many bytes are copied by loops that the compiler knows, and asked for ahead.
pub(super) const SHORT: usize = 1 << 10;

/// Bytes of runs that are asked for ahead of those that are copied: no machine foresees runs that
/// lie apart.
const AHEAD: usize = 2 << 10;

/// The distance to the run that is prefetched while a run of `bytes` is copied, in the unit of
/// `step`, the distance between neighbours. It is 0 where nothing is prefetched. (Computed for each
/// run, the division took 15 cycles of it.)
#[inline(always)]
pub(in super::super) fn asked_ahead(step: isize, bytes: usize) -> isize {
    match (LINE..=SHORT).contains(&bytes) {
        true => (AHEAD / bytes).max(2) as isize * step,
        false => 0,
    }
}

/// Copies rows of `n` elements that lie side by side on both sides, `least` of them at a time or
/// more.
pub(super) fn short_rows<T: Copy + Send + Sync>(
    mut outer: Nest<2>,
    n: usize,
    to: Shared<T>,
    from: Shared<T>,
    least: usize,
    par: &dyn Parallel,
) {
    let rows = outer.numel();
    let along = outer.dims.pop().unwrap_or(Dim { size: 1, step: [0, 0] });
    in_parts(rows, least, par, &|part| {
        vectorize!(|| {
            let mut next = part.start;
            while next < part.end {
                let (at, first) = (next / along.size, next % along.size);
                let count = (along.size - first).min(part.end - next);
                let [d, s] = outer.at(at);
                let [ds, ss] = along.step;
                let (d, s) = (to.at(d + first as isize * ds), from.at(s + first as isize * ss));
                // SAFETY: both views are valid at every index of the shape, which these are; parts
                // write elements that do not meet; what is written is nobody else's.
                unsafe {
                    match n * size_of::<T>() {
                        64.. => rows_by_pieces::<T, 64>(d, s, count, [ds, ss], n),
                        32.. => rows_by_pieces::<T, 32>(d, s, count, [ds, ss], n),
                        16.. => rows_by_pieces::<T, 16>(d, s, count, [ds, ss], n),
                        8.. => rows_by_pieces::<T, 8>(d, s, count, [ds, ss], n),
                        _ => (0..count as isize).for_each(|r| {
                            (0..n).for_each(|i| *d.offset(r * ds).add(i) = *s.offset(r * ss).add(i))
                        }),
                    }
                }
                next += count;
            }
        });
    });
}

/// Copies rows of at least `BYTES`.
///
/// # Safety
/// `d` is valid for writes and `s` for reads of `n` elements at each of `rows` steps, and they do
/// not overlap.
#[inline(always)]
unsafe fn rows_by_pieces<T: Copy, const BYTES: usize>(
    d: *mut T,
    s: *const T,
    rows: usize,
    step: [isize; 2],
    n: usize,
) {
    let bytes = n * size_of::<T>();
    let ahead = asked_ahead(step[1], bytes);
    let (mut d, mut s) = (d, s);
    for _ in 0..rows {
        if ahead != 0 {
            prefetch_all(s.wrapping_offset(ahead), n);
        }
        // SAFETY: by the caller's promise.
        unsafe { by_pieces::<BYTES>(d.cast(), s.cast(), bytes) };
        (d, s) = (d.wrapping_offset(step[0]), s.wrapping_offset(step[1]));
    }
}

/// One row, around the cache.
///
/// # Safety
/// As for [`copy_row`]; elements of `d` lie side by side, and those of `s` as well or in one place.
pub(super) unsafe fn stream_row<T: Copy>(d: *mut T, s: *const T, n: usize, step: [isize; 2]) {
    // SAFETY: by the caller's promise.
    unsafe {
        match step[1] {
            0 => stream::fill(level(), *s, d, n),
            _ => {
                let bytes = n * size_of::<T>();
                stream::copy(level(), s.cast(), d.cast(), bytes);
            }
        }
    }
}

/// One row.
///
/// # Safety
/// `d` is valid for writes and `s` for reads at `i * step` for `i` below `n`, and they do not
/// overlap.
#[inline(always)]
pub(super) unsafe fn copy_row<T: Copy>(d: *mut T, s: *const T, n: usize, step: [isize; 2]) {
    // SAFETY: by the caller's promise, in each arm.
    unsafe {
        match step {
            [1, 1] => copy_run(d, s, n),
            [1, 0] => {
                let x = *s;
                (0..n).for_each(|i| *d.add(i) = x);
            }
            // A step that the compiler knows is a shuffle.
            [1, 2] => (0..n).for_each(|i| *d.add(i) = *s.add(2 * i)),
            [1, 3] => (0..n).for_each(|i| *d.add(i) = *s.add(3 * i)),
            [1, 4] => (0..n).for_each(|i| *d.add(i) = *s.add(4 * i)),
            [1, step] => (0..n as isize).for_each(|i| *d.offset(i) = *s.offset(i * step)),
            [a, b] => (0..n as isize).for_each(|i| *d.offset(i * a) = *s.offset(i * b)),
        }
    }
}
