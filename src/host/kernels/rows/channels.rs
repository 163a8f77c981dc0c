//! What batch norm needs of each channel: mean and variance, and two sums on the way back (Ioffe
//! and Szegedy 2015, arXiv:1502.03167).
//!
//! A channel is cut into pieces that stay in a core's own caches, so that the memory is read once:
//! a piece's mean, then its squares about that. Pieces are joined as Chan, Golub and LeVeque have
//! it ("Algorithms for computing the sample variance", 1983). Shape and layout say where a channel
//! is cut, so the bits do not depend on threads.

use super::super::isa::{Levelled, at_level};
use super::super::load::{Load, by_float};
use super::super::nest::{Nest, Shared, in_parts, slice_of};
use super::super::reduce::fold::Tree;
use super::super::simd::Simd;
use super::norm::widened;
use super::norm_back::ordered;
use super::{Float, LEAST};
use crate::room;
use crate::view::{Parallel, View, ViewMut};
use smallvec::SmallVec;
use std::marker::PhantomData;
use std::ops::Range;

/// Elements that are added up side by side, of one channel.
const LANES: usize = 32;
/// Elements after which lanes meet, so that errors do not grow with all of them.
const SPAN: usize = 64 * LANES;
/// Elements of a piece of a channel whose elements lie side by side.
const PIECE: usize = if cfg!(all(test, debug_assertions)) { 3000 } else { 32 << 10 };
/// Channels that are worked on together where they lie side by side,
const WIDTH: usize = 256;
/// and how many of their rows: the strip fits the first cache.
const ROWS: usize = 32;
/// Rows of a piece.
const TALL: usize = if cfg!(all(test, debug_assertions)) { 70 } else { 1024 };
/// Elements that are loaded at once, and rows.
const SEVERAL: usize = 16;
const TOGETHER: usize = 4;

/// The means of the channels (dimension 1), which have elements, and behind them the biased
/// variances.
pub(crate) fn channel_stats(x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    by_float!(x.dtype, stats_of(x, out, par));
}

/// The sums of `g` over each channel, and behind them those of `g (x - mean)`.
pub(crate) fn channel_sums(
    g: View<'_>,
    x: View<'_>,
    mean: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    by_float!(x.dtype, sums_of(g, x, mean, out, par));
}

fn stats_of<T: Load<W> + Default, W: Float>(x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    walked::<T, 1>([x], par, &mut |walk| {
        let found = pieces::<T, W, Stats, 1>(walk, &[], par);
        for (channel, pieces) in found.chunks(walk.pieces()).enumerate() {
            let (mut count, [mut mean, mut squares]) = (walk.piece(0).len() as f64, pieces[0]);
            for (p, &[of_piece, more]) in pieces.iter().enumerate().skip(1) {
                let n = walk.piece(p).len() as f64;
                let (all, apart) = (count + n, of_piece - mean);
                mean += apart * n / all;
                squares += more + apart * apart * (count * n / all);
                count = all;
            }
            put::<W>(out, walk.channels, channel, [mean, squares / count]);
        }
    });
}

fn sums_of<T: Load<W> + Default, W: Float>(
    g: View<'_>,
    x: View<'_>,
    mean: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if x.numel() == 0 {
        return (0..x.shape[1]).for_each(|channel| put::<W>(out, x.shape[1], channel, [0.0; 2]));
    }
    let mean = widened::<W>(&mean);
    walked::<T, 2>([g, x], par, &mut |walk| {
        let found = pieces::<T, W, Sums, 2>(walk, &mean, par);
        for (channel, pieces) in found.chunks(walk.pieces()).enumerate() {
            let sum = |k: usize| pieces.iter().map(|sums| sums[k]).sum();
            put::<W>(out, walk.channels, channel, [sum(0), sum(1)]);
        }
    });
}

/// Writes the two numbers of a channel.
fn put<W: Float>(out: &ViewMut<'_>, channels: usize, channel: usize, both: [f64; 2]) {
    let out = Shared::<W>::new(out.ptr);
    for (k, x) in both.into_iter().enumerate() {
        // SAFETY: an element of the result, which nothing else refers to now.
        unsafe { out.at((k * channels + channel) as isize).write(W::of(x)) };
    }
}

