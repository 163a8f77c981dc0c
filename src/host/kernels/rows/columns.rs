//! Softmax across memory, and `logsumexp` both ways.
//!
//! Neighbouring columns are worked on side by side, in strips that stay in cache from the first
//! look for the largest element to the last division.

use super::super::isa::{Levelled, at_level};
use super::super::load::{Load, Row, Widened, over, over_columns};
use super::super::nest::{Nest, Shared, in_parts, slice_of};
use super::super::reduce::fold::{BLOCK, Max, Sum, Tree, fold_block};
use super::super::simd::Simd;
use super::super::stream::{LINE, prefetch_all_second};
use super::{Float, Form, LEAST, base, loaded};
use crate::view::{Parallel, View, ViewMut};
use std::marker::PhantomData;
use std::ops::Range;

/// Numbers that a strip keeps: these fit the second-level cache.
const STRIP: usize = 64 << 10;
/// Columns of a strip.
pub(super) const COLUMNS: usize = 256;
/// So many rows on, the memory is asked for a row: no machine fetches ahead across pages.
pub(super) const AHEAD: usize = 16;
/// Rows whose sum is put aside, so that errors do not grow with all rows.
const ROWS: usize = 128;

/// Columns cut into strips of whole lines of memory, where the rows begin with one.
#[derive(Clone, Copy)]
pub(super) struct Strips {
    /// Columns, and those that a line has.
    inner: usize,
    in_line: usize,
    pub count: usize,
}

impl Strips {
    /// Of `inner` columns of height `n`.
    pub fn new<T>(n: usize, inner: usize) -> Strips {
        let in_line = LINE / size_of::<T>().max(1);
        let wide = (STRIP / n.max(1)).clamp(in_line, COLUMNS);
        Strips { inner, in_line, count: inner.div_ceil(wide - wide % in_line) }
    }

    /// Those of a strip.
    pub fn columns(self, strip: usize) -> Range<usize> {
        let lines = slice_of(self.inner.div_ceil(self.in_line), self.count, strip);
        lines.start * self.in_line..self.inner.min(lines.end * self.in_line)
    }

    /// The columns of the widest strip.
    pub fn wide(self) -> usize {
        self.columns(0).len()
    }
}

pub(super) fn softmax<T: Load<W>, W: Float>(
    outer: &Nest<1>,
    from: Shared<T>,
    to: Shared<T>,
    [n, inner]: [usize; 2],
    step: isize,
    form: Form,
    par: &dyn Parallel,
) {
    let strips = Strips::new::<T>(n, inner);
    let cuts = strips.count;
    in_parts(outer.numel() * cuts, (LEAST * cuts / (n * inner)).max(1), par, &|units| {
        W::with_scratch(n * strips.wide(), |scratch| {
            for unit in units {
                let columns = strips.columns(unit % cuts);
                let [offset] = outer.at(unit / cuts);
                let x = from.at(offset + columns.start as isize);
                let y = to.at((unit / cuts * n * inner + columns.start) as isize);
                let (x, y) = (Shared::<T>::new(x), Shared::<T>::new(y));
                let of = Powers { x, step, n, wide: columns.len(), form };
                at_level(Strip { of, y, out_step: inner, scratch });
            }
        });
    });
}

/// `wide` columns of `n` elements.
pub(super) struct Powers<T> {
    pub x: Shared<T>,
    pub step: isize,
    pub n: usize,
    pub wide: usize,
    pub form: Form,
}

/// The same, and where the result goes.
struct Strip<'a, T, W> {
    of: Powers<T>,
    y: Shared<T>,
    out_step: usize,
    scratch: &'a mut [W],
}

/// Largest elements and sums of a strip's columns. On the stack they lie anywhere, and a strip
/// takes longer where they cross cache lines.
#[repr(align(64))]
pub(super) struct Totals<W> {
    largest: [W; COLUMNS],
    pub sum: [W; COLUMNS],
    some: [W; COLUMNS],
}

