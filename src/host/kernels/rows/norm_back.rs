//! What flows back through layer norm and RMS norm: to the rows, and to the weight and the bias.
//!
//! Rows are normalised again where they are read: that takes less time than to keep them.

use super::super::isa::{Levelled, at_level};
use super::super::load::{Load, by_float};
use super::super::nest::{Nest, Shared, in_parts, slice_of};
use super::super::reduce::fold::{BLOCK, Sum, Tree, fold_block};
use super::super::simd::Simd;
use super::norm::{measured, widened};
use super::{Float, LEAST, Made, in_order, loaded, room_of};
use crate::room;
use crate::shape::contiguous_strides;
use crate::view::{Parallel, View, ViewMut};
use std::marker::PhantomData;
use std::ops::Range;

/// Rows whose gradients are added up one after the other, before their sum goes on.
const RUN: usize = 32;
/// Parts of all rows whose sums meet at the end, at most.
const PARTS: usize = 16;

/// The norm that was computed.
#[derive(Clone, Copy)]
pub(crate) struct Normed {
    /// Dimensions of a row.
    pub trailing: usize,
    pub eps: f64,
    /// Whether a mean was subtracted.
    pub centred: bool,
}

/// With `n = (x - mean) / deviation` and `dn = g * weight`: `(dn - mean(dn) - n mean(dn n)) /
/// deviation` over each row; without the means of `x` and `dn` where it is not centred.
pub(crate) fn norm_back(
    g: View<'_>,
    x: View<'_>,
    weight: Option<View<'_>>,
    of: Normed,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    by_float!(x.dtype, to_rows(g, x, weight, of, out, par));
}

/// The sums over all rows of `g n`, and behind them those of `g`.
pub(crate) fn norm_sums(
    g: View<'_>,
    x: View<'_>,
    of: Normed,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    by_float!(x.dtype, to_parameters(g, x, of, out, par));
}

/// Rows from which on [`norm_all`] is as fast as the two apart: it cuts them as the sums are cut.
pub(crate) const ALL_FROM: usize = 8 * RUN;

/// Both at once: what flows to the rows, then the sums, one after the other. Each row is read and
/// measured once.
pub(crate) fn norm_all(
    g: View<'_>,
    x: View<'_>,
    weight: Option<View<'_>>,
    of: Normed,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    by_float!(x.dtype, to_all(g, x, weight, of, out, par));
}

