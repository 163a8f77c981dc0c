//! Sums and products of halves at indices: each is computed in float32 and rounded once.
//!
//! The elements for one position may be anywhere in the index, so the positions of a line are
//! sorted first: a run of equal positions is then one sum. If lines share their indices (the
//! columns of an embedding), the sort is done once for all of them.

use super::super::load::Load;
use super::super::nest::{Nest, Shared, in_parts};
use super::{Failure, LEAST, PICKED, place, with_index};
use crate::shape::contiguous_strides;
use crate::view::{Parallel, View, ViewMut};
use std::ops::Range;

/// The number of lines that are processed side by side.
const SIDE: usize = 64;

/// Combines `out[i, index[i, j, k], k]` with `src[i, j, k]` for `dim` 1, in the order of the
/// indices; negative indices count from the end. The index must not be empty.
pub(super) fn join_runs<T: Load<f32>>(
    dim: usize,
    index: &View<'_>,
    src: &View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
    join: fn(f32, f32) -> f32,
) -> Failure {
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
    let failure = Failure::none();
    let order = |row: usize, found: &mut Vec<(isize, isize)>| {
        let [turn, at, ..] = rows.at(row);
        found.clear();
        with_index!(index.dtype, I => {
            let all = Shared::<I>::new(index.ptr.cast_mut());
            for j in 0..n as isize {
                // SAFETY: this is an element of the view of indices.
                match place(unsafe { *all.at(at + j * index.strides[dim]) }.load(), size, true) {
                    Some(place) => found.push((place, j)),
                    None => failure.at((turn + j * positions[dim]) as usize),
                }
            }
        });
        found.sort_unstable();
    };
    let add = |row: usize, order: &[(isize, isize)], part: Range<usize>| {
        let [_, _, x, y] = rows.at(row);
        let mut sums = [0f32; SIDE];
        for first in part.clone().step_by(SIDE) {
            let some = first..part.end.min(first + SIDE);
            for run in order.chunk_by(|a, b| a.0 == b.0) {
                let (from, to) = (from.at(x), to.at(y + run[0].0 * to_step));
                // SAFETY: `place` has checked that the elements are inside the output, and these
                // lines of the row belong to this part; `j` is an index for which the source has an
                // element.
                unsafe {
                    for (sum, (_, [_, y])) in sums.iter_mut().zip(lines.turns(some.clone())) {
                        *sum = (*to.offset(y)).load();
                    }
                    for &(_, j) in run {
                        for (sum, (_, [x, _])) in sums.iter_mut().zip(lines.turns(some.clone())) {
                            *sum = join(*sum, (*from.offset(x + j * step)).load());
                        }
                    }
                    for (sum, (_, [_, y])) in sums.iter().zip(lines.turns(some.clone())) {
                        to.offset(y).write(T::store(*sum));
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
    failure
}
