//! Elements at given places along some dimensions: what padding with a value's own elements, and
//! taking the nearest ones, are made of.

use super::super::isa::vectorize;
use super::super::nest::{Shared, in_parts};
use super::super::run::copy_run;
use super::{LEAST, with_size};
use crate::view::{Parallel, View, ViewMut};
use smallvec::SmallVec;
use std::ops::Range;

/// Neighbours of a result whose places are a step apart: 1, -1 or 0.
pub(super) struct Run {
    pub first: usize,
    pub n: usize,
    pub from: isize,
    pub step: isize,
}

/// Elements of a run on average, below which elements are picked one by one.
pub(super) const FEW: usize = 4;

/// The runs that places are, in their order.
pub(super) fn runs(places: &[usize]) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for (i, &place) in places.iter().enumerate() {
        if let Some(run) = all.last_mut() {
            let step = place as isize - (run.from + (run.n as isize - 1) * run.step);
            if step == run.step && run.n > 1 || run.n == 1 && (-1..=1).contains(&step) {
                (run.n, run.step) = (run.n + 1, step);
                continue;
            }
        }
        all.push(Run { first: i, n: 1, from: place as isize, step: 1 });
    }
    all
}

/// A dimension of the result: where its elements begin in the source.
struct Along<'a> {
    size: usize,
    stride: isize,
    places: Option<&'a [usize]>,
}

impl Along<'_> {
    #[inline(always)]
    fn at(&self, i: usize) -> isize {
        self.places.map_or(i, |places| places[i]) as isize * self.stride
    }
}

/// Rows that follow each other in one dimension: the index of each dimension before it, and where
/// their source begins. From some rows to the next it counts: divisions would take longer.
struct Plane<'a> {
    dims: &'a [Along<'a>],
    index: SmallVec<[usize; 8]>,
    at: isize,
}

impl<'a> Plane<'a> {
    fn new(dims: &'a [Along<'a>], mut turn: usize) -> Plane<'a> {
        let (mut index, mut at) = (SmallVec::from_elem(0, dims.len()), 0);
        for (i, own) in index.iter_mut().zip(dims).rev() {
            *i = turn % own.size;
            at += own.at(*i);
            turn /= own.size;
        }
        Plane { dims, index, at }
    }

    /// Goes on to the next plane. Not part of the loop over rows, which is compiled for a level:
    /// there not all of this would be inlined, and the rows would wait for its calls.
    #[inline(never)]
    fn advance(&mut self) {
        for (i, own) in self.index.iter_mut().zip(self.dims).rev() {
            self.at -= own.at(*i);
            *i += 1;
            if *i < own.size {
                self.at += own.at(*i);
                return;
            }
            *i = 0;
            self.at += own.at(0);
        }
    }
}

