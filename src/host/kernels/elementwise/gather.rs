//! Inputs that do not lie row by row: broadcast, transposed, sliced with a step. A tile of one is
//! copied into a slot, in the order of the iteration.
//!
//! Called by the executor before the loops of a tile. Knows strides and bytes, no types and no ops.
//! Where the input's lines of memory run across the iteration, a band of the iteration is turned at
//! a time, so that each line is read once.

#![allow(unsafe_code)]

use crate::host::kernels::copy::{asked_ahead, copy_nest};
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::nest::{self, Nest};
use crate::host::kernels::reduce::Scratch;
use crate::host::kernels::run::copy_run;
use crate::host::kernels::stream::prefetch_all;
use crate::view::Serial;
use smallvec::SmallVec;

/// Bytes of a line of memory, as far as bands go: they are at least so wide.
const LINE: usize = 64;
/// Bytes of a band, at least, as far as its dimension goes: half of a first-level cache.
const BAND_LEAST: usize = 16 << 10;
/// Bytes of a band, at most: half of a second-level cache.
const BAND_BYTES: usize = 1 << 20;

/// Rows of at least so many bytes are read where they lie: loops begin anew with each of them.
const RUN: usize = if cfg!(all(test, debug_assertions)) { 16 } else { 2 << 10 };

/// One dimension: how many, and how many bytes from one to the next.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Dim {
    size: usize,
    stride: isize,
}

/// How an input lies, its dimensions joined as far as they can be.
pub(super) enum Lie {
    /// One element for all positions.
    Uniform,
    /// Row by row.
    Contiguous,
    /// Anything else.
    Strided(Gather),
}

/// A strided input.
pub(super) struct Gather {
    ptr: *const u8,
    /// Bytes of an element.
    pub size: usize,
    /// Outermost first.
    dims: SmallVec<[Dim; 4]>,
    /// Where a dimension only repeats: after so many positions everything comes again.
    pub period: Option<usize>,
    /// The positions over which it does; then the outer dimensions go on.
    repeats: usize,
    /// What the slot holds now: the place it begins at and how many elements.
    held: Option<(usize, usize)>,
    band: Option<Band>,
}

/// Some positions that follow each other, in their order.
struct Band {
    /// The dimension that runs along memory, of which a band has some indices.
    dim: usize,
    /// Positions of one of these indices, and of a band.
    each: usize,
    positions: usize,
    memory: Scratch,
    /// The first position of those in memory.
    first: Option<usize>,
}

impl Band {
    /// That of an input which lies across.
    fn of(dims: &[Dim], size: usize) -> Option<Band> {
        let (inner, outer) = dims.split_last()?;
        let along = |d: &Dim| d.stride.unsigned_abs() == size;
        let dim = outer.iter().position(along)?;
        if inner.stride.unsigned_abs() <= size || dims[dim].size < 8 {
            return None;
        }
        let each: usize = dims[dim + 1..].iter().map(|d| d.size).product();
        // A band of few is as long as a tile, and its lines of memory are read in rows.
        let wide =
            (BAND_LEAST / size / each.max(1)).next_multiple_of(LINE).max((LINE / size).max(16));
        let positions = each.saturating_mul(wide.min(dims[dim].size));
        (positions.saturating_mul(size) <= BAND_BYTES).then(|| Band {
            dim,
            each,
            positions,
            memory: Scratch::new(0),
            first: None,
        })
    }
}

/// Sizes and strides (in bytes) without ones, neighbours joined where one walk covers both.
fn joined(shape: &[usize], strides: &[isize], size: usize) -> SmallVec<[Dim; 4]> {
    let mut dims: SmallVec<[Dim; 4]> = SmallVec::new();
    for (&n, &s) in shape.iter().zip(strides) {
        let dim = Dim { size: n, stride: s * size as isize };
        match dims.last_mut() {
            _ if n == 1 => {}
            Some(last) if last.stride == dim.stride * n as isize => {
                *last = Dim { size: last.size * n, stride: dim.stride };
            }
            _ => dims.push(dim),
        }
    }
    dims
}

/// The positions in a row for which an input stays the same; at each multiple of them it may
/// change.
pub(super) fn stays(shape: &[usize], strides: &[isize]) -> usize {
    let dims = shape.iter().zip(strides).rev();
    dims.take_while(|&(&n, &s)| n == 1 || s == 0).map(|(n, _)| n).product()
}

