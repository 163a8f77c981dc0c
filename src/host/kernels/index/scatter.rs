//! `scatter` and `scatter_reduce`: elements put at places that are data, or joined with what is
//! there.
//!
//! Lines along the dimension never meet in the output, so they may be worked on at once. Neighbours
//! are worked on side by side, as they lie in memory. Where many elements come to few places on few
//! lines, runs of the index have copies of the places to themselves, which are joined at the end.
//! How many runs there are depends on the shapes alone, and so do the bits.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Dim, Nest, Shared, in_parts, slice_of};
use super::super::reduce::fold::Wide;
use super::super::stream::prefetch_all;
use super::places::{BLOCK, Places};
use super::wide::join_runs;
use super::{Failure, OutOfRange, PICKED, read, with_size};
use crate::dtype::DType;
use crate::op::{ScatterMode, scatter_runs};
use crate::room;
use crate::shape::contiguous_strides;
use crate::view::{Parallel, View, ViewMut};
use half::{bf16, f16};
use std::ops::Range;

/// Lines that are worked on side by side, at most.
const SIDE: usize = 64;
/// Shorter lines are not worth a walk of their own.
const SHORT: usize = 32;
/// So many places on, the memory is asked for what lies there: of places that are data no machine
/// foresees one.
const AHEAD: usize = 8;
/// Elements that are kept at a time in the type that they are computed in: some 512 KiB.
const KEPT: usize = 1 << 17;

/// `out[i, index[i, j, k], k]` joined with `src[i, j, k]` for `dim` 1. Where an index comes more
/// than once, that is done in order; of halves in float32, rounded once. (Where there are many to a
/// place, runs of them are joined first, in order too, and then these.) Negative indices count
/// `from_end`, or are out of range. The index may be smaller than `src` in any dimension, and
/// smaller than the output in all but `dim`.
///
/// # Errors
/// The first index that is out of range.
pub(crate) fn scatter(
    dim: usize,
    mode: ScatterMode,
    from_end: bool,
    index: View<'_>,
    src: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    if index.numel() == 0 {
        return Ok(());
    }
    let call = Call { dim, from_end, index: &index, src: &src, out, par };
    let failure = Failure::none();
    let lines = Lines::new(&call, &failure);
    macro_rules! by_type {
        ($($dtype:pat => $T:ident in $W:ident,)*) => {
            match out.dtype {
                $($dtype => joined::<$T, $W>(&call, &lines, mode),)*
                stored => stored.never_computed(),
            }
        };
    }
    match mode {
        ScatterMode::Assign => with_size!(out.dtype, T => {
            lines.in_place(&call, |_: T, x: T| x)
        }),
        _ => by_type! {
            DType::F32 => f32 in f32,
            DType::F64 => f64 in f64,
            DType::F16 => f16 in f32,
            DType::BF16 => bf16 in f32,
            DType::I32 => i32 in i32,
            DType::I64 => i64 in i64,
            DType::U8 | DType::Bool => u8 in u8,
        },
    }
    failure.result(out.shape[dim], |turn| read(&index, turn))
}

struct Call<'a> {
    dim: usize,
    /// Negative indices count from the end.
    from_end: bool,
    index: &'a View<'a>,
    src: &'a View<'a>,
    out: &'a ViewMut<'a>,
    par: &'a dyn Parallel,
}

/// Joins elements by what the mode says. The others but sums are rare, and share a loop.
fn joined<T: Load<W>, W: Wide>(call: &Call<'_>, lines: &Lines<'_>, mode: ScatterMode) {
    type Join<W> = fn(W, W) -> W;
    let (join, nothing): (Join<W>, W) = match mode {
        // The sum of truths is "or".
        ScatterMode::Sum if call.out.dtype == DType::Bool => (W::larger, W::LEAST),
        ScatterMode::Sum | ScatterMode::Assign => {
            return join_all::<T, W>(call, lines, true, W::NOTHING, W::add);
        }
        ScatterMode::Prod => (W::mul, W::ONE),
        ScatterMode::Max => (W::larger, W::LEAST),
        ScatterMode::Min => (W::smaller, W::MOST),
    };
    let rounded = matches!(mode, ScatterMode::Prod);
    join_all::<T, W>(call, lines, rounded, nothing, join);
}