impl<W: Float> Totals<W> {
    #[inline(always)]
    pub fn new() -> Totals<W> {
        Totals { largest: [W::LEAST; COLUMNS], sum: [W::ZERO; COLUMNS], some: [W::ZERO; COLUMNS] }
    }
    /// The sums to which row `r` is to be added.
    #[inline(always)]
    pub fn of_row(&mut self, r: usize, wide: usize) -> *mut W {
        if r.is_multiple_of(ROWS) {
            self.put_aside(wide);
        }
        self.some.as_mut_ptr()
    }
    #[inline(always)]
    pub fn put_aside(&mut self, wide: usize) {
        for (sum, some) in self.sum[..wide].iter_mut().zip(&mut self.some) {
            *sum = sum.add(*some);
            *some = W::ZERO;
        }
    }
}

/// Exponentials of elements, less one number.
pub(super) struct Less<T, W> {
    pub from: *const T,
    pub less: W,
    pub to: *mut W,
}

impl<T: Load<W>, W: Float> Row for Less<T, W> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let mut all = T::load_some::<S, N>(self.from.add(i));
            for x in &mut all {
                *x = x.sub(self.less).exp_of_difference::<S>();
            }
            self.to.add(i).cast::<[W; N]>().write(all);
        }
    }
}

/// Elements of a row of columns as they are computed with, and the largest of each column so far.
struct Looked<T, W> {
    from: *const T,
    to: *mut W,
    largest: *mut W,
}

impl<T: Load<W>, W: Float> Row for Looked<T, W> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let all = T::load_some::<S, N>(self.from.add(i));
            let mut largest = self.largest.add(i).cast::<[W; N]>().read();
            for k in 0..N {
                largest[k] = largest[k].larger(all[k]);
            }
            self.largest.add(i).cast::<[W; N]>().write(largest);
            self.to.add(i).cast::<[W; N]>().write(all);
        }
    }
}

/// Elements of a row of columns become their exponentials, less the largest of each column, and
/// these are added to the sums; of a logarithm the differences stay.
struct Powered<W> {
    row: *mut W,
    largest: *const W,
    sums: *mut W,
    is_log: bool,
}

impl<W: Float> Row for Powered<W> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let mut all = self.row.add(i).cast::<[W; N]>().read();
            let largest = self.largest.add(i).cast::<[W; N]>().read();
            let mut sums = self.sums.add(i).cast::<[W; N]>().read();
            for k in 0..N {
                let less = all[k].sub(largest[k]);
                let power = less.exp_of_difference::<S>();
                sums[k] = sums[k].add(power);
                all[k] = if self.is_log { less } else { power };
            }
            self.sums.add(i).cast::<[W; N]>().write(sums);
            self.row.add(i).cast::<[W; N]>().write(all);
        }
    }
}

/// Elements of a row of columns as they end.
struct Ended<T, W> {
    row: *const W,
    ends: *const W,
    to: *mut T,
    is_log: bool,
}

impl<T: Load<W>, W: Float> Row for Ended<T, W> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let mut all = self.row.add(i).cast::<[W; N]>().read();
            let ends = self.ends.add(i).cast::<[W; N]>().read();
            for k in 0..N {
                all[k] = super::ended(all[k], ends[k], self.is_log);
            }
            T::store_some::<S, N>(all, self.to.add(i));
        }
    }
}