/// Calls `f` with a view of which each row lies in order.
pub(super) fn ordered<T: Copy + Default>(
    x: View<'_>,
    lead: usize,
    par: &dyn Parallel,
    f: &mut dyn FnMut(View<'_>),
) {
    if in_order(&x.shape[lead..], &x.strides[lead..]) {
        return f(x);
    }
    let mut copied: Vec<T> = room::filled(x.numel(), T::default());
    let ptr = copied.as_mut_ptr().cast();
    super::super::copy::copy(
        x,
        &ViewMut { ptr, dtype: x.dtype, shape: x.shape, life: PhantomData },
        par,
    );
    f(View { ptr, strides: &contiguous_strides(x.shape), ..x });
}

/// Rows of an upstream gradient and of what was normalised.
struct Rows<T, W> {
    nest: Nest<2>,
    from: [Shared<T>; 2],
    n: usize,
    eps: W,
    centred: bool,
}

impl<T: Load<W>, W: Float> Rows<T, W> {
    fn new(g: &View<'_>, x: &View<'_>, of: Normed) -> Rows<T, W> {
        let lead = x.shape.len() - of.trailing;
        let nest = Nest::new(&x.shape[..lead], [&g.strides[..lead], &x.strides[..lead]]).merged();
        let from = [g, x].map(|v| Shared::new(v.ptr.cast_mut()));
        let n = crate::shape::numel(&x.shape[lead..]);
        Rows { nest, from, n, eps: W::of(of.eps), centred: of.centred }
    }

    /// A row of the gradient and one of the value, with the mean of that and what it is multiplied
    /// by.
    ///
    /// # Safety
    /// The machine has what the level says, and there is [room](Rows::room).
    #[inline(always)]
    unsafe fn row<'a, S: Simd>(
        &'a self,
        at: [isize; 2],
        room: &'a mut [W],
    ) -> (&'a [W], &'a [W], W, W) {
        let (n, room) = (self.n, room.as_mut_ptr());
        let [g, x] = [0, 1].map(|i| self.from[i].at(at[i]).cast_const());
        // SAFETY: rows of the inputs, `n` elements in order, and room for as many of each.
        let (g, x) = unsafe {
            let g = loaded::<T, W, S>(g, n, room);
            let x = loaded::<T, W, S>(x, n, room.wrapping_add(n));
            (std::slice::from_raw_parts(g, n), std::slice::from_raw_parts(x, n))
        };
        let (mean, scale) = measured::<W>(x, self.eps, self.centred);
        (g, x, mean, scale)
    }

    /// The room that two rows take.
    fn room(&self) -> usize {
        room_of::<T, W>(2 * self.n)
    }

    /// Writes what flows to a row, and shows the gradient and the normalised row block by block,
    /// with the number of the first element.
    ///
    /// # Safety
    /// `to` is valid for writes of a row, which nothing else refers to; the rest is as for
    /// [`row`](Rows::row).
    #[inline(always)]
    unsafe fn flows<S: Simd>(
        &self,
        at: [isize; 2],
        room: &mut [W],
        weight: Option<&[W]>,
        to: *mut T,
        mut see: impl FnMut(usize, &[W], &[W]),
    ) {
        let n = self.n;
        // SAFETY: the caller's promise.
        let (g, x, mean, scale) = unsafe { self.row::<S>(at, room) };
        let (mut sums, mut products) = (Tree::new(), Tree::new());
        for first in (0..n).step_by(BLOCK) {
            let range = first..n.min(first + BLOCK);
            let (mut d, mut e) = ([W::ZERO; BLOCK], [W::ZERO; BLOCK]);
            let (d, e) = (&mut d[..range.len()], &mut e[..range.len()]);
            d.copy_from_slice(&g[range.clone()]);
            e.iter_mut().zip(&x[range.clone()]).for_each(|(e, x)| *e = x.sub(mean).mul(scale));
            see(first, d, e);
            if let Some(weight) = weight {
                d.iter_mut().zip(&weight[range]).for_each(|(d, w)| *d = d.mul(*w));
            }
            e.iter_mut().zip(&*d).for_each(|(e, d)| *e = d.mul(*e));
            if self.centred {
                sums.push(fold_block::<Sum<W, W, W>>(d), W::add);
            }
            products.push(fold_block::<Sum<W, W, W>>(e), W::add);
        }
        let mean_of = |tree: Tree<W>| tree.end(W::add).unwrap_or(W::ZERO).over(n);
        let (sum, product) = (mean_of(sums), mean_of(products));
        let end = |d: W, x: W| {
            let normal = x.sub(mean).mul(scale);
            d.sub(sum).sub(normal.mul(product)).mul(scale)
        };
        for first in (0..n).step_by(BLOCK) {
            let range = first..n.min(first + BLOCK);
            // SAFETY: a block of the row, by the caller's promise.
            let mut made = unsafe { Made::<T, W, BLOCK>::new(to.wrapping_add(first), range.len()) };
            let all = made.room().iter_mut().zip(&g[range.clone()]).zip(&x[range.clone()]);
            match weight {
                None => {
                    for ((y, g), x) in all {
                        y.write(end(*g, *x));
                    }
                }
                Some(weight) => {
                    for (((y, g), x), w) in all.zip(&weight[range]) {
                        y.write(end(g.mul(*w), *x));
                    }
                }
            }
            // SAFETY: all of it has been made; the level is the caller's promise.
            unsafe { made.end::<S>() };
        }
    }
}

fn to_rows<T: Load<W> + Default, W: Float>(
    g: View<'_>,
    x: View<'_>,
    weight: Option<View<'_>>,
    of: Normed,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let lead = x.shape.len() - of.trailing;
    let weight = weight.map(|v| widened::<W>(&v));
    ordered::<T>(g, lead, par, &mut |g| {
        ordered::<T>(x, lead, par, &mut |x| {
            let rows = Rows::<T, W>::new(&g, &x, of);
            let to = Shared::<T>::new(out.ptr);
            in_parts(rows.nest.numel(), (LEAST / rows.n).max(1), par, &|part| {
                W::with_scratch(rows.room(), |room| {
                    at_level(ToRows { rows: &rows, part, to, weight: weight.as_deref(), room });
                });
            });
        });
    });
}

struct ToRows<'a, T, W> {
    rows: &'a Rows<T, W>,
    part: Range<usize>,
    to: Shared<T>,
    weight: Option<&'a [W]>,
    room: &'a mut [W],
}

impl<T: Load<W>, W: Float> Levelled for ToRows<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        for (row, at) in self.rows.nest.turns(self.part.clone()) {
            let to = self.to.at((row * self.rows.n) as isize);
            // SAFETY: a row of the output that is this part's; nothing else refers to it. There is
            // room, and a level is one that the machine has.
            unsafe { self.rows.flows::<S>(at, self.room, self.weight, to, |_, _, _| {}) };
        }
    }
}

fn to_parameters<T: Load<W> + Default, W: Float>(
    g: View<'_>,
    x: View<'_>,
    of: Normed,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    summed::<T, W>([g, x], None, of, None, Shared::new(out.ptr), par);
}

