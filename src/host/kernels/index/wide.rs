//! Sums and products of halves at indices: each is computed in float32 and rounded once.
//!
//! The elements for one position may be anywhere in the index, so the positions of a line are
//! sorted first: a run of equal positions is then one sum. If lines share their indices (the
//! columns of an embedding), the sort is done once for all of them.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Nest, Shared, in_parts};
use super::super::reduce::fold::Wide;
use super::{Failure, LEAST, PICKED, place, with_index};
use crate::shape::contiguous_strides;
use crate::view::{Parallel, View, ViewMut};
use std::ops::Range;

/// The number of lines that are processed side by side.
const SIDE: usize = 64;

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
        for first in part.clone().step_by(SIDE) {
            let some = first..part.end.min(first + SIDE);
            let mut at = [[0isize; 2]; SIDE];
            let at = &mut at[..some.len()];
            lines.turns(some).zip(&mut *at).for_each(|((_, one), at)| *at = one);
            let lines_here = at.len();
            let beside = at.windows(2).all(|w| w[1] == [w[0][0] + 1, w[0][1] + 1]);
            let from = from.at(x);
            for run in order.chunk_by(|a, b| a.0 == b.0) {
                let to = to.at(y + run[0].0 * to_step);
                // SAFETY: `place` has seen that the elements are the output's, and these lines of
                // the row are this part's; the indices of a run have elements in the source.
                unsafe {
                    match beside {
                        true => vectorize!(|| {
                            let [x, y] = at[0];
                            let at = |c: usize| [x + c as isize, y + c as isize];
                            join_run(from, to, step, run, (lines_here, at), join)
                        }),
                        false => {
                            join_run(from, to, step, run, (lines_here, |c: usize| at[c]), join)
                        }
                    }
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