/// Joins all elements, where joining may have `rounded` and `nothing` changes nothing.
fn join_all<T: Load<W>, W: Wide>(
    call: &Call<'_>,
    lines: &Lines<'_>,
    rounded: bool,
    nothing: W,
    join: impl Fn(W, W) -> W + Copy + Sync,
) {
    let runs = scatter_runs(call.index.shape, call.dim, lines.size);
    if runs > 1 {
        return lines.in_runs::<T, W>(call, runs, nothing, join);
    }
    if T::IS_WIDE || !rounded {
        return lines.in_place(call, |y: T, x: T| T::store(join(y.load(), x.load())));
    }
    // Where few places are named, these are found instead: to sort an index takes the time of some
    // 16 places, but once for all the lines that share it.
    let shared = if lines.side.step[1] == 0 { lines.side.size } else { 1 };
    if lines.n.saturating_mul(16) / shared <= lines.size + lines.n {
        let Call { dim, from_end, index, src, out, par } = *call;
        return join_runs::<T, W>((dim, from_end), index, src, out, par, lines.failure, join);
    }
    lines.kept::<T, W>(call, join);
}

/// The lines along a dimension. Operands are the positions in the index, the index, the source,
/// and the output.
struct Lines<'a> {
    /// Lines that are no neighbours.
    outer: Nest<4>,
    /// Those that are.
    side: Dim<4>,
    /// Indices of a line.
    n: usize,
    step: [isize; 4],
    /// Places of a line.
    size: usize,
    places: Places,
    failure: &'a Failure,
}

/// Where places lie: the first one's address, and the steps from one to the next and from one line
/// to the next.
#[derive(Clone, Copy)]
struct At<D> {
    first: Shared<D>,
    step: isize,
    side: isize,
}

