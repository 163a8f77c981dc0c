//! What flows back through layer norm and RMS norm: to the rows, and to the weight and the bias.
//!
//! Rows are normalised again where they are read: that takes less time than to keep them.

use super::super::isa::{Levelled, at_level};
use super::super::load::{Load, by_float};
use super::super::nest::{Nest, Shared, Turns, in_parts, slice_of};
use super::super::reduce::fold::{BLOCK, Sum, Tree, fold_block};
use super::super::simd::Simd;
use super::super::stream::{self, STREAM_FROM};
use super::norm::{Measured, Pieces, TOGETHER, measure, together, widened, written};
use super::{Float, LEAST, in_order, loaded, room_of};
use crate::room;
use crate::shape::contiguous_strides;
use crate::view::{Parallel, View, ViewMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
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
    /// Whether what flows to them is written around the cache.
    streamed: bool,
}

impl<T: Load<W>, W: Float> Rows<T, W> {
    fn new(g: &View<'_>, x: &View<'_>, of: Normed) -> Rows<T, W> {
        let lead = x.shape.len() - of.trailing;
        let nest = Nest::new(&x.shape[..lead], [&g.strides[..lead], &x.strides[..lead]]).merged();
        let from = [g, x].map(|v| Shared::new(v.ptr.cast_mut()));
        let n = crate::shape::numel(&x.shape[lead..]);
        let streamed = x.numel() * size_of::<T>() >= STREAM_FROM;
        Rows { nest, from, n, eps: W::of(of.eps), centred: of.centred, streamed }
    }

    /// How many rows are measured together.
    fn together(&self) -> usize {
        together(self.n * size_of::<T>())
    }

    /// The room that they take, of halves.
    fn room(&self) -> usize {
        self.together() * room_of::<T, W>(2 * self.n)
    }

    /// Measures the next rows, and says how many there are: none after the last.
    ///
    /// # Safety
    /// The machine has what the level says, and there is [room](Rows::room), in which the rows of
    /// halves lie until the next are measured.
    #[inline(always)]
    unsafe fn next<S: Simd>(
        &self,
        turns: &mut Turns<'_, 2>,
        room: &mut [W],
        rows: &mut Together<W>,
    ) -> usize {
        let (n, mut count) = (self.n, 0);
        for (row, at) in turns.by_ref().take(self.together()) {
            let room = room.as_mut_ptr().wrapping_add(count * room_of::<T, W>(2 * n));
            let [from, of] = [0, 1].map(|i| self.from[i].at(at[i]).cast_const());
            // SAFETY: rows of the inputs, `n` elements in order, and room for as many of each.
            unsafe {
                rows.g[count] = loaded::<T, W, S>(from, n, room);
                rows.x[count].x = loaded::<T, W, S>(of, n, room.wrapping_add(n));
            }
            rows.x[count].row = row;
            count += 1;
        }
        // SAFETY: the same rows.
        unsafe { measure(&mut rows.x[..count], n, self.eps, self.centred) };
        count
    }

    /// Writes what flows to rows, and adds up the gradients `g`, and them by the normalised rows,
    /// in the `plain` sums and the `products` if `SUMS`.
    ///
    /// # Safety
    /// Each row of the output in `part` is valid for writes, and nothing else refers to it; the
    /// rest is as for [`next`](Rows::next).
    #[inline(always)]
    unsafe fn flows<S: Simd, const SUMS: bool>(
        &self,
        part: Range<usize>,
        room: &mut [W],
        weight: Option<&[W]>,
        to: &Shared<T>,
        [products, plain]: [&mut [W]; 2],
    ) {
        let n = self.n;
        let mut turns = self.nest.turns(part);
        let mut rows = Together::<W>::new();
        let mut ends = [(W::ZERO, W::ZERO); TOGETHER];
        loop {
            // SAFETY: the caller's promise.
            let count = unsafe { self.next::<S>(&mut turns, room, &mut rows) };
            if count == 0 {
                break;
            }
            for ((g, x), end) in rows.g[..count].iter().zip(&rows.x).zip(&mut ends) {
                // SAFETY: rows, as they were measured.
                let [g, values] = unsafe { [*g, x.x].map(|x| std::slice::from_raw_parts(x, n)) };
                let (mut sums, mut terms) = (Tree::new(), Tree::new());
                for first in (0..n).step_by(BLOCK) {
                    let range = first..n.min(first + BLOCK);
                    let mut block = Block::<W>::new();
                    let weight = weight.map(|weight| &weight[range.clone()]);
                    let (g, values) = (&g[range.clone()], &values[range.clone()]);
                    let own = match SUMS {
                        true => [&mut products[range.clone()], &mut plain[range]],
                        false => [&mut [][..], &mut []],
                    };
                    let [d, e] = block.put::<SUMS>(g, values, weight, (x.mean, x.scale), own);
                    if self.centred {
                        sums.push(fold_block::<Sum<W, W, W>>(d), W::add);
                    }
                    terms.push(fold_block::<Sum<W, W, W>>(e), W::add);
                }
                let mean_of = |tree: Tree<W>| tree.end(W::add).unwrap_or(W::ZERO).over(n);
                *end = (mean_of(sums), mean_of(terms));
            }
            for ((g, x), &(sum, term)) in rows.g[..count].iter().zip(&rows.x).zip(&ends) {
                // SAFETY: rows, as they were measured.
                let [g, values] = unsafe { [*g, x.x].map(|x| std::slice::from_raw_parts(x, n)) };
                let flow = Flow { g, x: values, of: *x, weight, sum, term };
                let (to, ahead) = (to.at((x.row * n) as isize), std::ptr::null());
                // SAFETY: the caller's promise; all is made.
                unsafe { written::<T, W, S>(to, n, self.streamed, ahead, flow) };
            }
        }
        if self.streamed {
            stream::fence();
        }
    }
}

