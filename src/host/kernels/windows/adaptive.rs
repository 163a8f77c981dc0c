//! The largest element, or its position, of the cells that divide lines, planes or volumes evenly
//! (all of them "planes" below).
//!
//! Called by the CPU kernels of that op, which have checked shapes and types. A cell's rows are
//! compared side by side, over the whole width of the plane; then each cell looks at its own part.

use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::{Load, by_float};
use crate::host::kernels::nest::{Nest, Shared, in_parts};
use crate::host::kernels::rows::Float;
use crate::room;
use crate::shape::numel;
use crate::view::{Parallel, View, ViewMut};
use crate::window::triple;
use std::ops::Range;

/// Elements below which a further thread does not pay, as under windows that move.
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 200 } else { 16 << 10 };

/// The sizes of planes and of what becomes of them: depth, height and width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cells {
    /// The number of dimensions that are divided: one, two or three.
    pub spatial: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
}

impl Cells {
    /// What a cell takes of an axis. Neighbours may have an element in common.
    pub fn interval(input: usize, output: usize, cell: usize) -> Range<usize> {
        let wide = |i: usize| i as u128 * input as u128;
        let first = (wide(cell) / output as u128) as usize;
        first..wide(cell + 1).div_ceil(output as u128) as usize
    }

    fn intervals(&self, axis: usize) -> Vec<Range<usize>> {
        let mut all = room::with_capacity(self.output[axis]);
        let of = |cell| Cells::interval(self.input[axis], self.output[axis], cell);
        all.extend((0..self.output[axis]).map(of));
        all
    }
}

/// Calls `f` with each plane and row of cells, on several threads: where the plane begins, the
/// elements of the row's cells by their depth and height, and the first of the outputs. The scratch
/// has an element of `S` for each of the plane's width.
fn each_row<T: Send + Sync, S: Clone + Send + Sync>(
    cells: &Cells,
    x: View<'_>,
    blank: S,
    par: &dyn Parallel,
    f: &(dyn Fn(&mut [S], Shared<T>, [Range<usize>; 2], usize) + Sync),
) {
    let lead = x.shape.len() - cells.spatial;
    let planes = Nest::new(&x.shape[..lead], [&x.strides[..lead]]).merged();
    let (depths, heights) = (cells.intervals(0), cells.intervals(1));
    let (rows, from) = (depths.len() * heights.len(), Shared::<T>::new(x.ptr.cast_mut()));
    let work = numel(&cells.input) / rows.max(1);
    in_parts(planes.numel() * rows, (LEAST / work.max(1)).max(1), par, &|part| {
        let mut scratch = room::filled(cells.input[2], blank.clone());
        for row in part {
            let (plane, at) = (Shared::new(from.at(planes.at(row / rows)[0])), row % rows);
            let of = [&depths[at / heights.len()], &heights[at % heights.len()]].map(Range::clone);
            f(&mut scratch, plane, of, row * cells.output[2]);
        }
    });
}

/// The largest element of each cell; NaN if one is NaN.
pub(crate) fn max(cells: &Cells, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    fn of<T: Load<W>, W: Float>(cells: &Cells, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
        let [deep, high, step] = triple(&x.strides[x.shape.len() - cells.spatial..], 0);
        let (to, widths) = (Shared::<T>::new(out.ptr), cells.intervals(2));
        each_row::<T, W>(cells, x, W::LEAST, par, &|best, plane, [depth, height], first| {
            vectorize!(|| {
                best.fill(W::LEAST);
                for z in depth {
                    for y in height.clone() {
                        let row = plane.at(z as isize * deep + y as isize * high);
                        for (i, best) in best.iter_mut().enumerate() {
                            // SAFETY: an element of the plane.
                            *best = unsafe { *row.offset(i as isize * step) }.load().larger(*best);
                        }
                    }
                }
                for (k, cell) in widths.iter().enumerate() {
                    let largest = largest_of(&best[cell.clone()]);
                    // SAFETY: the output's row, which is this part's own.
                    unsafe { to.at((first + k) as isize).write(T::store(largest)) };
                }
            });
        });
    }
    if out.numel() > 0 {
        by_float!(x.dtype, of(cells, x, out, par));
    }
}

/// The largest of some elements, or NaN.
#[inline(always)]
fn largest_of<W: Float>(all: &[W]) -> W {
    let (lines, rest) = all.as_chunks::<16>();
    let mut largest = rest.iter().fold(W::LEAST, |most, x| x.larger(most));
    if let Some((first, lines)) = lines.split_first() {
        let mut most = *first;
        for line in lines {
            for k in 0..line.len() {
                most[k] = line[k].larger(most[k]);
            }
        }
        largest = most.iter().fold(largest, |most, x| x.larger(most));
    }
    largest
}

