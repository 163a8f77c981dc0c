//! What flows back through softmax and its logarithm, from their results or from what they were
//! computed of: of halves these are computed again, in less time than it takes to read them in f32.

use super::super::isa::{Levelled, at_level};
use super::super::load::{self, Load, Widened, by_float, over, over_columns};
use super::super::nest::{Nest, Shared, in_parts};
use super::super::reduce::fold::{BLOCK, MaxNumber, Sum, Tree, fold_block};
use super::super::simd::Simd;
use super::super::stream::prefetch_all_second;
use super::columns::{self, COLUMNS, Strips, Totals};
use super::norm_back::ordered;
use super::{Float, Form, LEAST, Made, ended};
use crate::view::{Parallel, View, ViewMut};

/// Of `g`, and of the result or the operand: `y (g - sum(g y))` along a dimension, or of the
/// logarithm `g - e^y sum(g)`.
pub(crate) fn softmax_back(
    g: View<'_>,
    of: View<'_>,
    dim: usize,
    form: Form,
    is_result: bool,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    by_float!(of.dtype, back(g, of, dim, (form, is_result), out, par));
}

fn back<T: Load<W> + Default, W: Float>(
    g: View<'_>,
    of: View<'_>,
    dim: usize,
    (form, is_result): (Form, bool),
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let (n, inner) = (of.shape[dim], crate::shape::numel(&of.shape[dim + 1..]));
    let lead = if inner == 1 { dim } else { dim + 1 };
    let to = Shared::<T>::new(out.ptr);
    ordered::<T>(g, lead, par, &mut |g| {
        ordered::<T>(of, lead, par, &mut |of| {
            let strides = [g.strides, of.strides];
            let outer = Nest::new(&of.shape[..dim], strides.map(|s| &s[..dim])).merged();
            let from = [g, of].map(|view| Shared::<T>::new(view.ptr.cast_mut()));
            let step = strides.map(|s| s[dim]);
            let strips = Strips::new::<T>(n, inner);
            let cuts = strips.count;
            let least = (LEAST * cuts / (n * inner)).max(1);
            in_parts(outer.numel() * cuts, least, par, &|units| {
                let room = if inner == 1 && is_result { 0 } else { n * strips.wide() };
                W::with_scratch(room, |scratch| {
                    for unit in units {
                        let at = outer.at(unit / cuts);
                        let columns = strips.columns(unit % cuts);
                        let first = columns.start as isize;
                        let [g, x]: [Shared<T>; 2] =
                            std::array::from_fn(|k| Shared::new(from[k].at(at[k] + first)));
                        let to = to.at((unit / cuts * n * inner) as isize + first);
                        let to = Shared::<T>::new(to);
                        let how = How { n, form, is_result };
                        match inner {
                            1 => at_level(Row { g, x, to, how, scratch }),
                            _ => at_level(Strip {
                                g,
                                x,
                                step,
                                to,
                                out_step: inner,
                                wide: columns.len(),
                                how,
                                scratch,
                            }),
                        }
                    }
                });
            });
        });
    });
}

#[derive(Clone, Copy)]
struct How {
    n: usize,
    form: Form,
    is_result: bool,
}

/// A row whose elements lie side by side.
struct Row<'a, T, W> {
    g: Shared<T>,
    x: Shared<T>,
    to: Shared<T>,
    how: How,
    scratch: &'a mut [W],
}

impl<T: Load<W>, W: Float> Levelled for Row<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (How { n, form, is_result }, g, to) = (self.how, self.g.at(0), self.to.at(0));
        // SAFETY: rows of the operands and of the output, which is this part's own, and room for
        // what is loaded. A level is one that the machine has.
        unsafe {
            if is_result {
                let y = Finished { y: self.x.at(0).cast_const(), end: nothing(form), form };
                return back_row::<T, T, W, S>(g, y, to, n);
            }
            let end = powers_of::<T, W, S>(self.x.at(0), self.scratch, form);
            back_row::<T, W, W, S>(g, Finished { y: self.scratch.as_ptr(), end, form }, to, n);
        }
    }
}

/// A row's exponentials, or the logarithm's differences, and the number that makes results of them.
#[derive(Clone, Copy)]
struct Finished<Y, W> {
    y: *const Y,
    end: W,
    form: Form,
}

impl<Y: Load<W>, W: Float> Finished<Y, W> {
    /// Elements of the result.
    ///
    /// # Safety
    /// There are `N`, and the machine has what the level says.
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) -> [W; N] {
        // SAFETY: by the caller's promise.
        let mut all = unsafe { Y::load_some::<S, N>(self.y.add(i)) };
        for x in &mut all {
            *x = ended(*x, self.end, self.form.is_log());
        }
        all
    }

    /// Those from an element on.
    #[inline(always)]
    fn from(&self, first: usize) -> Finished<Y, W> {
        Finished { y: self.y.wrapping_add(first), end: self.end, form: self.form }
    }
}