/// How the elements of `N` values lie.
struct Walk<T, const N: usize> {
    from: [Shared<T>; N],
    channels: usize,
    /// From a channel to the next.
    step: [isize; N],
    /// Over the elements of a channel, or the runs of such that lie side by side.
    nest: Nest<N>,
    /// Elements of a run; none where it is channels that lie side by side.
    run: Option<usize>,
    /// Elements of a channel.
    count: usize,
}

impl<T: Copy, const N: usize> Walk<T, N> {
    /// `None` where neither elements of a channel nor channels lie side by side.
    fn new(views: [View<'_>; N]) -> Option<Walk<T, N>> {
        let apart = |all: &[isize]| -> SmallVec<[isize; 8]> {
            all.iter().enumerate().filter(|(d, _)| *d != 1).map(|(_, &s)| s).collect()
        };
        let shape = views[0].shape;
        let sizes: SmallVec<[usize; 8]> =
            shape.iter().enumerate().filter(|(d, _)| *d != 1).map(|(_, &n)| n).collect();
        let strides = views.map(|v| apart(v.strides));
        let mut nest = Nest::new(&sizes, std::array::from_fn(|i| &strides[i][..])).merged();
        let (count, step) = (nest.numel(), views.map(|v| v.strides[1]));
        let run = match nest.dims.last() {
            Some(last) if last.step == [1; N] => nest.dims.pop().map(|last| last.size),
            None => Some(1),
            _ if step == [1; N] => None,
            _ => return None,
        };
        let from = views.map(|v| Shared::new(v.ptr.cast_mut()));
        Some(Walk { from, channels: shape[1], step, nest, run, count })
    }

    /// Pieces of a channel.
    fn pieces(&self) -> usize {
        self.count.div_ceil(if self.run.is_some() { PIECE } else { TALL })
    }

    fn piece(&self, p: usize) -> Range<usize> {
        slice_of(self.count, self.pieces(), p)
    }

    /// Where the first element of a channel is.
    fn offset(&self, channel: isize) -> [*const T; N] {
        std::array::from_fn(|k| self.from[k].at(channel * self.step[k]).cast_const())
    }
}

/// Calls `f` with the way that values lie, or copies of them.
fn walked<T: Copy + Default, const N: usize>(
    views: [View<'_>; N],
    par: &dyn Parallel,
    f: &mut dyn FnMut(&Walk<T, N>),
) {
    match Walk::new(views) {
        Some(walk) => f(&walk),
        None => copied::<T, N>(views, 0, par, f),
    }
}

/// The same, the first of them copied already.
fn copied<T: Copy + Default, const N: usize>(
    views: [View<'_>; N],
    done: usize,
    par: &dyn Parallel,
    f: &mut dyn FnMut(&Walk<T, N>),
) {
    if done == N {
        return f(&Walk::new(views).expect("what lies in order has runs"));
    }
    ordered::<T>(views[done], 0, par, &mut |one| {
        let mut views = views;
        views[done] = one;
        copied::<T, N>(views, done + 1, par, f);
    });
}

/// What is found in a piece of elements, from those of `N` values at the same place and a number of
/// the channel.
trait Find<W: Float, const N: usize>: Sync + 'static {
    /// Of one channel whose elements lie side by side.
    fn in_runs<T: Load<W>, S: Simd>(piece: Runs<'_, T, N>, centre: W) -> [W; 2];
    /// Of channels that lie side by side; `before` rows of theirs have been found.
    fn in_rows<T: Load<W>, S: Simd>(
        rows: &Rows<T, N>,
        before: usize,
        centres: &[W; WIDTH],
        found: &mut [[W; WIDTH]; 2],
    );
}

/// Mean, and the sum of the squares about it.
struct Stats;

impl<W: Float> Find<W, 1> for Stats {
    #[inline(always)]
    fn in_runs<T: Load<W>, S: Simd>(piece: Runs<'_, T, 1>, _: W) -> [W; 2] {
        let [sum] = piece.sums::<W, S, 1>(|[x]| [x]);
        let mean = sum.over(piece.range.len());
        let [squares] = piece.sums::<W, S, 1>(|[x]| [square(x.sub(mean))]);
        [mean, squares]
    }
    #[inline(always)]
    fn in_rows<T: Load<W>, S: Simd>(
        rows: &Rows<T, 1>,
        before: usize,
        _: &[W; WIDTH],
        found: &mut [[W; WIDTH]; 2],
    ) {
        let mut means = [[W::ZERO; WIDTH]; 1];
        rows.add::<W, S, 1>(&[W::ZERO; WIDTH], &mut means, |[x], _| [x]);
        for mean in &mut means[0] {
            *mean = mean.over(rows.count);
        }
        let mut squares = [[W::ZERO; WIDTH]; 1];
        rows.add::<W, S, 1>(&means[0], &mut squares, |[x], mean| [square(x.sub(mean))]);
        if before == 0 {
            *found = [means[0], squares[0]];
            return;
        }
        let (n, all) = (rows.count as f64, (before + rows.count) as f64);
        let (weight, both) = (W::of(n / all), W::of(before as f64 * n / all));
        let [mean, sum] = found;
        for l in 0..WIDTH {
            let apart = means[0][l].sub(mean[l]);
            mean[l] = mean[l].add(apart.mul(weight));
            sum[l] = sum[l].add(squares[0][l].add(square(apart).mul(both)));
        }
    }
}

/// The sums of `g` and of `g (x - mean)`.
struct Sums;

impl<W: Float> Find<W, 2> for Sums {
    #[inline(always)]
    fn in_runs<T: Load<W>, S: Simd>(piece: Runs<'_, T, 2>, mean: W) -> [W; 2] {
        piece.sums::<W, S, 2>(|[g, x]| [g, g.mul(x.sub(mean))])
    }
    #[inline(always)]
    fn in_rows<T: Load<W>, S: Simd>(
        rows: &Rows<T, 2>,
        _: usize,
        means: &[W; WIDTH],
        found: &mut [[W; WIDTH]; 2],
    ) {
        let mut sums = [[W::ZERO; WIDTH]; 2];
        rows.add::<W, S, 2>(means, &mut sums, |[g, x], mean| [g, g.mul(x.sub(mean))]);
        for (found, sums) in found.iter_mut().zip(&sums) {
            for l in 0..WIDTH {
                found[l] = found[l].add(sums[l]);
            }
        }
    }
}

#[inline(always)]
fn square<W: Float>(x: W) -> W {
    x.mul(x)
}

/// Both numbers of each piece, those of a channel one after the other.
fn pieces<T: Load<W>, W: Float, F: Find<W, N>, const N: usize>(
    walk: &Walk<T, N>,
    centres: &[W],
    par: &dyn Parallel,
) -> Vec<[f64; 2]> {
    let (pieces, channels) = (walk.pieces(), walk.channels);
    let mut found = room::filled(channels * pieces, [0.0; 2]);
    let strips = if walk.run.is_some() { channels } else { channels.div_ceil(WIDTH) };
    let each = (walk.count * channels / (strips * pieces).max(1)).max(1);
    let to = Shared::<[f64; 2]>::new(found.as_mut_ptr());
    in_parts(strips * pieces, (LEAST / each).max(1), par, &|units| {
        at_level(Units::<T, W, F, N> { walk, units, strips, centres, to, find: PhantomData });
    });
    found
}

/// Some of all pieces, those of a strip of channels one after the other.
struct Units<'a, T, W, F, const N: usize> {
    walk: &'a Walk<T, N>,
    units: Range<usize>,
    strips: usize,
    centres: &'a [W],
    to: Shared<[f64; 2]>,
    find: PhantomData<F>,
}

impl<T: Load<W>, W: Float, F: Find<W, N>, const N: usize> Levelled for Units<'_, T, W, F, N> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Units { walk, strips, centres, to, .. } = self;
        let pieces = walk.pieces();
        for unit in self.units {
            let (strip, p) = (unit / pieces, unit % pieces);
            let piece = walk.piece(p);
            let channels = slice_of(walk.channels, strips, strip);
            let first = channels.start as isize;
            let from = walk.offset(first);
            // SAFETY: this piece's own places, which lie one piece of a channel after the other.
            let put = |channel: usize, both: [W; 2]| unsafe {
                to.at((channel * pieces + p) as isize).write(both.map(W::wide));
            };
            if let Some(run) = walk.run {
                let centre = centres.get(strip).copied().unwrap_or(W::ZERO);
                let runs = Runs { nest: &walk.nest, from, run, range: piece };
                put(strip, F::in_runs::<T, S>(runs, centre));
                continue;
            }
            let mut own = [W::ZERO; WIDTH];
            for (own, &centre) in own.iter_mut().zip(centres.get(channels.clone()).unwrap_or(&[])) {
                *own = centre;
            }
            let mut found = [[W::ZERO; WIDTH]; 2];
            let mut rows = Rows { from: [from; ROWS], count: 0, width: channels.len() };
            let (begin, end) = (piece.start, piece.end);
            for (row, at) in walk.nest.turns(piece) {
                for k in 0..N {
                    rows.from[rows.count][k] = from[k].wrapping_offset(at[k]);
                }
                rows.count += 1;
                if rows.count == ROWS || row + 1 == end {
                    F::in_rows::<T, S>(&rows, row + 1 - rows.count - begin, &own, &mut found);
                    rows.count = 0;
                }
            }
            for (l, channel) in channels.enumerate() {
                put(channel, [found[0][l], found[1][l]]);
            }
        }
    }
}

