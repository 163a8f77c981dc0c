//! The largest element, its position, or the way back, of the cells that divide lines, planes or
//! volumes evenly (all of them "planes" below).
//!
//! Called by the CPU kernels of that op, which have checked shapes and types. A cell's rows are
//! compared side by side, over the whole width of the plane; then each cell looks at its own part.

use super::largest::{self, Found, Lines, Place, meet};
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::{Load, by_float};
use crate::host::kernels::nest::{Nest, Shared, in_parts};
use crate::host::kernels::reduce::fold::Wide;
use crate::host::kernels::rows::Float;
use crate::room;
use crate::shape::numel;
use crate::view::{Parallel, View, ViewMut};
use crate::window::{Cells, offset, triple};
use std::hint::select_unpredictable;
use std::ops::Range;

/// Elements below which a further thread does not pay, as under windows that move.
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 200 } else { 16 << 10 };

/// What the cells take of an axis, one after the other.
fn intervals(cells: &Cells, axis: usize) -> Vec<Range<usize>> {
    let mut all = room::with_capacity(cells.output[axis]);
    let of = |cell| Cells::interval(cells.input[axis], cells.output[axis], cell);
    all.extend((0..cells.output[axis]).map(of));
    all
}

/// Calls `f` with each plane and row of cells, on several threads: where the plane begins, the
/// elements of the row's cells by their depth and height, and the first of the outputs. The scratch
/// has an element for each of the plane's width.
fn each_row<T: Load<W>, W: Float>(
    cells: &Cells,
    x: View<'_>,
    par: &dyn Parallel,
    f: &(dyn Fn(&mut [W], Shared<T>, [Range<usize>; 2], usize) + Sync),
) {
    let lead = x.shape.len() - cells.spatial;
    let planes = Nest::new(&x.shape[..lead], [&x.strides[..lead]]).merged();
    let (depths, heights) = (intervals(cells, 0), intervals(cells, 1));
    let (rows, from) = (depths.len() * heights.len(), Shared::<T>::new(x.ptr.cast_mut()));
    let work = numel(&cells.input) / rows.max(1);
    in_parts(planes.numel() * rows, (LEAST / work.max(1)).max(1), par, &|part| {
        let mut scratch = room::filled(cells.input[2], W::LEAST);
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
        let (to, widths) = (Shared::<T>::new(out.ptr), intervals(cells, 2));
        each_row::<T, W>(cells, x, par, &|best, plane, [depth, height], first| {
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
fn largest_of<W: Wide>(all: &[W]) -> W {
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

/// Cells, and what they take of each axis.
struct Laid<'a> {
    cells: &'a Cells,
    intervals: [Vec<Range<usize>>; 3],
}

impl Laid<'_> {
    fn new(cells: &Cells) -> Laid<'_> {
        Laid { cells, intervals: [0, 1, 2].map(|axis| intervals(cells, axis)) }
    }
}

impl Lines for Laid<'_> {
    fn sizes(&self) -> (usize, [usize; 3], [usize; 3]) {
        (self.cells.spatial, self.cells.input, self.cells.output)
    }

    fn work(&self) -> usize {
        numel(&self.cells.input) / (self.cells.output[0] * self.cells.output[1]).max(1)
    }

    unsafe fn find<T: Load<W>, W: Wide, P: Place>(
        &self,
        line: usize,
        plane: Shared<T>,
        steps: [isize; 3],
        found: &mut Found<W, P>,
    ) {
        let ([_, high, wide], [depths, heights, widths]) = (self.cells.input, &self.intervals);
        let (depth, height) = (&depths[line / heights.len()], &heights[line % heights.len()]);
        let (most, at) = (&mut found.most[..wide], &mut found.at[..wide]);
        vectorize!(|| {
            most.fill(W::LEAST);
            for z in depth.clone().rev() {
                for y in height.clone().rev() {
                    let (row, first) = (plane.at(offset([z, y, 0], steps)), (z * high + y) * wide);
                    // SAFETY: a row of the plane.
                    unsafe { meet(row, steps[2], [first, 1], most, at) };
                }
            }
            for (cell, place) in widths.iter().zip(&mut found.places) {
                *place = place_of_largest(&most[cell.clone()], &at[cell.clone()]);
            }
        });
    }
}

/// Of the largest elements the first place, or of NaNs the last.
#[inline(always)]
fn place_of_largest<W: Wide, P: Place>(all: &[W], at: &[P]) -> P {
    let largest = largest_of(all);
    match largest.is_nan() {
        true => place_of(all, at, P::FIRST, Ord::max, |x| x.is_nan()),
        false => place_of(all, at, P::LAST, Ord::min, |x| x == largest),
    }
}

/// What joins the places of the elements that count.
#[inline(always)]
fn place_of<W: Wide, P: Place>(
    values: &[W],
    at: &[P],
    start: P,
    join: impl Fn(P, P) -> P,
    counts: impl Fn(W) -> bool,
) -> P {
    let place = |x: W, at: P| select_unpredictable(counts(x), at, start);
    let ((lines, rest), (places, last)) = (values.as_chunks::<16>(), at.as_chunks::<16>());
    let mut found = [start; 16];
    for (line, places) in lines.iter().zip(places) {
        for k in 0..line.len() {
            found[k] = join(found[k], place(line[k], places[k]));
        }
    }
    let mut all = start;
    for found in found {
        all = join(all, found);
    }
    for (&x, &at) in rest.iter().zip(last) {
        all = join(all, place(x, at));
    }
    all
}

/// Where the largest element of each cell is, counted row by row of its plane; of equals the first,
/// of NaNs the last.
pub(crate) fn max_positions(cells: &Cells, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    largest::positions(&Laid::new(cells), x, out, par);
}

/// The way back of [`max`]: each element of `dy` at the position of its cell's largest.
pub(crate) fn max_back(
    cells: &Cells,
    operands: [View<'_>; 2],
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    largest::back(&Laid::new(cells), operands, out, par);
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
    fn cells_of_any_size_have_their_largest_element_its_place_and_what_flows_back() {
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
            let dy = Value::<f32>::random(&mut rng, &shape, small);
            let operands = [x.view(), dy.view()];
            let dx = filled::<f32>(&x.shape, |out| max_back(&cells, operands, out, &par));
            let mut sums = vec![0.0; dx.len()];
            for (i, at) in indices(&shape).iter().enumerate() {
                let (plane, cell) = at.split_at(lead.len());
                let (most, first) = plain(&cells, &x, plane, triple(cell, 0));
                assert!(got[i] == most || got[i].is_nan() && most.is_nan(), "{most} {cells:?}");
                assert_eq!(positions[i], first, "{cells:?}");
                let plane = i / numel(&cells.output);
                sums[plane * numel(&cells.input) + first as usize] += dy.get(at);
            }
            assert_eq!(dx, sums, "{cells:?}");
        }
    }

    at_every_level! {
        cells_of_any_size_have_their_largest_element_its_place_and_what_flows_back
    }
}