impl<'a> Lines<'a> {
    fn new(call: &Call<'_>, failure: &'a Failure) -> Lines<'a> {
        let (shape, dim) = (call.index.shape, call.dim);
        let own = contiguous_strides(shape);
        let to = contiguous_strides(call.out.shape);
        let of = |range: Range<usize>| {
            let s = [&own[..], call.index.strides, call.src.strides, &to];
            Nest::new(&shape[range.clone()], s.map(|s| &s[range.clone()])).merged()
        };
        let (mut outer, mut inner) = (of(0..dim), of(dim + 1..shape.len()));
        let mut side = inner.dims.pop().unwrap_or(Dim { size: 1, step: [0; 4] });
        outer.dims.extend(inner.dims);
        // Of short lines many are worked on at once, though they be no neighbours.
        if side.size == 1 && shape[dim] < SHORT {
            side = outer.dims.pop().unwrap_or(side);
        }
        let step = [own[dim], call.index.strides[dim], call.src.strides[dim], to[dim]];
        let size = call.out.shape[dim];
        let places = Places::new(call.index, size, call.from_end);
        Lines { outer, side, n: shape[dim], step, size, places, failure }
    }

    /// The part of neighbours that a number names.
    fn cut(&self, cuts: usize, unit: usize) -> ([isize; 4], Range<usize>) {
        let cut = slice_of(self.side.size, cuts, unit % cuts);
        let mut at = self.outer.at(unit / cuts);
        (0..4).for_each(|i| at[i] += cut.start as isize * self.side.step[i]);
        (at, cut)
    }

    /// Puts elements where they belong in the output.
    fn in_place<T: Copy + Send + Sync + 'static>(
        &self,
        call: &Call<'_>,
        put: impl Fn(T, T) -> T + Copy + Sync,
    ) {
        let (outers, side) = (self.outer.numel(), self.side.size);
        let wanted = (4 * call.par.threads()).div_ceil(outers);
        let cuts = side.div_ceil(SIDE).min(wanted);
        let least = (PICKED * cuts / (self.n * side).max(1)).max(1);
        let to = Shared::<T>::new(call.out.ptr);
        in_parts(outers * cuts, least, call.par, &|units| {
            for unit in units {
                let (at, cut) = self.cut(cuts, unit);
                let first = Shared::new(to.at(at[3]));
                let to = At { first, step: self.step[3], side: self.side.step[3] };
                // SAFETY: these lines are this part's.
                unsafe { self.put(call, at, cut.len(), 0..self.n, to, put) }
            }
        });
    }

    /// Joins elements with what lies in the output, and rounds at the end of it.
    fn kept<T: Load<W>, W: Wide>(&self, call: &Call<'_>, join: impl Fn(W, W) -> W + Copy + Sync) {
        let width = (KEPT / self.size.max(1)).clamp(1, SIDE);
        let cuts = self.side.size.div_ceil(width);
        let all = self.n.max(self.size) * self.side.size;
        let to = Shared::<T>::new(call.out.ptr);
        in_parts(
            self.outer.numel() * cuts,
            (PICKED * cuts / all.max(1)).max(1),
            call.par,
            &|units| {
                let mut kept: Vec<W> = room::filled(width * self.size, W::NOTHING);
                for unit in units {
                    let (at, cut) = self.cut(cuts, unit);
                    let (to, side) = (to.at(at[3]), cut.len());
                    // One line is one run of places; of several, each place is a run of lines.
                    let (runs, apart, n, step) = match side {
                        1 => (1, 0, self.size, self.step[3]),
                        _ => (self.size, self.step[3], side, self.side.step[3]),
                    };
                    let first = Shared::new(kept.as_mut_ptr());
                    let at_kept = At { first, step: side as isize, side: 1 };
                    let of = |run: usize| {
                        (to.wrapping_offset(run as isize * apart), first.at((run * n) as isize))
                    };
                    // SAFETY: the runs are the elements of these lines of the output, which are
                    // this part's, and the memory has an element for each.
                    unsafe {
                        vectorize!(|| for (y, kept) in (0..runs).map(of) {
                            Line { n, step: [step, 1] }.put(y, kept, |_: W, y: T| y.load());
                        });
                        self.put(call, at, side, 0..self.n, at_kept, |y: W, x: T| {
                            join(y, x.load())
                        });
                        vectorize!(|| for (y, kept) in (0..runs).map(of) {
                            Line { n, step: [1, step] }.put(kept, y, |_: T, y: W| T::store(y));
                        });
                    }
                }
            },
        );
    }

    /// Joins the elements of each run of the index, and these with what lies in the output.
    fn in_runs<T: Load<W>, W: Wide>(
        &self,
        call: &Call<'_>,
        runs: usize,
        nothing: W,
        join: impl Fn(W, W) -> W + Copy + Sync,
    ) {
        let cuts = self.side.size.div_ceil(SIDE);
        let units = self.outer.numel() * cuts;
        let width = self.side.size.div_ceil(cuts);
        let places = self.size * width;
        let mut kept = room::filled(units * runs * places, nothing);
        let own = Shared::<W>::new(kept.as_mut_ptr());
        call.par.run(units * runs, &|i| {
            let (at, cut) = self.cut(cuts, i / runs);
            let first = Shared::new(own.at((i * places) as isize));
            let to = At { first, step: cut.len() as isize, side: 1 };
            let turns = slice_of(self.n, runs, i % runs);
            // SAFETY: the run's own memory has an element for each place of each of these lines.
            unsafe { self.put(call, at, cut.len(), turns, to, |y: W, x: T| join(y, x.load())) }
        });
        let to = Shared::<T>::new(call.out.ptr);
        in_parts(units * self.size, (PICKED / (width * runs)).max(1), call.par, &|part| {
            for i in part {
                let ((at, cut), p) = (self.cut(cuts, i / self.size), i % self.size);
                for c in 0..cut.len() {
                    let of = at[3] + p as isize * self.step[3] + c as isize * self.side.step[3];
                    let first = i / self.size * runs * places + p * cut.len() + c;
                    // SAFETY: an element of the output that is this part's, and its places in the
                    // memory of runs, which are all through.
                    unsafe {
                        let mut sum = (*to.at(of)).load();
                        for run in 0..runs {
                            sum = join(sum, *own.at((first + run * places) as isize));
                        }
                        to.at(of).write(T::store(sum));
                    }
                }
            }
        });
    }

    /// Puts the elements of a range of indices, on a number of lines side by side, to their places.
    ///
    /// # Safety
    /// Lines begin at `at`. The memory behind `to` has every place of each line, and nobody else
    /// uses it.
    #[inline(always)]
    unsafe fn put<T: Copy, D: Copy>(
        &self,
        call: &Call<'_>,
        at: [isize; 4],
        lines: usize,
        turns: Range<usize>,
        to: At<D>,
        join: impl Fn(D, T) -> D + Copy,
    ) {
        let from = Shared::<T>::new(call.src.ptr.cast_mut());
        let (step, side, mut room) = (self.step, self.side.step, [0; BLOCK]);
        let fail = |at: isize, good: usize, step: isize| {
            self.failure.at((at + good as isize * step) as usize);
        };
        // SAFETY: by the caller's promise throughout; `block` has seen that the places are there.
        unsafe {
            if lines == 1 || side[1] == 0 {
                for first in turns.clone().step_by(BLOCK) {
                    let n = BLOCK.min(turns.end - first);
                    let [turn, i, x, _] = std::array::from_fn(|k| at[k] + first as isize * step[k]);
                    match self.places.block(i, step[1], n, &mut room) {
                        Ok(places) if lines == 1 => {
                            for (j, p) in places.iter().enumerate() {
                                let y = to.first.at(p * to.step);
                                y.write(join(*y, *from.at(x + j as isize * step[2])));
                            }
                        }
                        Ok(places) => {
                            let line = Line { n: lines, step: [side[2], to.side] };
                            let (x, step) = (from.at(x), [step[2], to.step]);
                            vectorize!(move || for (j, p) in places.iter().enumerate() {
                                if let Some(p) = places.get(j + AHEAD) {
                                    line.ask(to.first.at(p * step[1]));
                                }
                                let x = x.offset(j as isize * step[0]);
                                line.put(x, to.first.at(p * step[1]), join);
                            });
                        }
                        Err(good) => fail(turn, good, step[0]),
                    }
                }
                return;
            }
            for j in turns {
                let at: [isize; 4] = std::array::from_fn(|k| at[k] + j as isize * step[k]);
                for first in (0..lines).step_by(BLOCK) {
                    let n = BLOCK.min(lines - first);
                    let [turn, i, x, _] = std::array::from_fn(|k| at[k] + first as isize * side[k]);
                    match self.places.block(i, side[1], n, &mut room) {
                        Ok(places) => {
                            let y = to.first.at(first as isize * to.side);
                            for (c, p) in places.iter().enumerate() {
                                let c = c as isize;
                                let y = y.wrapping_offset(p * to.step + c * to.side);
                                y.write(join(*y, *from.at(x + c * side[2])));
                            }
                        }
                        Err(good) => fail(turn, good, side[0]),
                    }
                }
            }
        }
    }
}