/// `out[i, j, k] = x[i, places[j], k]` for places along dimension 1, and so on for each dimension
/// that has places. All places are elements of the input.
pub(crate) fn picked(
    x: View<'_>,
    places: &[(usize, Vec<usize>)],
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let Some((&n, lead)) = out.shape.split_last().filter(|_| out.numel() > 0) else { return };
    let mut dims: SmallVec<[Along<'_>; 8]> = SmallVec::new();
    for (d, &size) in out.shape.iter().enumerate() {
        let own = places.iter().find(|(dim, _)| *dim == d).map(|(_, own)| &own[..]);
        debug_assert!(
            own.is_none_or(|own| own.len() == size && own.iter().all(|&p| p < x.shape[d]))
        );
        dims.push(Along { size, stride: x.strides[d], places: own });
    }
    let (columns, step) = (&dims[lead.len()], x.strides[lead.len()]);
    let along = match places.iter().find(|(dim, _)| *dim == lead.len()) {
        Some((_, places)) => runs(places),
        None => vec![Run { first: 0, n, from: 0, step: 1 }],
    };
    let rows = crate::shape::numel(lead);
    let none = Along { size: 1, stride: 0, places: None };
    let (down, outer) = dims[..lead.len()].split_last().unwrap_or((&none, &[]));
    with_size!(x.dtype, T => {
        let (from, to) = (Shared::<T>::new(x.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        in_parts(rows, (LEAST / n).max(1), par, &|part| {
            let lines = Lines { outer, down, columns, step, along: &along, from, to };
            // SAFETY: rows of the output that are this part's own; places are elements of the
            // input.
            match along.len() * FEW > n {
                true => unsafe { lines.copy::<false>(part) },
                false => vectorize!(|| unsafe { lines.copy::<true>(part) }),
            }
        });
    });
}

/// Rows of the result, and what they are made of.
struct Lines<'a, T> {
    outer: &'a [Along<'a>],
    /// The dimension before the last, along which rows follow each other.
    down: &'a Along<'a>,
    columns: &'a Along<'a>,
    step: isize,
    along: &'a [Run],
    from: Shared<T>,
    to: Shared<T>,
}

impl<T: Copy> Lines<'_, T> {
    /// By runs, or element by element.
    ///
    /// # Safety
    /// There are such rows, and nobody else writes them; places are elements of the source.
    #[inline(always)]
    unsafe fn copy<const BY_RUNS: bool>(&self, rows: Range<usize>) {
        let n = self.columns.size;
        let mut before = None;
        let mut plane = Plane::new(self.outer, rows.start / self.down.size);
        let mut i = rows.start % self.down.size;
        for row in rows {
            let at = plane.at + self.down.at(i);
            let (source, y) = (self.from.at(at).cast_const(), self.to.at((row * n) as isize));
            i += 1;
            if i == self.down.size {
                i = 0;
                plane.advance();
            }
            // SAFETY: by the caller's promise; the row before is one of these.
            unsafe {
                if before.replace(at) == Some(at) {
                    copy_run(y, y.sub(n), n);
                } else if BY_RUNS {
                    for run in self.along {
                        let source = source.offset(run.from * self.step);
                        copy_steps(source, run.step * self.step, y.add(run.first), run.n);
                    }
                } else {
                    for i in 0..n {
                        y.add(i).write(*source.offset(self.columns.at(i)));
                    }
                }
            }
        }
    }
}

/// # Safety
/// There are `n` elements, of the source a step apart; the two do not overlap.
#[inline(always)]
unsafe fn copy_steps<T: Copy>(x: *const T, step: isize, y: *mut T, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if step == 1 && n > 4 {
            return copy_run(y, x, n);
        }
        for i in 0..n {
            y.add(i).write(*x.offset(i as isize * step));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;

    fn check<T: crate::dtype::Element>(rng: &mut Rng) {
        let rank = 1 + rng.below(4);
        let shape: Vec<usize> = (0..rank).map(|_| 1 + rng.below([0, 90, 30, 9, 5][rank])).collect();
        let x = Value::<T>::random(rng, &shape, small);
        let (mut places, mut to) = (Vec::new(), shape.clone());
        for d in 0..rank {
            let n = shape[d];
            let own: Vec<usize> = match rng.below(5) {
                // Reflected, a step at a time, twice each, anywhere, none.
                0 => (0..n).rev().chain(0..n).chain((0..n).rev()).collect(),
                1 => (0..n).flat_map(|p| [p, p]).collect(),
                2 => (0..1 + rng.below(40)).map(|_| rng.below(n)).collect(),
                3 => [vec![0; 3], (0..n).collect(), vec![n - 1; 5]].concat(),
                _ => continue,
            };
            to[d] = own.len();
            places.push((d, own));
        }
        let par = Threads { threads: 1 + rng.below(3), seed: rng.word() };
        let got = filled::<T>(&to, |out| picked(x.view(), &places, out, &par));
        for (at, got) in indices(&to).into_iter().zip(got) {
            let mut from = at.clone();
            places.iter().for_each(|(d, own)| from[*d] = own[at[*d]]);
            assert_eq!(got, x.get(&from), "{at:?} of {shape:?} at {places:?}");
        }
    }

    #[test]
    fn each_element_is_that_at_its_places() {
        let mut rng = Rng::new(92);
        for _ in 0..120 {
            check::<f32>(&mut rng);
            check::<half::bf16>(&mut rng);
            check::<i64>(&mut rng);
            check::<u8>(&mut rng);
        }
    }

    at_every_level! { each_element_is_that_at_its_places }
}