fn to_all<T: Load<W> + Default, W: Float>(
    g: View<'_>,
    x: View<'_>,
    weight: Option<View<'_>>,
    of: Normed,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let weight = weight.map(|v| widened::<W>(&v));
    let to = Shared::<T>::new(out.ptr);
    let sums = Shared::<T>::new(to.at(x.numel() as isize));
    summed::<T, W>([g, x], weight.as_deref(), of, Some(to), sums, par);
}

/// Writes the sums over all rows, and what flows to the rows where there is room for that.
fn summed<T: Load<W> + Default, W: Float>(
    [g, x]: [View<'_>; 2],
    weight: Option<&[W]>,
    of: Normed,
    flows: Option<Shared<T>>,
    to: Shared<T>,
    par: &dyn Parallel,
) {
    let lead = x.shape.len() - of.trailing;
    if crate::shape::numel(&x.shape[lead..]) == 0 {
        return;
    }
    ordered::<T>(g, lead, par, &mut |g| {
        ordered::<T>(x, lead, par, &mut |x| {
            let rows = Rows::<T, W>::new(&g, &x, of);
            let (n, all) = (rows.n, rows.nest.numel());
            // How many parts there are depends on the shape alone, and so do the bits.
            let parts = (all / RUN).min(all * n / LEAST).clamp(1, PARTS);
            let mut sums = room::filled(parts * 2 * n, W::ZERO);
            let own = Shared::<W>::new(sums.as_mut_ptr());
            par.run(parts, &|i| {
                let mut run: Vec<W> = room::filled(2 * n, W::ZERO);
                // SAFETY: this part's own memory.
                let sums =
                    unsafe { std::slice::from_raw_parts_mut(own.at((i * 2 * n) as isize), 2 * n) };
                let part = slice_of(all, parts, i);
                let run = &mut run;
                W::with_scratch(rows.room(), |room| match flows {
                    Some(to) => at_level(ToAll { rows: &rows, part, run, sums, to, weight, room }),
                    None => at_level(ToParameters { rows: &rows, part, run, sums, room }),
                });
            });
            for i in 0..2 * n {
                let sum = (0..parts).fold(W::ZERO, |sum, p| sum.add(sums[p * 2 * n + i]));
                // SAFETY: an element of the output.
                unsafe { to.at(i as isize).write(T::store(sum)) }
            }
        });
    });
}

struct ToParameters<'a, T, W> {
    rows: &'a Rows<T, W>,
    part: Range<usize>,
    run: &'a mut [W],
    sums: &'a mut [W],
    room: &'a mut [W],
}

impl<T: Load<W>, W: Float> Levelled for ToParameters<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let n = self.rows.n;
        for first in self.part.clone().step_by(RUN) {
            self.run.fill(W::ZERO);
            let (products, plain) = self.run.split_at_mut(n);
            for (_, at) in self.rows.nest.turns(first..self.part.end.min(first + RUN)) {
                // SAFETY: a level is one that the machine has; there is room.
                let (g, x, mean, scale) = unsafe { self.rows.row::<S>(at, self.room) };
                for (((a, b), g), x) in products.iter_mut().zip(&mut *plain).zip(g).zip(x) {
                    *a = a.add(g.mul(x.sub(mean).mul(scale)));
                    *b = b.add(*g);
                }
            }
            self.sums.iter_mut().zip(&*self.run).for_each(|(sum, run)| *sum = sum.add(*run));
        }
    }
}

struct ToAll<'a, T, W> {
    rows: &'a Rows<T, W>,
    part: Range<usize>,
    run: &'a mut [W],
    sums: &'a mut [W],
    room: &'a mut [W],
    to: Shared<T>,
    weight: Option<&'a [W]>,
}

impl<T: Load<W>, W: Float> Levelled for ToAll<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let n = self.rows.n;
        for first in self.part.clone().step_by(RUN) {
            self.run.fill(W::ZERO);
            let (products, plain) = self.run.split_at_mut(n);
            for (row, at) in self.rows.nest.turns(first..self.part.end.min(first + RUN)) {
                let add = |first: usize, g: &[W], normal: &[W]| {
                    let range = first..first + g.len();
                    let (a, b) = (&mut products[range.clone()], &mut plain[range]);
                    for (((a, b), g), normal) in a.iter_mut().zip(b).zip(g).zip(normal) {
                        *a = a.add(g.mul(*normal));
                        *b = b.add(*g);
                    }
                };
                let to = self.to.at((row * n) as isize);
                // SAFETY: as in `ToRows`.
                unsafe { self.rows.flows::<S>(at, self.room, self.weight, to, add) };
            }
            self.sums.iter_mut().zip(&*self.run).for_each(|(sum, run)| *sum = sum.add(*run));
        }
    }
}