/// Elements of a channel, at a range of positions, in runs that lie side by side.
struct Runs<'a, T, const N: usize> {
    nest: &'a Nest<N>,
    from: [*const T; N],
    run: usize,
    range: Range<usize>,
}

impl<T, const N: usize> Runs<'_, T, N> {
    /// Sums of what is made of the elements.
    #[inline(always)]
    fn sums<W: Float, S: Simd, const K: usize>(&self, of: impl Fn([W; N]) -> [W; K]) -> [W; K]
    where
        T: Load<W>,
    {
        let Range { start, end } = self.range;
        let mut lanes =
            Lanes { sums: [[W::ZERO; LANES]; K], filled: 0, trees: [const { Tree::new() }; K] };
        for (r, at) in self.nest.turns(start / self.run..end.div_ceil(self.run)) {
            let (mut i, last) =
                (start.saturating_sub(r * self.run), self.run.min(end - r * self.run));
            while i < last {
                let n = (last - i).min(SPAN - lanes.filled);
                let mut from = self.from;
                for k in 0..N {
                    from[k] = from[k].wrapping_offset(at[k]).wrapping_add(i);
                }
                // SAFETY: so many elements of the run are left; a level is one that the machine
                // has.
                unsafe { lanes.add::<T, S, N>(from, n, &of) };
                i += n;
            }
        }
        lanes.end()
    }
}