/// Where the largest element of each cell is, counted row by row of its plane; of equals the first,
/// of NaNs the last.
pub(crate) fn max_positions(cells: &Cells, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    fn of<T: Load<W>, W: Float>(cells: &Cells, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
        let [deep, high, step] = triple(&x.strides[x.shape.len() - cells.spatial..], 0);
        let (to, widths) = (Shared::<i64>::new(out.ptr), cells.intervals(2));
        let wide = cells.input[2] as i64;
        each_row::<T, (W, i64)>(
            cells,
            x,
            (W::LEAST, -1),
            par,
            &|best, plane, [depth, height], first| {
                // Of each column the row.
                best.fill((W::LEAST, -1));
                for z in depth {
                    for y in height.clone() {
                        let from = plane.at(z as isize * deep + y as isize * high);
                        let row = (z * cells.input[1] + y) as i64;
                        for (i, best) in best.iter_mut().enumerate() {
                            // SAFETY: an element of the plane.
                            let x = unsafe { *from.offset(i as isize * step) }.load();
                            // The least value there is may be all there is.
                            if x > best.0 || x.is_nan() || best.1 < 0 {
                                *best = (x, row);
                            }
                        }
                    }
                }
                for (k, cell) in widths.iter().enumerate() {
                    let own = best[cell.clone()].iter().zip(cell.clone());
                    let mut all = own.map(|(&(x, row), column)| (x, row * wide + column as i64));
                    let first_of = all.next().expect("a cell has elements");
                    let (_, position) = all.fold(first_of, |(most, at), (x, position)| {
                        let is_next = match (x.is_nan(), most.is_nan()) {
                            (true, true) => position > at,
                            (false, false) => x > most || x == most && position < at,
                            (is_nan, _) => is_nan,
                        };
                        if is_next { (x, position) } else { (most, at) }
                    });
                    // SAFETY: the output's row, which is this part's own.
                    unsafe { to.at((first + k) as isize).write(position) };
                }
            },
        );
    }
    if out.numel() > 0 {
        by_float!(x.dtype, of(cells, x, out, par));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;

    /// The largest element of a cell and its position, by a plain loop.
    fn plain(cells: &Cells, x: &Value<f32>, plane: &[usize], cell: [usize; 3]) -> (f32, i64) {
        let [depth, height, width] =
            [0, 1, 2].map(|a| Cells::interval(cells.input[a], cells.output[a], cell[a]));
        let mut most = (f32::NEG_INFINITY, -1);
        for z in depth {
            for y in height.clone() {
                for column in width.clone() {
                    let at = [plane, &[z, y, column][3 - cells.spatial..]].concat();
                    let position = (z * cells.input[1] + y) * cells.input[2] + column;
                    let x = x.get(&at);
                    if x > most.0 || x.is_nan() || most.1 < 0 {
                        most = (x, position as i64);
                    }
                }
            }
        }
        most
    }

    #[test]
    fn cells_of_any_size_have_their_largest_element_and_its_first_position() {
        let mut rng = Rng::new(91);
        for turn in turns(60) {
            let spatial = 1 + turn % 3;
            let most = [0, 150, 30, 9][spatial];
            let lead = random_shape(&mut rng, turn / 3 % 3, 3);
            let size: Vec<usize> = (0..spatial).map(|_| 1 + rng.below(most)).collect();
            let to: Vec<usize> = (0..spatial).map(|_| 1 + rng.below(12)).collect();
            let cells = Cells { spatial, input: triple(&size, 1), output: triple(&to, 1) };
            let draw = |rng: &mut Rng| match rng.below(40) {
                0 => f32::NAN,
                1 => f32::NEG_INFINITY,
                _ => rng.below(9) as f32,
            };
            let x = Value::<f32>::random(&mut rng, &[&lead[..], &size].concat(), draw);
            let par = Threads { threads: 2, seed: rng.word() };
            let shape = [&lead[..], &to].concat();
            let got = filled::<f32>(&shape, |out| max(&cells, x.view(), out, &par));
            let positions = filled::<i64>(&shape, |out| max_positions(&cells, x.view(), out, &par));
            for ((at, got), position) in indices(&shape).iter().zip(got).zip(positions) {
                let (plane, cell) = at.split_at(lead.len());
                let (most, first) = plain(&cells, &x, plane, triple(cell, 0));
                assert!(got == most || got.is_nan() && most.is_nan(), "{got} {most} {cells:?}");
                assert_eq!(position, first, "{cells:?}");
            }
        }
    }

    at_every_level! { cells_of_any_size_have_their_largest_element_and_its_first_position }
}
