//! One axis seen at other places: each element becomes a weighted sum of some of the axis.
//!
//! Places and weights are made once for all lines. Across memory whole rows are added up; along it
//! a line's elements are picked.

use super::super::isa::vectorize;
use super::super::nest::{Nest, Shared, in_parts};
use crate::room;
use crate::shape::contiguous_strides;
use crate::view::{Parallel, View, ViewMut};
use smallvec::SmallVec;
use std::ops::{Add, Mul};

/// Elements below which a further thread does not pay, as where rows are moved.
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 200 } else { 16 << 10 };

/// A type that sums are weighted in.
pub(crate) trait Float:
    Copy + Send + Sync + Add<Output = Self> + Mul<Output = Self> + Default + 'static
{
    fn of(x: f64) -> Self;
}
impl Float for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }
}
impl Float for f64 {
    fn of(x: f64) -> f64 {
        x
    }
}

/// Of what each element of the new axis is made: places in the old one, and weights.
pub(crate) struct Taps<W> {
    /// As many for each: those of one kind side by side. Otherwise those of an element are, and
    /// `starts` says where each begins.
    each: Option<usize>,
    starts: Vec<usize>,
    places: Vec<i32>,
    weights: Vec<W>,
    /// True where those of an element are neighbours in the old axis, in its order.
    runs: bool,
    /// What these are the way back of, where that has runs.
    forth: Option<Box<Taps<W>>>,
}

impl<W: Float> Taps<W> {
    /// `N` for each of `n` elements.
    pub fn new<const N: usize>(n: usize, of: impl Fn(usize) -> [(usize, W); N]) -> Taps<W> {
        let mut taps = Taps {
            each: Some(N),
            starts: Vec::new(),
            places: room::filled(N * n, 0),
            weights: room::filled(N * n, W::default()),
            runs: false,
            forth: None,
        };
        for i in 0..n {
            for (k, (place, weight)) in of(i).into_iter().enumerate() {
                taps.places[k * n + i] = place as i32;
                taps.weights[k * n + i] = weight;
            }
        }
        taps
    }

    /// Of each element an interval of the old axis: its first place, and a weight for each.
    pub fn intervals<'a>(all: impl Iterator<Item = (usize, &'a [f64])>) -> Taps<W> {
        let (mut starts, mut places, mut weights) = (vec![0], Vec::new(), Vec::new());
        for (first, own) in all {
            places.extend((first..first + own.len()).map(|place| place as i32));
            weights.extend(own.iter().map(|&weight| W::of(weight)));
            starts.push(places.len());
        }
        Taps { each: None, starts, places, weights, runs: true, forth: None }
    }

    /// Those of the way back, from `n` elements to an axis of a size: what flows to each element.
    pub fn turned(self, n: usize, size: usize) -> Taps<W> {
        let mut starts = room::filled(size + 1, 0);
        self.places.iter().for_each(|&p| starts[p as usize + 1] += 1);
        (0..size).for_each(|p| starts[p + 1] += starts[p]);
        let (mut next, all) = (starts.clone(), self.places.len());
        let (mut places, mut weights) = (room::filled(all, 0), room::filled(all, W::default()));
        for i in 0..n {
            for (place, weight) in self.of(i, n) {
                let at = &mut next[place as usize];
                (places[*at], weights[*at]) = (i as i32, weight);
                *at += 1;
            }
        }
        let forth = self.runs.then(|| Box::new(self));
        Taps { each: None, starts, places, weights, runs: false, forth }
    }

    /// The runs of old elements, of which each is of one new element, and their weights; if they
    /// are long enough to be worked on side by side.
    #[inline(always)]
    fn long_runs(&self) -> Option<impl Iterator<Item = (usize, &[W])>> {
        let elements = self.starts.len().saturating_sub(1);
        (self.runs && self.places.len() >= elements * LANES).then(|| {
            self.starts.windows(2).map(|ends| {
                let first = self.places.get(ends[0]).map_or(0, |&place| place as usize);
                (first, &self.weights[ends[0]..ends[1]])
            })
        })
    }

    /// How much there is to do for `n` elements, at least one.
    fn work(&self, n: usize) -> usize {
        n.max(self.places.len())
    }

    /// Those of an element.
    #[inline(always)]
    fn of(&self, i: usize, n: usize) -> impl Iterator<Item = (isize, W)> {
        let (range, step) = match self.each {
            Some(_) => (i..self.places.len(), n),
            None => (self.starts[i]..self.starts[i + 1], 1),
        };
        let (places, weights) = (&self.places[range.clone()], &self.weights[range]);
        let all = places.iter().zip(weights).step_by(step);
        all.map(|(&place, &weight)| (place as isize, weight))
    }
}