impl<T> Powers<T> {
    /// Leaves the exponentials of the columns in memory, or the logarithm's differences, and gives
    /// what ends them.
    #[inline(always)]
    pub fn left_in<W: Float, S: Simd>(&self, scratch: &mut [W]) -> Totals<W>
    where
        T: Load<W>,
    {
        let (wide, form) = (self.wide, self.form);
        let mut totals = Totals::<W>::new();
        // Lines of memory that lie far from each other are read and written once.
        for (r, keep) in scratch.chunks_mut(wide).take(self.n).enumerate() {
            prefetch_all_second(self.x.at((r + AHEAD) as isize * self.step), wide);
            let from = self.x.at(r as isize * self.step);
            let (to, largest) = (keep.as_mut_ptr(), totals.largest.as_mut_ptr());
            // SAFETY: a row of the strip, and room for it. A level is one that the machine has.
            unsafe { over_columns::<T, W, S>(wide, Looked { from, to, largest }) };
        }
        totals.largest[..wide].iter_mut().for_each(|largest| *largest = form.base(*largest));
        for (r, keep) in scratch.chunks_mut(wide).take(self.n).enumerate() {
            let (row, sums) = (keep.as_mut_ptr(), totals.of_row(r, wide));
            let (largest, is_log) = (totals.largest.as_ptr(), form.is_log());
            // SAFETY: a row of the scratch. A level is one that the machine has.
            unsafe { over_columns::<W, W, S>(wide, Powered { row, largest, sums, is_log }) };
        }
        totals.put_aside(wide);
        for sum in &mut totals.sum[..wide] {
            *sum = form.end::<S, W>(*sum);
        }
        totals
    }
}

impl<T: Load<W>, W: Float> Levelled for Strip<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Powers { n, wide, form, .. } = self.of;
        let totals = self.of.left_in::<W, S>(self.scratch);
        for (r, keep) in self.scratch.chunks(wide).take(n).enumerate() {
            prefetch_all_second(self.y.at(((r + AHEAD) * self.out_step) as isize), wide);
            let to = self.y.at((r * self.out_step) as isize);
            let (row, ends, is_log) = (keep.as_ptr(), totals.sum.as_ptr(), form.is_log());
            // SAFETY: a row of the scratch, and one of the output's strip, which is this unit's
            // own; a level is one that the machine has.
            unsafe { over_columns::<T, W, S>(wide, Ended { row, ends, to, is_log }) };
        }
    }
}

pub(super) fn logsumexp<T: Load<W>, W: Float>(
    x: View<'_>,
    dim: usize,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let (n, step) = (x.shape[dim], x.strides[dim]);
    let (mut shape, mut strides) = (x.shape.to_vec(), x.strides.to_vec());
    shape.remove(dim);
    strides.remove(dim);
    let own = crate::shape::contiguous_strides(&shape);
    let mut kept = Nest::new(&shape, [&own, &strides]).merged();
    let (from, to) = (Shared::<T>::new(x.ptr.cast_mut()), Shared::<T>::new(out.ptr));
    // Side by side where the last kept dimension lies so and the reduced one does not.
    let wide = match kept.dims.last() {
        Some(d) if d.step == [1, 1] && step != 1 => kept.dims.pop().map_or(1, |d| d.size),
        _ => 1,
    };
    let strips = (wide > 1).then(|| Strips::new::<T>(n, wide));
    let cuts = strips.map_or(1, |strips| strips.count);
    in_parts(kept.numel() * cuts, (LEAST * cuts / (n * wide).max(1)).max(1), par, &|units| {
        let sums = Sums { kept: &kept, units, strips, n, step, from, to };
        at_level(In::<T, W>(sums, PhantomData));
    });
}

/// Units of work of a `logsumexp`.
struct Sums<'a, T> {
    kept: &'a Nest<2>,
    units: Range<usize>,
    /// None where elements are reduced that lie side by side.
    strips: Option<Strips>,
    n: usize,
    step: isize,
    from: Shared<T>,
    to: Shared<T>,
}

/// The result, of a sum of exponentials and what was subtracted. Beside an infinite element the
/// others do not count.
#[inline(always)]
fn ended<W: Float, S: Simd>(sum: W, base: W) -> W {
    if base == W::MOST { base } else { sum.log::<S>().add(base) }
}