/// What ends results that are there already.
#[inline(always)]
fn nothing<W: Float>(form: Form) -> W {
    if form.is_log() { W::ZERO } else { W::ONE }
}

/// What flows back through a row with this result. Halves are read twice: that takes less time than
/// to write them down in float32.
///
/// # Safety
/// All are rows of `n` elements, the output meets no other, and the machine has what the level
/// says.
#[inline(always)]
unsafe fn back_row<T: Load<W>, Y: Load<W>, W: Float, S: Simd>(
    g: *const T,
    y: Finished<Y, W>,
    to: *mut T,
    n: usize,
) {
    let mut tree = Tree::new();
    for first in (0..n).step_by(BLOCK) {
        let (len, mut terms) = (BLOCK.min(n - first), [W::ZERO; BLOCK]);
        // SAFETY: a block of the rows, by the caller's promise.
        unsafe {
            let (g, to) = (g.add(first), terms.as_mut_ptr());
            over::<T, W, S>(len, Terms { g, y: y.from(first), to });
        }
        tree.push(fold_block::<Sum<W, W, W>>(&terms[..len]), W::add);
    }
    let total = tree.end(W::add).unwrap_or(W::ZERO);
    for first in (0..n).step_by(BLOCK) {
        let len = BLOCK.min(n - first);
        // SAFETY: as above; all of the block is made before it is brought to memory.
        unsafe {
            let mut made = Made::<T, W, BLOCK>::new(to.add(first), len);
            let (g, to) = (g.add(first), made.room().as_mut_ptr().cast());
            over::<T, W, S>(len, Flows { g, y: y.from(first), to, total });
            made.end::<S>();
        }
    }
}

/// What is summed up over a row.
struct Terms<T, Y, W> {
    g: *const T,
    y: Finished<Y, W>,
    to: *mut W,
}

impl<T: Load<W>, Y: Load<W>, W: Float> load::Row for Terms<T, Y, W> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let mut terms = T::load_some::<S, N>(self.g.add(i));
            if !self.y.form.is_log() {
                let y = self.y.some::<S, N>(i);
                for k in 0..N {
                    terms[k] = terms[k].mul(y[k]);
                }
            }
            self.to.add(i).cast::<[W; N]>().write(terms);
        }
    }
}

/// What flows back to a row's elements.
struct Flows<T, Y, W> {
    g: *const T,
    y: Finished<Y, W>,
    to: *mut W,
    total: W,
}

impl<T: Load<W>, Y: Load<W>, W: Float> load::Row for Flows<T, Y, W> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let g = T::load_some::<S, N>(self.g.add(i));
            let y = self.y.some::<S, N>(i);
            for k in 0..N {
                self.to.add(i + k).write(flows::<W, S>(g[k], y[k], self.total, self.y.form));
            }
        }
    }
}

#[inline(always)]
fn flows<W: Float, S: Simd>(g: W, y: W, total: W, form: Form) -> W {
    match form {
        Form::Log => g.sub(y.exp_of_difference::<S>().mul(total)),
        Form::Plain | Form::Safe => y.mul(g.sub(total)),
    }
}

/// Leaves the exponentials of a row in memory, or the logarithm's differences, and gives what ends
/// them.
///
/// # Safety
/// The row has as many elements; the machine has what the level says.
#[inline(always)]
unsafe fn powers_of<T: Load<W>, W: Float, S: Simd>(from: *const T, to: &mut [W], form: Form) -> W {
    // A NaN does not show here: it makes the sum NaN, and so the whole row.
    let mut largest = W::LEAST;
    for (b, block) in to.chunks_mut(BLOCK).enumerate() {
        // SAFETY: a block of the row, by the caller's promise, and room for it.
        unsafe {
            let from = from.add(b * BLOCK);
            over::<T, W, S>(block.len(), Widened { from, to: block.as_mut_ptr() });
        }
        let next = fold_block::<MaxNumber<W, W, W>>(block);
        largest = if next > largest { next } else { largest };
    }
    let (largest, mut tree) = (form.base(largest), Tree::new());
    for x in to.chunks_mut(BLOCK) {
        let sum = if form.is_log() {
            let mut powers = [W::ZERO; BLOCK];
            for (power, x) in powers.iter_mut().zip(&mut *x) {
                *x = x.sub(largest);
                *power = x.exp_of_difference::<S>();
            }
            fold_block::<Sum<W, W, W>>(&powers[..x.len()])
        } else {
            for x in &mut *x {
                *x = x.sub(largest).exp_of_difference::<S>();
            }
            fold_block::<Sum<W, W, W>>(x)
        };
        tree.push(sum, W::add);
    }
    form.end::<S, W>(tree.end(W::add).unwrap_or(W::ZERO))
}