/// Makes a value of which one dimension has changed.
pub(crate) fn resample<W: Float>(
    x: View<'_>,
    dim: usize,
    taps: &Taps<W>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let (inner, n) = (crate::shape::numel(&x.shape[dim + 1..]), out.shape[dim]);
    let columns = Nest::new(&x.shape[dim + 1..], [&x.strides[dim + 1..]]).merged();
    let in_order = matches!(&columns.dims[..], [] | [super::super::nest::Dim { step: [1], .. }]);
    if !in_order || inner == 1 && x.strides[dim] != 1 {
        // What lies otherwise is brought into order.
        let mut copied = room::filled(x.numel(), W::default());
        let ptr = copied.as_mut_ptr().cast();
        let to = ViewMut { ptr, dtype: x.dtype, shape: x.shape, life: std::marker::PhantomData };
        super::super::copy::copy(x, &to, par);
        let strides = contiguous_strides(x.shape);
        return resample(View { ptr: to.ptr, strides: &strides, ..x }, dim, taps, out, par);
    }
    let outer = Nest::new(&x.shape[..dim], [&x.strides[..dim]]).merged();
    let (from, to) = (Shared::<W>::new(x.ptr.cast_mut()), Shared::<W>::new(out.ptr));
    if inner == 1 {
        return in_parts(outer.numel(), (LEAST / taps.work(n)).max(1), par, &|lines| {
            for (line, [offset]) in outer.turns(lines) {
                // SAFETY: a line of the input, and one of the output that is this part's.
                unsafe { along(from.at(offset), to.at((line * n) as isize), n, taps) }
            }
        });
    }
    let step = x.strides[dim];
    let work = inner.saturating_mul(taps.work(n) / n);
    in_parts(outer.numel() * n, (LEAST / work).max(1), par, &|rows| {
        for row in rows {
            let x = from.at(outer.at(row / n)[0]);
            let y = to.at((row * inner) as isize);
            // SAFETY: rows of the input, and one of the output that is this part's.
            unsafe { across(x, step, y, inner, taps.of(row % n, n)) }
        }
    });
}

/// # Safety
/// The row has `n` elements, and so have those of the input that are named, `step` apart.
#[inline(always)]
unsafe fn across<W: Float>(
    x: *const W,
    step: isize,
    y: *mut W,
    n: usize,
    taps: impl Iterator<Item = (isize, W)>,
) {
    let taps: SmallVec<[(*const W, W); 8]> =
        taps.map(|(place, weight)| (x.wrapping_offset(place * step), weight)).collect();
    // SAFETY: by the caller's promise.
    vectorize!(|| unsafe {
        if taps.is_empty() {
            (0..n).for_each(|i| y.add(i).write(W::default()));
        }
        for (k, some) in taps.chunks(4).enumerate() {
            match *some {
                [a, b] => added(y, n, k == 0, [a, b]),
                [a, b, c] => added(y, n, k == 0, [a, b, c]),
                [a, b, c, d] => added(y, n, k == 0, [a, b, c, d]),
                _ => added(y, n, k == 0, [some[0]]),
            }
        }
    });
}

/// Writes the weighted sum of some rows, or, but for the first, adds it to what is there.
///
/// # Safety
/// Each row has `n` elements.
#[inline(always)]
unsafe fn added<W: Float, const N: usize>(
    y: *mut W,
    n: usize,
    first: bool,
    rows: [(*const W, W); N],
) {
    for i in 0..n {
        // SAFETY: by the caller's promise.
        unsafe {
            let term = |k: usize| *rows[k].0.add(i) * rows[k].1;
            let start = if first { term(0) } else { *y.add(i) + term(0) };
            y.add(i).write((1..N).fold(start, |sum, k| sum + term(k)));
        }
    }
}