/// Finds out how an input lies over the iteration shape.
pub(super) fn lie(ptr: *const u8, size: usize, shape: &[usize], strides: &[isize]) -> Lie {
    let dims = joined(shape, strides, size);
    match dims[..] {
        [] => return Lie::Contiguous, // one element
        [Dim { stride: 0, .. }] => return Lie::Uniform,
        [Dim { stride, .. }] if stride == size as isize => return Lie::Contiguous,
        _ => {}
    }
    let all = |dims: &[Dim]| dims.iter().map(|d| d.size).product::<usize>();
    // What lies across is read by bands, unless all of it comes again.
    let band = if dims[0].stride == 0 { None } else { Band::of(&dims, size) };
    let repeated = dims.iter().position(|d| d.stride == 0 && band.is_none());
    // What stays the same for some positions is no row that repeats.
    let period = repeated.map(|d| all(&dims[d + 1..])).filter(|&period| period > 1);
    let repeats = repeated.map_or(0, |d| all(&dims[d..]));
    Lie::Strided(Gather { ptr, size, dims, period, repeats, held: None, band })
}

impl Gather {
    /// Says how many positions are asked for in all: few are not worth a band.
    pub fn expect(&mut self, positions: usize) {
        self.band = self.band.take().filter(|band| positions >= 2 * band.positions);
    }

    /// Where the element at a position lies.
    pub fn at(&self, position: usize) -> *const u8 {
        let (mut offset, mut rest) = (0isize, position);
        for d in self.dims.iter().rev() {
            offset += (rest % d.size) as isize * d.stride;
            rest /= d.size;
        }
        self.ptr.wrapping_offset(offset)
    }

