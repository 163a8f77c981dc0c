//! What flows back through elements at given places: to each element the sum of what flows back to
//! where it was put. Rows are summed up first, then the elements of their sum.

use super::super::isa::{Levelled, at_level};
use super::super::load::{Load, Narrowed, Row, Widened, by_float, over};
use super::super::nest::{Shared, in_parts};
use super::super::reduce::fold::Wide;
use super::super::simd::Simd;
use super::LEAST;
use super::along::{FEW, Run, runs};
use crate::room;
use crate::view::{Parallel, View, ViewMut};
use smallvec::SmallVec;
use std::marker::PhantomData;
use std::ops::Range;

/// A leading dimension of the result.
struct Dimension {
    size: usize,
    /// The step from one index to the next in what flows back.
    stride: isize,
    /// Where each place's elements come from, if elements were picked along the dimension.
    sources: Option<Sources>,
}

/// The indices that each place's elements come from, place after place.
struct Sources {
    starts: Vec<usize>,
    indices: Vec<usize>,
}

impl Sources {
    /// Of `size` places.
    fn new(places: &[usize], size: usize) -> Sources {
        let mut starts = room::filled(size + 1, 0);
        places.iter().for_each(|&place| starts[place + 1] += 1);
        (0..size).for_each(|place| starts[place + 1] += starts[place]);
        let (mut next, mut indices) = (room::filled(size, 0), room::filled(places.len(), 0));
        next.copy_from_slice(&starts[..size]);
        for (i, &place) in places.iter().enumerate() {
            indices[next[place]] = i;
            next[place] += 1;
        }
        Sources { starts, indices }
    }

    fn of(&self, place: usize) -> &[usize] {
        &self.indices[self.starts[place]..self.starts[place + 1]]
    }
}

/// `out[i, places[j], k]`, summed up, of `g[i, j, k]`, for places along dimension 1, and so on for
/// each dimension that has places. There is a dimension. All places are elements of the output.
pub(crate) fn summed(
    g: View<'_>,
    places: &[(usize, Vec<usize>)],
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() > 0 {
        by_float!(g.dtype, sums(g, places, out, par));
    }
}

fn sums<T: Load<W>, W: Wide + Load<W>>(
    g: View<'_>,
    places: &[(usize, Vec<usize>)],
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let last = out.shape.len() - 1;
    let along = |d: usize| places.iter().find(|(dim, _)| *dim == d).map(|(_, own)| &own[..]);
    let dimension = |d: usize| {
        let (size, stride) = (out.shape[d], g.strides[d]);
        Dimension { size, stride, sources: along(d).map(|places| Sources::new(places, size)) }
    };
    let dims: Vec<Dimension> = (0..last).map(dimension).collect();
    let (places, wide, n) = (along(last), g.shape[last], out.shape[last]);
    let runs = places.map_or_else(Vec::new, runs);
    let rows = crate::shape::numel(&out.shape[..last]);
    let (from, to) = (Shared::new(g.ptr.cast_mut()), Shared::new(out.ptr));
    let least = (LEAST * rows).div_ceil(crate::shape::numel(g.shape).max(out.numel()));
    in_parts(rows, least.max(1), par, &|rows| {
        let (dims, runs, step) = (&dims, &runs, g.strides[last]);
        let all = Rows { dims, rows, from, step, wide, places, runs, to, n };
        at_level(In::<T, W>(all, PhantomData));
    });
}

/// Some rows of the result.
struct Rows<'a, T> {
    dims: &'a [Dimension],
    rows: Range<usize>,
    from: Shared<T>,
    step: isize,
    /// Elements of a row of what flows back, their places, if they have some, and the runs of
    /// these.
    wide: usize,
    places: Option<&'a [usize]>,
    runs: &'a [Run],
    to: Shared<T>,
    n: usize,
}

impl<T> Rows<'_, T> {
    /// Where the rows begin that are summed up to one of the result.
    #[inline(always)]
    fn of(&self, mut row: usize) -> SmallVec<[isize; 8]> {
        let mut all = SmallVec::from_elem(0, 1);
        for dim in self.dims.iter().rev() {
            let at = row % dim.size;
            row /= dim.size;
            match &dim.sources {
                None => all.iter_mut().for_each(|from| *from += at as isize * dim.stride),
                Some(sources) => {
                    let steps = sources.of(at).iter().map(|&i| i as isize * dim.stride);
                    all = steps.flat_map(|step| all.iter().map(move |from| from + step)).collect();
                }
            }
        }
        all
    }
}

/// Adds elements of a row.
struct Added<T, W> {
    from: *const T,
    to: *mut W,
}

impl<T: Load<W>, W: Wide> Row for Added<T, W> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let (all, to) = (T::load_some::<S, N>(self.from.add(i)), self.to.add(i));
            for (k, x) in all.into_iter().enumerate() {
                to.add(k).write((*to.add(k)).add(x));
            }
        }
    }
}