/// # Safety
/// The line has `n` elements, and the input's all that are named.
unsafe fn along<W: Float>(x: *const W, y: *mut W, n: usize, taps: &Taps<W>) {
    // SAFETY: by the caller's promise.
    unsafe {
        if let Some(runs) = taps.long_runs() {
            return vectorize!(|| for (i, (first, weights)) in runs.enumerate() {
                let x = std::slice::from_raw_parts(x.add(first), weights.len());
                y.add(i).write(dot(x, weights));
            });
        }
        if let Some(runs) = taps.forth.as_ref().and_then(|forth| forth.long_runs()) {
            return vectorize!(|| {
                (0..n).for_each(|i| y.add(i).write(W::default()));
                for (i, (first, weights)) in runs.enumerate() {
                    let (x, y) = (*x.add(i), y.add(first));
                    for (k, &weight) in weights.iter().enumerate() {
                        y.add(k).write(*y.add(k) + x * weight);
                    }
                }
            });
        }
        match taps.each {
            Some(2) => vectorize!(|| picked::<W, 2>(x, y, n, taps)),
            Some(4) => vectorize!(|| picked::<W, 4>(x, y, n, taps)),
            _ => {
                for i in 0..n {
                    let terms = taps.of(i, n).map(|(place, weight)| *x.offset(place) * weight);
                    y.add(i).write(terms.reduce(|a, b| a + b).unwrap_or_default());
                }
            }
        }
    }
}

/// Sums side by side: as many at every level, so that the bits are the same.
const LANES: usize = 16;

