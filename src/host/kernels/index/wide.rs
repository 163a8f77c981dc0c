//! Sums and products of halves at indices: each is computed in float32 and rounded once.
//!
//! The elements for one position may be anywhere in the index, so the positions of a line are
//! sorted first: a run of equal positions is then one sum. If lines share their indices (the
//! columns of an embedding), the sort is done once for all of them.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Dim, Nest, Shared, in_parts};
use super::super::reduce::fold::Wide;
use super::super::stream::prefetch_all_second;
use super::{Failure, LEAST, PICKED, place, with_index};
use crate::shape::contiguous_strides;
use crate::view::{Parallel, View, ViewMut};
use std::ops::Range;

/// The number of lines that are processed side by side.
const SIDE: usize = 64;
/// So many indices on, the memory is asked for what lies there: no machine foresees places that are
/// data.
const AHEAD: usize = 4;
/// Elements that are asked for there, at most.
const NEAR: usize = 1 << 10;

/// `out[i, index[i, j, k], k]` joined with `src[i, j, k]` for `dim` 1, in the order of the indices;
/// negative ones count `from_end`, or are out of range. There are indices.
pub(super) fn join_runs<T: Load<W>, W: Wide>(
    (dim, from_end): (usize, bool),
    index: &View<'_>,
    src: &View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
    failure: &Failure,
    join: impl Fn(W, W) -> W + Copy + Sync,
) {
    let (positions, strides) = (contiguous_strides(index.shape), contiguous_strides(out.shape));
    let of_dims = |shared: bool, of: &[isize]| -> Vec<isize> {
        (0..of.len())
            .filter(|&d| d != dim && (index.strides[d] == 0) == shared)
            .map(|d| of[d])
            .collect()
    };
    let sizes: Vec<isize> = index.shape.iter().map(|&n| n as isize).collect();
    let shape =
        |shared| of_dims(shared, &sizes).into_iter().map(|n| n as usize).collect::<Vec<usize>>();
    // Each row has an order, which its lines share.
    let own = [&positions[..], index.strides, src.strides, &strides].map(|of| of_dims(false, of));
    let rows = Nest::new(&shape(false), [&own[0], &own[1], &own[2], &own[3]]);
    let common = [src.strides, &strides].map(|of| of_dims(true, of));
    let lines = Nest::new(&shape(true), [&common[0], &common[1]]).merged();
    let (n, size, side) = (index.shape[dim], out.shape[dim], lines.numel());
    let (step, to_step) = (src.strides[dim], strides[dim]);
    let (from, to) = (Shared::<T>::new(src.ptr.cast_mut()), Shared::<T>::new(out.ptr));
    let order = |row: usize, found: &mut Vec<(isize, isize)>| {
        let [turn, at, ..] = rows.at(row);
        found.clear();
        with_index!(index.dtype, I => {
            let all = Shared::<I>::new(index.ptr.cast_mut());
            for j in 0..n as isize {
                // SAFETY: this is an element of the view of indices.
                let named = unsafe { *all.at(at + j * index.strides[dim]) };
                match place(named.load(), size, from_end) {
                    Some(place) => found.push((place, j)),
                    None => failure.at((turn + j * positions[dim]) as usize),
                }
            }
        });
        found.sort_unstable();
    };
    let add = |row: usize, order: &[(isize, isize)], part: Range<usize>| {
        let [_, _, x, y] = rows.at(row);
        let (from, to) = (from.at(x), to.at(y));
        let runs = || order.chunk_by(|a, b| a.0 == b.0);
        if let [Dim { step: [1, 1], .. }] = lines.dims[..] {
            // What comes to one place lies in few lines of memory: a run is done with at once.
            let (mut done, wide) = (0, part.len());
            for run in runs() {
                if let Some(&(place, j)) = order.get(done + AHEAD) {
                    let from = from.wrapping_offset(j * step).wrapping_add(part.start);
                    let to = to.wrapping_offset(place * to_step).wrapping_add(part.start);
                    prefetch_all_second(from, wide.min(NEAR));
                    prefetch_all_second(to, wide.min(NEAR));
                }
                done += run.len();
                let to = to.wrapping_offset(run[0].0 * to_step);
                vectorize!(|| {
                    for first in part.clone().step_by(SIDE) {
                        let lines = SIDE.min(part.end - first);
                        let at = |c: usize| [(first + c) as isize; 2];
                        // SAFETY: `place` has seen that the elements are the output's, and these
                        // lines of the row are this part's; the indices of a run have elements in
                        // the source.
                        unsafe { join_run(from, to, step, run, (lines, at), join) }
                    }
                });
            }
            return;
        }
        for first in part.clone().step_by(SIDE) {
            let some = first..part.end.min(first + SIDE);
            let mut at = [[0isize; 2]; SIDE];
            let at = &mut at[..some.len()];
            lines.turns(some).zip(&mut *at).for_each(|((_, one), at)| *at = one);
            let (lines, [x, y]) = (at.len(), at[0]);
            let beside = at.windows(2).all(|w| w[1] == [w[0][0] + 1, w[0][1] + 1]);
            for run in runs() {
                let to = to.wrapping_offset(run[0].0 * to_step);
                match beside {
                    true => vectorize!(|| {
                        let at = |c: usize| [x + c as isize, y + c as isize];
                        // SAFETY: as above.
                        unsafe { join_run(from, to, step, run, (lines, at), join) }
                    }),
                    // SAFETY: as above.
                    false => unsafe { join_run(from, to, step, run, (lines, |c| at[c]), join) },
                }
            }
        }
    };
    match rows.numel() {
        1 => {
            let mut found = Vec::with_capacity(n);
            order(0, &mut found);
            in_parts(side, (LEAST / n).max(SIDE), par, &|part| add(0, &found, part));
        }
        many => in_parts(many, (PICKED / n.saturating_mul(side).max(1)).max(1), par, &|part| {
            let mut found = Vec::with_capacity(n);
            for row in part {
                order(row, &mut found);
                add(row, &found, 0..side);
            }
        }),
    }
}