/// Binds the type that sums are computed in.
struct In<'a, T, W>(Rows<'a, T>, PhantomData<W>);

impl<T: Load<W>, W: Wide + Load<W>> Levelled for In<'_, T, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let all = self.0;
        let (mut row_sum, mut sum) =
            (room::filled(all.wide, W::ZERO), room::filled(all.n, W::ZERO));
        for row in all.rows.clone() {
            let rows = all.of(row);
            if rows.is_empty() {
                row_sum.fill(W::ZERO);
            }
            for (k, &at) in rows.iter().enumerate() {
                let (from, to) = (all.from.at(at).cast_const(), row_sum.as_mut_ptr());
                // SAFETY: a row of what flows back, and room for it; a level is one that the
                // machine has.
                unsafe {
                    match (all.step, k) {
                        (1, 0) => over::<T, W, S>(all.wide, Widened { from, to }),
                        (1, _) => over::<T, W, S>(all.wide, Added { from, to }),
                        (step, _) => {
                            for (i, to) in row_sum.iter_mut().enumerate() {
                                let x = (*from.offset(i as isize * step)).load();
                                *to = if k == 0 { x } else { to.add(x) };
                            }
                        }
                    }
                }
            }
            let from = match all.places {
                None => row_sum.as_ptr(),
                Some(places) => {
                    sum.fill(W::ZERO);
                    to_places(&row_sum, places, all.runs, &mut sum);
                    sum.as_ptr()
                }
            };
            // SAFETY: a row of the output, which is this part's own, and as many sums.
            unsafe {
                let to = all.to.at((row * all.n) as isize);
                over::<T, W, S>(all.n, Narrowed { from, to });
            }
        }
    }
}

/// Adds each element to that at its place.
#[inline(always)]
fn to_places<W: Wide>(x: &[W], places: &[usize], runs: &[Run], sum: &mut [W]) {
    if runs.len() * FEW > x.len() {
        for (&x, &place) in x.iter().zip(places) {
            sum[place] = sum[place].add(x);
        }
        return;
    }
    for run in runs {
        let x = &x[run.first..run.first + run.n];
        let from = run.from as usize;
        match run.step {
            1 => sum[from..from + run.n].iter_mut().zip(x).for_each(|(s, &x)| *s = s.add(x)),
            step => {
                for (i, &x) in x.iter().enumerate() {
                    let place = from.wrapping_add_signed(i as isize * step);
                    sum[place] = sum[place].add(x);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;
    use crate::dtype::Element;
    use half::{bf16, f16};

    fn check<T: Element>(rng: &mut Rng) {
        let rank = 1 + rng.below(4);
        let to: Vec<usize> = (0..rank).map(|_| 1 + rng.below([0, 90, 30, 9, 5][rank])).collect();
        let (mut places, mut shape) = (Vec::new(), to.clone());
        for d in 0..rank {
            let n = to[d];
            let own: Vec<usize> = match rng.below(6) {
                // Reflected, twice each, anywhere, some left out, none.
                0 => (0..n).rev().chain(0..n).chain((0..n).rev()).collect(),
                1 => (0..n).flat_map(|p| [p, p]).collect(),
                2 => (0..1 + rng.below(40)).map(|_| rng.below(n)).collect(),
                3 => [vec![0; 3], (0..n).collect(), vec![n - 1; 5]].concat(),
                4 => (n / 2..n).collect(),
                _ => continue,
            };
            shape[d] = own.len();
            places.push((d, own));
        }
        // Whole numbers, whose sums are the same in any order and of any type.
        let g = Value::<T>::random(rng, &shape, |rng| T::from_i64(rng.below(4) as i64));
        let mut wanted = vec![0.0; to.iter().product()];
        for from in indices(&shape) {
            let mut at = from.clone();
            places.iter().for_each(|(d, own)| at[*d] = own[from[*d]]);
            let at = at.iter().zip(&to).fold(0, |all, (&i, &n)| all * n + i);
            wanted[at] += g.get(&from).to_f64();
        }
        // Beyond 256 two neighbours of bfloat16 may be more than 1 apart.
        let wanted: Vec<T> = wanted.into_iter().map(T::from_f64).collect();
        let par = Threads { threads: 1 + rng.below(3), seed: rng.word() };
        let got = filled::<T>(&to, |out| summed(g.view(), &places, out, &par));
        assert_eq!(got, wanted, "{shape:?} to {to:?} by {places:?}");
    }

    #[test]
    fn each_element_gets_the_sum_of_what_comes_from_where_it_was_put() {
        let mut rng = Rng::new(93);
        for _ in 0..120 {
            check::<f32>(&mut rng);
            check::<bf16>(&mut rng);
            check::<f16>(&mut rng);
            check::<f64>(&mut rng);
        }
    }
}