/// `wide` columns.
struct Strip<'a, T, W> {
    g: Shared<T>,
    x: Shared<T>,
    step: [isize; 2],
    to: Shared<T>,
    out_step: usize,
    wide: usize,
    how: How,
    scratch: &'a mut [W],
}

impl<T: Load<W>, W: Float> Levelled for Strip<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let How { n, form, is_result } = self.how;
        let (wide, scratch) = (self.wide, self.scratch);
        let ends = match is_result {
            true => {
                for (r, y) in scratch.chunks_mut(wide).take(n).enumerate() {
                    let from = later(self.x, r, self.step[1], wide);
                    // SAFETY: a row of the strip, and room for it; a level is one that the machine
                    // has.
                    unsafe { over_columns::<T, W, S>(wide, Widened { from, to: y.as_mut_ptr() }) };
                }
                [nothing(form); COLUMNS]
            }
            false => {
                let of = columns::Powers { x: self.x, step: self.step[1], n, wide, form };
                of.left_in::<W, S>(scratch).sum
            }
        };
        let (mut totals, ends) = (Totals::<W>::new(), ends.as_ptr());
        for (r, y) in scratch.chunks_mut(wide).take(n).enumerate() {
            let g = later(self.g, r, self.step[0], wide);
            let (y, sums) = (y.as_mut_ptr(), totals.of_row(r, wide));
            // SAFETY: a row of the strip; a level is one that the machine has.
            unsafe { over_columns::<T, W, S>(wide, StripTerms { g, y, ends, sums, form }) };
        }
        totals.put_aside(wide);
        for (r, y) in scratch.chunks(wide).take(n).enumerate() {
            let to = self.to.at((r * self.out_step) as isize);
            prefetch_all_second(to.wrapping_add(columns::AHEAD * self.out_step), wide);
            let g = later(self.g, r, self.step[0], wide);
            let (y, totals) = (y.as_ptr(), totals.sum.as_ptr());
            // SAFETY: a row of the strip, and one of the output that is this part's own; a level is
            // one that the machine has.
            unsafe { over_columns::<T, W, S>(wide, StripFlows { g, y, totals, to, form }) };
        }
    }
}

/// A row of a strip: the result in place of what it is made of, and what is summed up of it.
struct StripTerms<T, W> {
    g: *const T,
    y: *mut W,
    ends: *const W,
    sums: *mut W,
    form: Form,
}

impl<T: Load<W>, W: Float> load::Row for StripTerms<T, W> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        let is_log = self.form.is_log();
        // SAFETY: by the caller's promise.
        unsafe {
            let g = T::load_some::<S, N>(self.g.add(i));
            let mut y = self.y.add(i).cast::<[W; N]>().read();
            let ends = self.ends.add(i).cast::<[W; N]>().read();
            let mut sums = self.sums.add(i).cast::<[W; N]>().read();
            for k in 0..N {
                y[k] = ended(y[k], ends[k], is_log);
                sums[k] = sums[k].add(if is_log { g[k] } else { g[k].mul(y[k]) });
            }
            self.sums.add(i).cast::<[W; N]>().write(sums);
            self.y.add(i).cast::<[W; N]>().write(y);
        }
    }
}

/// What flows back to a row of a strip.
struct StripFlows<T, W> {
    g: *const T,
    y: *const W,
    totals: *const W,
    to: *mut T,
    form: Form,
}

impl<T: Load<W>, W: Float> load::Row for StripFlows<T, W> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let mut all = T::load_some::<S, N>(self.g.add(i));
            let y = self.y.add(i).cast::<[W; N]>().read();
            let totals = self.totals.add(i).cast::<[W; N]>().read();
            for k in 0..N {
                all[k] = flows::<W, S>(all[k], y[k], totals[k], self.form);
            }
            T::store_some::<S, N>(all, self.to.add(i));
        }
    }
}

/// Where row `r` of a strip begins; a later one is asked for.
#[inline(always)]
fn later<T>(of: Shared<T>, r: usize, step: isize, wide: usize) -> *const T {
    prefetch_all_second(of.at((r + columns::AHEAD) as isize * step), wide);
    of.at(r as isize * step)
}