/// Rows of the gradient and of what was normalised, which are measured together.
struct Together<W> {
    g: [*const W; TOGETHER],
    x: [Measured<W>; TOGETHER],
}

impl<W: Float> Together<W> {
    fn new() -> Together<W> {
        Together { g: [std::ptr::null(); TOGETHER], x: [Measured::nothing(); TOGETHER] }
    }
}

/// What flows to a row.
struct Flow<'a, W> {
    g: &'a [W],
    x: &'a [W],
    of: Measured<W>,
    weight: Option<&'a [W]>,
    /// The mean of what flows to the normalised row.
    sum: W,
    /// The mean of that by the normalised row.
    term: W,
}

impl<W: Float> Pieces<W> for Flow<'_, W> {
    #[inline(always)]
    fn put(&self, first: usize, to: &mut [MaybeUninit<W>]) {
        let end = |d: W, x: W| {
            let normal = x.sub(self.of.mean).mul(self.of.scale);
            d.sub(self.sum).sub(normal.mul(self.term)).mul(self.of.scale)
        };
        let range = first..first + to.len();
        let all = to.iter_mut().zip(&self.g[range.clone()]).zip(&self.x[range.clone()]);
        match self.weight {
            None => {
                for ((to, g), x) in all {
                    to.write(end(*g, *x));
                }
            }
            Some(weight) => {
                for (((to, g), x), w) in all.zip(&weight[range]) {
                    to.write(end(g.mul(*w), *x));
                }
            }
        }
    }
}

/// A block of what flows to the normalised row, and of that by the row.
struct Block<W> {
    flows: [MaybeUninit<W>; BLOCK],
    products: [MaybeUninit<W>; BLOCK],
}

impl<W: Float> Block<W> {
    #[inline(always)]
    fn new() -> Block<W> {
        let nothing = [const { MaybeUninit::uninit() }; BLOCK];
        Block { flows: nothing, products: nothing }
    }

    #[inline(always)]
    fn put<const SUMS: bool>(
        &mut self,
        g: &[W],
        x: &[W],
        weight: Option<&[W]>,
        (mean, scale): (W, W),
        [products, plain]: [&mut [W]; 2],
    ) -> [&[W]; 2] {
        let n = g.len();
        let (d, e) = (&mut self.flows[..n], &mut self.products[..n]);
        let x = &x[..n];
        if SUMS {
            let (products, plain) = (&mut products[..n], &mut plain[..n]);
            for i in 0..n {
                let normal = x[i].sub(mean).mul(scale);
                products[i] = products[i].add(g[i].mul(normal));
                plain[i] = plain[i].add(g[i]);
            }
        }
        match weight {
            None => {
                for i in 0..n {
                    d[i].write(g[i]);
                    e[i].write(g[i].mul(x[i].sub(mean).mul(scale)));
                }
            }
            Some(weight) => {
                let weight = &weight[..n];
                for i in 0..n {
                    let flow = g[i].mul(weight[i]);
                    d[i].write(flow);
                    e[i].write(flow.mul(x[i].sub(mean).mul(scale)));
                }
            }
        }
        // SAFETY: as many of each have been written.
        unsafe { [d, e].map(|made| std::slice::from_raw_parts(made.as_ptr().cast(), n)) }
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
        let ToRows { rows, part, to, weight, room } = self;
        // SAFETY: rows of the output that are this part's; nothing else refers to them. There is
        // room, and a level is one that the machine has.
        unsafe { rows.flows::<S, false>(part, room, weight, &to, [&mut [], &mut []]) };
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
            let mut turns = self.rows.nest.turns(first..self.part.end.min(first + RUN));
            let mut rows = Together::<W>::new();
            loop {
                // SAFETY: a level is one that the machine has; there is room.
                let count = unsafe { self.rows.next::<S>(&mut turns, self.room, &mut rows) };
                if count == 0 {
                    break;
                }
                for (g, of) in rows.g[..count].iter().zip(&rows.x) {
                    // SAFETY: rows, as they were measured.
                    let [g, x] = unsafe { [*g, of.x].map(|x| std::slice::from_raw_parts(x, n)) };
                    for (((a, b), g), x) in products.iter_mut().zip(&mut *plain).zip(g).zip(x) {
                        *a = a.add(g.mul(x.sub(of.mean).mul(of.scale)));
                        *b = b.add(*g);
                    }
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
            let (rows, part) = (self.rows, first..self.part.end.min(first + RUN));
            let sums = [products, plain];
            // SAFETY: as in `ToRows`.
            unsafe { rows.flows::<S, true>(part, self.room, self.weight, &self.to, sums) };
            self.sums.iter_mut().zip(&*self.run).for_each(|(sum, run)| *sum = sum.add(*run));
        }
    }
}