    /// Copies the element at a position.
    ///
    /// # Safety
    /// The input may be read there; `dst` has room for an element.
    pub unsafe fn element(&self, position: usize, dst: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(self.at(position), dst, self.size) };
    }

    /// The length of a row, if rows are too long to be worth copying and nothing repeats within a
    /// tile.
    pub fn run(&self, tile: usize) -> Option<usize> {
        let inner = self.dims.last()?;
        let is_long = inner.stride == self.size as isize && inner.size * self.size >= RUN;
        let is_kept = self.period.is_some_and(|period| period * self.size <= tile);
        (is_long && !is_kept).then_some(inner.size)
    }

    /// Copies the elements of a band, and of those that follow, as far as positions go.
    ///
    /// # Safety
    /// As for [`Gather::tile`].
    unsafe fn banded(&self, band: &mut Band, start: usize, n: usize, mut dst: *mut u8) {
        let (size, dim) = (self.size, self.dims[band.dim]);
        let whole = dim.size * band.each;
        let (mut at, end) = (start, start + n);
        while at < end {
            let (turn, within) = (at / whole, at % whole);
            let first = turn * whole + within / band.positions * band.positions;
            let len = band.positions.min((turn + 1) * whole - first);
            if band.first != Some(first) {
                if band.first.is_none() {
                    band.memory = Scratch::new(band.positions * size);
                }
                band.first = Some(first);
                let mut step = len as isize;
                let mut nest = Nest::default();
                for (k, d) in self.dims.iter().enumerate().skip(band.dim) {
                    let n = if k == band.dim { len / band.each } else { d.size };
                    step /= n as isize;
                    let step = [step, d.stride / size as isize];
                    nest.dims.push(nest::Dim { size: n, step });
                }
                copy_nest(nest, size, band.memory.ptr(), self.at(first), &Serial);
            }
            let run = (end - at).min(first + len - at);
            let from = band.memory.ptr().wrapping_add((at - first) * size);
            // SAFETY: the band has been written; `dst` has room by the caller's promise.
            unsafe { copy_run(dst, from, run * size) };
            dst = dst.wrapping_add(run * size);
            at += run;
        }
    }

    /// Copies the elements at positions `start..start + n` to `dst`.
    ///
    /// # Safety
    /// The input may be read at every position, `dst` is valid for writes of `n` elements, does not
    /// overlap the input, and still holds what the last call put there.
    pub unsafe fn tile(&mut self, start: usize, n: usize, dst: *mut u8) {
        if let Some(period) = self.period {
            let (turn, within) = (start / self.repeats, start % self.repeats);
            let place = turn * period + within % period;
            let stays = within + n <= self.repeats;
            if stays && self.held.is_some_and(|(p, m)| p == place && m >= n) {
                return;
            }
            self.held = stays.then_some((place, n));
        }
        if let Some(mut band) = self.band.take() {
            // SAFETY: the caller's promise.
            unsafe { self.banded(&mut band, start, n, dst) };
            self.band = Some(band);
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            match self.size {
                1 => self.copy::<u8>(start, n, dst.cast()),
                2 => self.copy::<u16>(start, n, dst.cast()),
                4 => self.copy::<u32>(start, n, dst.cast()),
                _ => self.copy::<u64>(start, n, dst.cast()),
            }
        }
    }

    /// # Safety
    /// As for [`Gather::tile`], for elements as large as `T`.
    unsafe fn copy<T: Copy>(&self, start: usize, n: usize, mut dst: *mut T) {
        let (&inner, outer) = self.dims.split_last().expect("a strided input has dimensions");
        // The place of `start`: coordinates of the outer dimensions and how far into the inner one.
        let mut rest = start / inner.size;
        let mut i = start % inner.size;
        let mut index: SmallVec<[usize; 4]> = SmallVec::from_elem(0, outer.len());
        let mut row = 0isize;
        for (k, dim) in outer.iter().enumerate().rev() {
            index[k] = rest % dim.size;
            row += index[k] as isize * dim.stride;
            rest /= dim.size;
        }
        let step = outer.last().map_or(0, |d| d.stride);
        let ahead = asked_ahead(step, inner.size * size_of::<T>());
        let mut left = n;
        while left > 0 {
            let run = left.min(inner.size - i);
            let src = self.ptr.wrapping_offset(row + i as isize * inner.stride);
            // SAFETY: positions of the run are inside the shape, and `left` elements of `dst` are
            // ours.
            unsafe {
                if inner.stride == size_of::<T>() as isize {
                    if ahead != 0 {
                        prefetch_all(src.wrapping_offset(ahead), run * size_of::<T>());
                    }
                    copy_run(dst, src.cast(), run);
                } else if inner.stride == 0 {
                    let x = *src.cast::<T>();
                    if run <= 8 {
                        (0..run).for_each(|j| dst.add(j).write(x));
                    } else {
                        vectorize!(move || (0..run).for_each(|j| dst.add(j).write(x)));
                    }
                } else {
                    for j in 0..run {
                        dst.add(j).write(*src.wrapping_offset(j as isize * inner.stride).cast());
                    }
                }
                dst = dst.add(run);
            }
            left -= run;
            i = 0;
            for (k, dim) in outer.iter().enumerate().rev() {
                index[k] += 1;
                row += dim.stride;
                if index[k] < dim.size {
                    break;
                }
                index[k] = 0;
                row -= dim.size as isize * dim.stride;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_that_one_walk_covers_are_joined() {
        let dim = |size, stride| Dim { size, stride };
        assert_eq!(joined(&[2, 1, 3, 4], &[12, 99, 4, 1], 4)[..], [dim(24, 4)]);
        assert_eq!(joined(&[2, 3, 4], &[0, 0, 1], 4)[..], [dim(6, 0), dim(4, 4)]);
        assert_eq!(joined(&[2, 3], &[-3, -1], 1)[..], [dim(6, -1)]);
        assert_eq!(joined(&[2, 3], &[1, 2], 8)[..], [dim(2, 8), dim(3, 16)]);
        assert!(joined(&[], &[], 8).is_empty());
    }

    #[test]
    fn what_lies_across_is_turned_by_bands() {
        // Planes whose rows and columns are changed, with a stride between.
        let (planes, rows, cols) = (3usize, 70usize, 45usize);
        let all: Vec<u32> = (0..(planes * rows * cols) as u32).collect();
        let strides = [(rows * cols) as isize, 1, cols as isize];
        let shape = [planes, cols, rows];
        let Lie::Strided(mut g) = lie(all.as_ptr().cast(), 4, &shape, &strides) else { panic!() };
        g.expect(all.len());
        assert!(g.band.is_some());
        let want = |i: usize| {
            let (p, c, r) = (i / (rows * cols), i / rows % cols, i % rows);
            all[p * rows * cols + r * cols + c]
        };
        for (start, n) in [(0, 500), (499, 3000), (3499, 5951), (100, 7)] {
            let mut out = vec![0u32; n];
            // SAFETY: so many elements from there on.
            unsafe { g.tile(start, n, out.as_mut_ptr().cast()) };
            assert!(out.iter().enumerate().all(|(i, &x)| x == want(start + i)), "{start} {n}");
        }
    }

    #[test]
    fn a_row_that_repeats_is_copied_once() {
        let row = [1u32, 2, 3];
        let Lie::Strided(mut g) = lie(row.as_ptr().cast(), 4, &[4, 3], &[0, 1]) else { panic!() };
        assert_eq!(g.period, Some(3));
        let mut out = [0u32; 6];
        // SAFETY: six elements from position 3 on.
        unsafe { g.tile(3, 6, out.as_mut_ptr().cast()) };
        assert_eq!(out, [1, 2, 3, 1, 2, 3]);
        out[0] = 9; // stays, since the same phase is not copied again
        // SAFETY: as above.
        unsafe { g.tile(6, 6, out.as_mut_ptr().cast()) };
        assert_eq!(out[0], 9);
        // SAFETY: as above.
        unsafe { g.tile(7, 5, out.as_mut_ptr().cast()) };
        assert_eq!(out, [2, 3, 1, 2, 3, 3]);
    }
}