/// Sums of one channel on their way.
struct Lanes<W, const K: usize> {
    sums: [[W; LANES]; K],
    /// Elements that are in them.
    filled: usize,
    trees: [Tree<W>; K],
}

impl<W: Float, const K: usize> Lanes<W, K> {
    /// Adds elements that lie side by side; the lanes have room for them.
    ///
    /// # Safety
    /// There are `n`, and the machine has what the level says.
    #[inline(always)]
    unsafe fn add<T: Load<W>, S: Simd, const N: usize>(
        &mut self,
        from: [*const T; N],
        n: usize,
        of: &impl Fn([W; N]) -> [W; K],
    ) {
        let mut sums = self.sums;
        for i in 0..n / LANES {
            let mut x = [[W::ZERO; LANES]; N];
            for k in 0..N {
                // SAFETY: by the caller's promise.
                x[k] = unsafe { T::load_some::<S, LANES>(from[k].add(i * LANES)) };
            }
            add_lanes(&mut sums, &x, LANES, of);
        }
        let rest = n % LANES;
        if rest > 0 {
            let mut x = [[W::ZERO; LANES]; N];
            for k in 0..N {
                for l in 0..rest {
                    // SAFETY: by the caller's promise.
                    x[k][l] = unsafe { *from[k].add(n - rest + l) }.load();
                }
            }
            add_lanes(&mut sums, &x, rest, of);
        }
        self.sums = sums;
        self.filled += n;
        if self.filled == SPAN {
            self.meet();
        }
    }