/// Elements that come to as many places, one each.
#[derive(Clone, Copy)]
struct Line {
    n: usize,
    step: [isize; 2],
}

impl Line {
    /// Asks for the places.
    #[inline(always)]
    fn ask<D>(&self, y: *const D) {
        if self.step[1] == 1 {
            prefetch_all(y, self.n);
        }
    }

    /// # Safety
    /// There are so many elements from both addresses on.
    #[inline(always)]
    unsafe fn put<T: Copy, D: Copy>(&self, x: *const T, y: *mut D, join: impl Fn(D, T) -> D) {
        let [from, to] = self.step;
        // SAFETY: by the caller's promise.
        unsafe {
            match (from, to) {
                (1, 1) => {
                    let x = std::slice::from_raw_parts(x, self.n);
                    let y = std::slice::from_raw_parts_mut(y, self.n);
                    y.iter_mut().zip(x).for_each(|(y, x)| *y = join(*y, *x));
                }
                _ => {
                    for c in 0..self.n as isize {
                        let y = y.offset(c * to);
                        y.write(join(*y, *x.offset(c * from)));
                    }
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

    /// Many elements to few places, by random layouts. Gives the index, the elements and the sums
    /// (or products) of each place, which has 1 before.
    fn many<T: Element>(rng: &mut Rng, mode: ScatterMode, draw: fn(&mut Rng) -> f64) {
        let size = 1 + rng.below(5);
        let mut shape = vec![900 + rng.below(900), 1 + rng.below(3), 1 + rng.below(3)];
        let dim = rng.below(3);
        shape.swap(0, dim);
        let mut to = shape.clone();
        to[dim] = size;
        let src = Value::<T>::random(rng, &shape, |r| T::from_f64(draw(r)));
        let index = Value::<i32>::random(rng, &shape, |r| r.below(size) as i32);
        let run = |threads: usize, seed: u64| {
            filled::<T>(&to, |out| {
                super::super::super::copy::fill(crate::Scalar::Int(1), out, &crate::view::Serial);
                let par = Threads { threads, seed };
                scatter(dim, mode, true, index.view(), src.view(), out, &par).unwrap();
            })
        };
        let got = run(1 + rng.below(3), rng.word());
        let bits = |x: &[T]| x.iter().map(|x| x.to_f64().to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got), bits(&run(1 + rng.below(3), rng.word())), "whatever the threads");
        let mut want = Value::new(&to, vec![1.0f64; got.len()]);
        for at in indices(&shape) {
            let mut place = at.clone();
            place[dim] = index.get(&at) as usize;
            let i: isize = place.iter().zip(&want.strides).map(|(&i, &s)| i as isize * s).sum();
            let (there, x) = (&mut want.data[i as usize], src.get(&at).to_f64());
            *there = match mode {
                ScatterMode::Prod => *there * x,
                ScatterMode::Max => there.max(x),
                ScatterMode::Min => there.min(x),
                ScatterMode::Sum => *there + x,
                ScatterMode::Assign => x,
            };
        }
        let want: Vec<T> = want.data.into_iter().map(T::from_f64).collect();
        assert_eq!(bits(&got), bits(&want), "{mode:?} of {} over {dim} of {shape:?}", T::DTYPE);
    }

    #[test]
    fn many_come_to_few_places_and_none_is_lost() {
        let mut rng = Rng::new(61);
        // Sums and products that are exact in any order.
        let whole: fn(&mut Rng) -> f64 = |r| r.below(9) as f64 - 4.0;
        let powers: fn(&mut Rng) -> f64 = |r| [1.0, 1.0, -1.0, 1.0][r.below(4)];
        for _ in turns(12) {
            for mode in ScatterMode::ALL {
                let draw = if mode == ScatterMode::Prod { powers } else { whole };
                many::<f32>(&mut rng, mode, draw);
                many::<half::f16>(&mut rng, mode, draw);
                many::<half::bf16>(&mut rng, mode, draw);
                many::<i64>(&mut rng, mode, draw);
            }
        }
    }

    /// Whether many come in runs or few in turn, and however the elements lie.
    #[test]
    fn a_sum_has_one_order_and_leaves_places_that_are_not_named_as_they_are() {
        let mut rng = Rng::new(63);
        let (n, a, b) = (700, 2, 3);
        let draw = |rng: &mut Rng| rng.unit() as f32;
        let src = Value::<f32>::new(&[n, a, b], (0..n * a * b).map(|_| draw(&mut rng)).collect());
        // The same elements, in the opposite order of dimensions.
        let mut turned = src.clone();
        turned.strides = vec![1, n as isize, (n * a) as isize];
        for (k, at) in indices(&src.shape).iter().enumerate() {
            turned.data[at[0] + n * at[1] + n * a * at[2]] = src.data[k];
        }
        let names = (0..n * a * b).map(|_| rng.below(6) as i64).collect();
        let index = Value::<i64>::new(&[n, a, b], names);
        let run = |src: &Value<f32>| {
            filled::<f32>(&[7, a, b], |out| {
                super::super::super::copy::fill(
                    crate::Scalar::Float(-0.0),
                    out,
                    &crate::view::Serial,
                );
                scatter(
                    0,
                    ScatterMode::Sum,
                    true,
                    index.view(),
                    src.view(),
                    out,
                    &crate::view::Serial,
                )
                .unwrap();
            })
        };
        assert!(scatter_runs(&[n, a, b], 0, 7) > 1, "they come in runs");
        let got = run(&src);
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got), bits(&run(&turned)));
        assert_eq!(bits(&got[6 * a * b..]), bits(&[-0.0; 6]), "nobody named the last place");
    }

    #[test]
    fn a_sum_of_floats_is_the_same_on_any_number_of_threads() {
        let mut rng = Rng::new(62);
        let n = 5000;
        let src = Value::<f32>::new(&[n], (0..n).map(|_| rng.unit() as f32).collect());
        let index = Value::<i64>::new(&[n], (0..n).map(|_| rng.below(7) as i64).collect());
        let run = |threads| {
            filled::<f32>(&[7], |out| {
                let par = Threads { threads, seed: threads as u64 };
                let view = (index.view(), src.view());
                scatter(0, ScatterMode::Sum, true, view.0, view.1, out, &par).unwrap();
            })
        };
        assert_eq!(run(1), run(2));
        assert_eq!(run(1), run(3));
        let mut want = [77.0f64; 7];
        (0..n).for_each(|i| want[index.data[i] as usize] += src.data[i] as f64);
        assert!(run(1).iter().zip(want).all(|(got, want)| (*got as f64 - want).abs() < 1e-3));
    }

    at_every_level! {
        many_come_to_few_places_and_none_is_lost
        a_sum_has_one_order_and_leaves_places_that_are_not_named_as_they_are
        a_sum_of_floats_is_the_same_on_any_number_of_threads
    }
}