/// Joins what comes to one place of some lines with what is there.
///
/// # Safety
/// Each line has the place, and elements for all of the run's indices.
#[inline(always)]
unsafe fn join_run<T: Load<W>, W: Wide>(
    from: *const T,
    to: *mut T,
    step: isize,
    run: &[(isize, isize)],
    (lines, at): (usize, impl Fn(usize) -> [isize; 2]),
    join: impl Fn(W, W) -> W,
) {
    let mut sums = [W::ZERO; SIDE];
    let sums = &mut sums[..lines];
    // SAFETY: by the caller's promise.
    unsafe {
        for (c, sum) in sums.iter_mut().enumerate() {
            *sum = (*to.offset(at(c)[1])).load();
        }
        for &(_, j) in run {
            let from = from.offset(j * step);
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = join(*sum, (*from.offset(at(c)[0])).load());
            }
        }
        for (c, sum) in sums.iter().enumerate() {
            to.offset(at(c)[1]).write(T::store(*sum));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::copy::fill;
    use super::super::super::testing::*;
    use super::super::scatter;
    use crate::Scalar;
    use crate::op::ScatterMode;
    use crate::view::Serial;
    use half::bf16;

    #[test]
    fn long_rows_of_halves_that_share_their_indices_are_added_whole_and_rounded_once() {
        let mut rng = Rng::new(64);
        for _ in turns(20) {
            let [size, n, side] = [400 + rng.below(300), 1 + rng.below(20), 1 + rng.below(300)];
            let draw = |rng: &mut Rng| bf16::from_f64(rng.unit() - 0.5);
            let data: Vec<bf16> = (0..n * side).map(|_| draw(&mut rng)).collect();
            let src = Value::new(&[n, side], data);
            let places: Vec<i64> = (0..n).map(|_| 37 * rng.below(9) as i64).collect();
            let mut index = Value::new(&[n], places);
            (index.shape, index.strides) = (vec![n, side], vec![1, 0]);
            let par = Threads { threads: 1 + rng.below(3), seed: rng.word() };
            let got = filled::<bf16>(&[size, side], |out| {
                fill(Scalar::Float(1.5), out, &Serial);
                let (index, src) = (index.view(), src.view());
                scatter(0, ScatterMode::Sum, false, index, src, out, &par).unwrap();
            });
            let mut want = vec![1.5f32; size * side];
            for (j, place) in index.data.iter().enumerate() {
                for c in 0..side {
                    want[*place as usize * side + c] += src.data[j * side + c].to_f32();
                }
            }
            let want: Vec<bf16> = want.into_iter().map(bf16::from_f32).collect();
            assert!(got == want, "{n} rows of {side}");
        }
    }

    at_every_level! {
        long_rows_of_halves_that_share_their_indices_are_added_whole_and_rounded_once
    }
}