impl<T> Sums<'_, T> {
    #[inline(always)]
    fn narrow<W: Float, S: Simd>(&self, first: isize) -> W
    where
        T: Load<W>,
    {
        let mut tile = [W::ZERO; BLOCK];
        let mut largest = W::LEAST;
        // Elements of the input, here and below.
        let at = |i: usize| self.from.at(first + i as isize * self.step);
        for start in (0..self.n).step_by(BLOCK) {
            let len = BLOCK.min(self.n - start);
            if self.step == 1 {
                // SAFETY: there is room for a block; a level is one that the machine has.
                let block = unsafe {
                    let wide = loaded::<T, W, S>(at(start), len, tile.as_mut_ptr());
                    std::slice::from_raw_parts(wide, len)
                };
                largest = largest.larger(fold_block::<Max<W, W, W>>(block));
                continue;
            }
            for (i, t) in tile[..len].iter_mut().enumerate() {
                // SAFETY: an element of the input.
                *t = unsafe { *at(start + i) }.load();
            }
            largest = largest.larger(fold_block::<Max<W, W, W>>(&tile[..len]));
        }
        let base = base(largest);
        let mut tree = Tree::new();
        for start in (0..self.n).step_by(BLOCK) {
            let len = BLOCK.min(self.n - start);
            if self.step == 1 {
                let (from, to) = (at(start).cast_const(), tile.as_mut_ptr());
                // SAFETY: as above.
                unsafe { over::<T, W, S>(len, Less { from, less: base, to }) };
            } else {
                for (i, t) in tile[..len].iter_mut().enumerate() {
                    // SAFETY: as above.
                    *t = unsafe { *at(start + i) }.load().sub(base).exp_of_difference::<S>();
                }
            }
            tree.push(fold_block::<Sum<W, W, W>>(&tile[..len]), W::add);
        }
        ended::<W, S>(tree.end(W::add).unwrap_or(W::ZERO), base)
    }
}

/// Binds the type that sums are computed in.
struct In<'a, T, W>(Sums<'a, T>, PhantomData<W>);

impl<T: Load<W>, W: Float> Levelled for In<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let s = self.0;
        for unit in s.units.clone() {
            let Some(strips) = s.strips else {
                let [at, offset] = s.kept.at(unit);
                let sum: W = s.narrow::<W, S>(offset);
                // SAFETY: an index of the output.
                unsafe { s.to.at(at).write(T::store(sum)) };
                continue;
            };
            let [at, offset] = s.kept.at(unit / strips.count);
            let columns = strips.columns(unit % strips.count);
            let (wide, first) = (columns.len(), columns.start as isize);
            let mut room = [W::ZERO; COLUMNS];
            let mut totals = Totals::<W>::new();
            for r in 0..s.n {
                let from = s.from.at(offset + first + r as isize * s.step);
                let (to, largest) = (room.as_mut_ptr(), totals.largest.as_mut_ptr());
                // SAFETY: a row of the strip; a level is one that the machine has.
                unsafe { over_columns::<T, W, S>(wide, Looked { from, to, largest }) };
            }
            for l in &mut totals.largest[..wide] {
                *l = base(*l);
            }
            for r in 0..s.n {
                let from = s.from.at(offset + first + r as isize * s.step);
                let (row, sums) = (room.as_mut_ptr(), totals.of_row(r, wide));
                let largest = totals.largest.as_ptr();
                // SAFETY: as above.
                unsafe {
                    over_columns::<T, W, S>(wide, Widened { from, to: row });
                    over_columns::<W, W, S>(wide, Powered { row, largest, sums, is_log: false });
                }
            }
            totals.put_aside(wide);
            for w in 0..wide {
                let x = ended::<W, S>(totals.sum[w], totals.largest[w]);
                // SAFETY: indices of the output.
                unsafe { s.to.at(at + first + w as isize).write(T::store(x)) };
            }
        }
    }
}