/// The weighted sum of neighbours. What whole lanes leave is added to the last of them: one after
/// the other it would take as long as all the rest.
#[inline(always)]
fn dot<W: Float>(x: &[W], weights: &[W]) -> W {
    let (mut sums, mut rest) = ([W::default(); LANES], W::default());
    let ((whole, tail), (own, last)) = (x.as_chunks::<LANES>(), weights.as_chunks::<LANES>());
    for (x, weights) in whole.iter().zip(own) {
        for k in 0..LANES {
            sums[k] = sums[k] + x[k] * weights[k];
        }
    }
    match (x.last_chunk::<LANES>(), weights.last_chunk::<LANES>()) {
        (Some(x), Some(weights)) => {
            let first = LANES - tail.len();
            for k in 0..LANES {
                let term = if k >= first { x[k] * weights[k] } else { W::default() };
                sums[k] = sums[k] + term;
            }
        }
        _ => {
            for (&x, &weight) in tail.iter().zip(last) {
                rest = rest + x * weight;
            }
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for k in 0..half {
            sums[k] = sums[k] + sums[k + half];
        }
        half /= 2;
    }
    sums[0] + rest
}

/// # Safety
/// As for [`along`]; there are `N` for each.
#[inline(always)]
unsafe fn picked<W: Float, const N: usize>(x: *const W, y: *mut W, n: usize, taps: &Taps<W>) {
    let places: [&[i32]; N] = std::array::from_fn(|k| &taps.places[k * n..][..n]);
    let weights: [&[W]; N] = std::array::from_fn(|k| &taps.weights[k * n..][..n]);
    for i in 0..n {
        // SAFETY: by the caller's promise.
        unsafe {
            let term = |k: usize| (*x.offset(places[k][i] as isize)) * weights[k][i];
            let sum = (1..N).fold(term(0), |sum, k| sum + term(k));
            y.add(i).write(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;

    /// A plain loop over all indices, in the order of the taps.
    fn plain(x: &Value<f32>, dim: usize, taps: &[Vec<(usize, f32)>]) -> Vec<f32> {
        let mut shape = x.shape.clone();
        shape[dim] = taps.len();
        let sum = |at: &Vec<usize>| {
            let terms = taps[at[dim]].iter().map(|&(place, weight)| {
                let mut at = at.clone();
                at[dim] = place;
                x.get(&at) * weight
            });
            terms.reduce(|a, b| a + b).unwrap_or(0.0)
        };
        indices(&shape).iter().map(sum).collect()
    }

    fn check<const N: usize>(rng: &mut Rng) {
        let rank = 1 + rng.below(3);
        let shape: Vec<usize> = (0..rank).map(|_| 1 + rng.below([0, 300, 80, 20][rank])).collect();
        let (dim, n, par) =
            (rng.below(rank), 1 + rng.below(90), Threads { threads: 2, seed: rng.word() });
        let some: Vec<[(usize, f32); N]> = (0..n)
            .map(|_| std::array::from_fn(|_| (rng.below(shape[dim]), rng.unit() as f32)))
            .collect();
        let x = Value::<f32>::random(rng, &shape, small);
        let (mut to, size) = (shape.clone(), shape[dim]);
        to[dim] = n;
        let made = || Taps::new(n, |i| some[i]);
        let got = filled::<f32>(&to, |out| resample(x.view(), dim, &made(), out, &par));
        let lists: Vec<_> = some.iter().map(|taps| taps.to_vec()).collect();
        assert_eq!(got, plain(&x, dim, &lists), "{shape:?} {dim} {n}");

        let g = Value::<f32>::random(rng, &to, small);
        let back = made().turned(n, size);
        let got = filled::<f32>(&shape, |out| resample(g.view(), dim, &back, out, &par));
        let mut lists = vec![Vec::new(); size];
        for (i, taps) in some.iter().enumerate() {
            taps.iter().for_each(|&(place, weight)| lists[place].push((i, weight)));
        }
        assert_eq!(got, plain(&g, dim, &lists), "back, {shape:?} {dim} {n}");
    }

    #[test]
    fn each_element_is_the_weighted_sum_of_its_taps_and_the_way_back_is_their_transpose() {
        let mut rng = Rng::new(64);
        for _ in turns(60) {
            check::<2>(&mut rng);
            check::<3>(&mut rng);
            check::<4>(&mut rng);
        }
    }

    #[test]
    fn an_interval_along_memory_is_added_up_whole_and_so_is_its_way_back() {
        let mut rng = Rng::new(65);
        for _ in turns(40) {
            let shape = [1 + rng.below(4), 1 + rng.below(700)];
            let n = 1 + rng.below(9);
            let weights: Vec<Vec<f64>> = (0..n)
                .map(|_| (0..rng.below(shape[1] + 1)).map(|_| rng.unit() - 0.5).collect())
                .collect();
            let first: Vec<usize> =
                weights.iter().map(|own| rng.below(shape[1] - own.len() + 1)).collect();
            let taps = Taps::<f32>::intervals(
                first.iter().copied().zip(weights.iter().map(|own| &own[..])),
            );
            let x = Value::<f32>::random(&mut rng, &shape, small);
            let par = Threads { threads: 2, seed: rng.word() };
            let got = filled::<f32>(&[shape[0], n], |out| resample(x.view(), 1, &taps, out, &par));
            let lists: Vec<Vec<(usize, f32)>> = std::iter::zip(&first, &weights)
                .map(|(first, own)| (*first..).zip(own.iter().map(|&w| w as f32)).collect())
                .collect();
            for (got, want) in got.iter().zip(plain(&x, 1, &lists)) {
                assert!((got - want).abs() <= 1e-4 * (1.0 + want.abs()), "{got} {want} {shape:?}");
            }

            let g = Value::<f32>::random(&mut rng, &[shape[0], n], small);
            let back = taps.turned(n, shape[1]);
            let got = filled::<f32>(&shape, |out| resample(g.view(), 1, &back, out, &par));
            let mut turned = vec![Vec::new(); shape[1]];
            for (i, taps) in lists.iter().enumerate() {
                taps.iter().for_each(|&(place, weight)| turned[place].push((i, weight)));
            }
            assert_eq!(got, plain(&g, 1, &turned), "back, {shape:?} {n}");
        }
    }

    at_every_level! {
        an_interval_along_memory_is_added_up_whole_and_so_is_its_way_back
        each_element_is_the_weighted_sum_of_its_taps_and_the_way_back_is_their_transpose
    }
}