    #[inline(always)]
    fn meet(&mut self) {
        for k in 0..K {
            let lanes = &mut self.sums[k];
            let mut half = LANES / 2;
            while half > 0 {
                for l in 0..half {
                    lanes[l] = lanes[l].add(lanes[l + half]);
                }
                half /= 2;
            }
            self.trees[k].push(lanes[0], W::add);
            *lanes = [W::ZERO; LANES];
        }
        self.filled = 0;
    }

    #[inline(always)]
    fn end(mut self) -> [W; K] {
        self.meet();
        let mut sums = [W::ZERO; K];
        for k in 0..K {
            sums[k] = self.trees[k].end(W::add).unwrap_or(W::ZERO);
        }
        sums
    }
}

/// Adds what is made of the first elements, up to `n`.
#[inline(always)]
fn add_lanes<W: Float, const N: usize, const K: usize>(
    sums: &mut [[W; LANES]; K],
    x: &[[W; LANES]; N],
    n: usize,
    of: &impl Fn([W; N]) -> [W; K],
) {
    for l in 0..LANES {
        let mut one = [W::ZERO; N];
        for k in 0..N {
            one[k] = x[k][l];
        }
        let more = of(one);
        for k in 0..K {
            sums[k][l] = sums[k][l].add(if l < n { more[k] } else { W::NOTHING });
        }
    }
}

/// Rows of channels that lie side by side.
struct Rows<T, const N: usize> {
    from: [[*const T; N]; ROWS],
    count: usize,
    width: usize,
}

impl<T, const N: usize> Rows<T, N> {
    /// Adds what is made of the elements of each channel, and its number of `centres`, to `sums`.
    #[inline(always)]
    fn add<W: Float, S: Simd, const K: usize>(
        &self,
        centres: &[W; WIDTH],
        sums: &mut [[W; WIDTH]; K],
        of: impl Fn([W; N], W) -> [W; K],
    ) where
        T: Load<W>,
    {
        let (rows, rest) = self.from[..self.count].as_chunks::<TOGETHER>();
        let whole = self.width / SEVERAL * SEVERAL;
        // SAFETY: columns of all rows; a level is one that the machine has.
        unsafe {
            for rows in rows {
                for at in (0..whole).step_by(SEVERAL) {
                    add_some::<T, W, S, N, K, TOGETHER, SEVERAL>(rows, at, centres, sums, &of);
                }
                for at in whole..self.width {
                    add_some::<T, W, S, N, K, TOGETHER, 1>(rows, at, centres, sums, &of);
                }
            }
            for row in rest.as_chunks::<1>().0 {
                for at in (0..whole).step_by(SEVERAL) {
                    add_some::<T, W, S, N, K, 1, SEVERAL>(row, at, centres, sums, &of);
                }
                for at in whole..self.width {
                    add_some::<T, W, S, N, K, 1, 1>(row, at, centres, sums, &of);
                }
            }
        }
    }
}

/// Adds `C` columns of `R` rows.
///
/// # Safety
/// There are so many from `at` on, and the machine has what the level says.
#[inline(always)]
unsafe fn add_some<
    T: Load<W>,
    W: Float,
    S: Simd,
    const N: usize,
    const K: usize,
    const R: usize,
    const C: usize,
>(
    rows: &[[*const T; N]; R],
    at: usize,
    centres: &[W; WIDTH],
    sums: &mut [[W; WIDTH]; K],
    of: &impl Fn([W; N], W) -> [W; K],
) {
    let mut some = [[W::NOTHING; C]; K];
    for row in rows {
        let mut x = [[W::ZERO; C]; N];
        for k in 0..N {
            // SAFETY: by the caller's promise.
            x[k] = unsafe { T::load_some::<S, C>(row[k].add(at)) };
        }
        for l in 0..C {
            let mut one = [W::ZERO; N];
            for k in 0..N {
                one[k] = x[k][l];
            }
            let more = of(one, centres[at + l]);
            for k in 0..K {
                some[k][l] = some[k][l].add(more[k]);
            }
        }
    }
    for k in 0..K {
        for l in 0..C {
            sums[k][at + l] = sums[k][at + l].add(some[k][l]);
        }
    }
}
