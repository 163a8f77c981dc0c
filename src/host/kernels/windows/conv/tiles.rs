//! Convolutions of 3 x 3 taps, a tile of 2 x 2 results at a time: Winograd's F(2 x 2, 3 x 3), after
//! A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2015).
//!
//! A tile meets 4 x 4 elements `d` of a channel. With `g` the weights, its results are
//! `y = A [(G g G') * (B d B')] A'`, where `*` multiplies element by element: summed over channels
//! that is a product of matrices for each of 16 elements, with 16 multiply-adds a tile, a channel
//! and a result's channel, where 2 x 2 results have 36. The transforms add and halve, so errors
//! grow little: what a result does not meet does not reach it, but what it meets through a small
//! weight does as through the largest. Numbers so large that sums overflow, infinities and NaN are
//! left to [`products`](super::products).

use super::plan::{Axis, Block, Grid, Phase, Tap};
use super::products::{Job, aligned, even};
use super::source::{Chunks, Source, WIDE, room};
use super::transforms::{ALL, Elements, Results, Transformed};
use super::{LEAST, Real};
use crate::host::kernels::load::Load;
use crate::host::kernels::matmul::{LINE, Matrix, SUMS, Step, columns_of, panels_of};
use crate::host::kernels::nest::{Shared, in_parts, slice_of};
use crate::room;
use crate::sync::plain::{AtomicBool, Ordering::Relaxed};
use crate::view::Parallel;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// Bytes of a block's transformed tiles, and of the sums of as many channels as are multiplied at a
/// time, so that both stay in the second-level cache. A block has two panels of tiles and more all
/// the same: from some 200 channels on the weights are read from beyond that cache for each block.
const BYTES: usize = 1 << 20;

/// Channels on each side from which on tiles are faster than a product. On two cores of a Xeon, a
/// product and tiles, of one run: [1, 128, 28, 28] 0.99 and 0.77 ms, [8, 64, 56, 56] 7.7 and 4.8;
/// but [1, 32, 28, 28] 0.097 and 0.103.
const CHANNELS: usize = if cfg!(test) { 16 } else { 48 };
/// Tiles from which on the transform of the weights pays ([4, 512, 7, 7] has 64: 4.7 and 6.1 ms).
const LEAST_TILES: usize = if cfg!(test) { 32 } else { 128 };

/// The weights of a convolution, which lie in either order of channels.
pub(super) struct Weights<'a, W> {
    pub all: &'a [W],
    /// The steps between groups, between channels of the result, and between channels that are
    /// summed up.
    pub steps: [usize; 3],
}

/// A convolution as it goes from tile to tile.
pub(super) struct Tiles {
    /// Its places are tiles.
    phase: Phase,
    /// Its places are results.
    pub results: Phase,
}

impl Tiles {
    /// Those of a convolution over so many images and channels, where they make it faster.
    pub fn of(phase: &Phase, images: usize, [ins, outs]: [usize; 2]) -> Option<Tiles> {
        let [deep, high, wide] = &phase.axes;
        let is_three = |axis: &Axis| axis.step == 1 && axis.taps.len() == 3 && axis.reach().1 == 3;
        // (Between the planes of a stride lie others that no result meets.)
        let skips = deep.step != 1 && deep.places > 1;
        if skips || wide.every != 1 || deep.taps.len() != 1 || !is_three(high) || !is_three(wide) {
            return None;
        }
        let halved = |axis: &Axis| Axis {
            places: axis.places.div_ceil(2),
            every: 2 * axis.every,
            input: axis.input,
            step: 2,
            taps: (0..4).map(|i| Tap { of: 0, shift: axis.reach().0 + i }).collect(),
        };
        let axes = [deep.clone(), halved(high), halved(wide)];
        let tiles = Phase { axes, first: phase.first, steps: phase.steps };
        let count = |phase: &Phase| images * phase.places().iter().product::<usize>();
        let pays = ins.min(outs) >= CHANNELS
            && count(&tiles) >= LEAST_TILES
            && 11 * count(&tiles) <= 4 * count(phase);
        pays.then(|| Tiles { phase: tiles, results: phase.clone() })
    }
}

impl<T: Load<W>, W: Real> Job<'_, T, W> {
    /// Returns false if a number is too large: what was written is then to be overwritten.
    pub fn run_tiled(
        &self,
        tiles: &Tiles,
        weights: &Weights<'_, W>,
        work: usize,
        par: &dyn Parallel,
    ) -> bool {
        let [ins, outs] = self.channels;
        let too_large = AtomicBool::new(false);
        W::turned(|scratch| {
            let all = ALL * self.groups * outs * ins;
            room::at_least(scratch, all + LINE, W::ZERO);
            let laid = &mut aligned(scratch)[..all];
            self.lay_weights(tiles, weights, laid, &too_large, par);
            if too_large.load(Relaxed) {
                return;
            }
            let wanted = match par.threads() {
                0 | 1 => 1,
                threads => (work / LEAST).clamp(1, 4 * threads).div_ceil(self.groups),
            };
            let each = ALL * (ins + outs.min(W::ROWS)) * size_of::<W>();
            let most = (BYTES / each).max(2 * SUMS + LINE);
            // A tile meets four elements that no other does, and some beside.
            let grid = Grid::new(&tiles.phase, self.batch, 6 * most, wanted, most);
            // Fewer blocks than threads: the result's channels are cut too, and the tiles are laid
            // for each cut.
            let blocks = self.groups * grid.count();
            let cuts = par.threads().div_ceil(blocks).clamp(1, outs.div_ceil(CHANNELS));
            let least = LEAST.div_ceil((work / (blocks * cuts)).max(1));
            in_parts(blocks * cuts, least, par, &|range| {
                for unit in range {
                    if too_large.load(Relaxed) {
                        return;
                    }
                    let (at, rows) = (unit / cuts, slice_of(outs, cuts, unit % cuts));
                    let (block, group) = (grid.block(at / self.groups), at % self.groups);
                    let weights = &laid[ALL * group * outs * ins..];
                    self.tiled_block(tiles, &block, group, (weights, rows), &too_large);
                }
            });
        });
        !too_large.load(Relaxed)
    }

    /// Writes `G g G'` of all weights: for each group and element a matrix, of a row for each
    /// channel of the result.
    fn lay_weights(
        &self,
        tiles: &Tiles,
        weights: &Weights<'_, W>,
        to: &mut [W],
        too_large: &AtomicBool,
        par: &dyn Parallel,
    ) {
        let [ins, outs] = self.channels;
        let mut taps = [0; 9];
        for (of, [_, y, x]) in tiles.results.taps() {
            taps[3 * y + x] = of;
        }
        let to = Shared::<W>::new(to.as_mut_ptr());
        let least = (LEAST / ALL).div_ceil(ins.max(1));
        in_parts(self.groups * outs, least, par, &|rows| {
            for row in rows {
                let (group, out) = (row / outs, row % outs);
                let from = group * weights.steps[0] + out * weights.steps[1];
                W::at_level(Transformed {
                    from: &weights.all[from..],
                    step: weights.steps[2],
                    taps,
                    ins,
                    to: Shared::new(to.at(((ALL * group * outs + out) * ins) as isize)),
                    apart: outs * ins,
                    too_large,
                });
            }
        });
    }

    /// The tiles of a block, for some channels of the result of a group, which has these weights.
    fn tiled_block(
        &self,
        tiles: &Tiles,
        block: &Block,
        group: usize,
        (weights, channels): (&[W], Range<usize>),
        too_large: &AtomicBool,
    ) {
        let ([ins, outs], phase) = (self.channels, &tiles.phase);
        let (places, rows) = (block.places(), channels.len().min(W::ROWS));
        let panels = panels_of(places);
        // Of each panel and element: a line for each channel, with room behind the last for what
        // its last chunk overruns; and sums.
        let (laid, sums) = (ins * SUMS + WIDE, rows * SUMS + LINE);
        let copied = room(phase, &phase.region(&block.at), block.images.len());
        let all = panels * ALL;
        W::with_scratch(all * (laid + sums) + WIDE + copied + WIDE + LINE, |scratch| {
            let (elements, rest) = aligned(scratch).split_at_mut(all * laid);
            let (sums_of, rest) = rest.split_at_mut(all * sums + WIDE);
            let own = |panel| {
                let lines = columns_of(places, panel);
                lines.start * LINE..(lines.end * LINE).min(places)
            };
            let wide: SmallVec<[usize; 4]> =
                (0..panels).map(|panel| own(panel).len().next_multiple_of(LINE)).collect();
            let mut chunks: SmallVec<[Chunks; 4]> = smallvec![];
            for c in 0..ins {
                let channel = group * ins + c;
                let rest = &mut rest[..copied + WIDE];
                let source = Source::copied(phase, block, self.x, channel..channel + 1, rest);
                let at = |i: usize| source.tap([0, i / 4, i % 4]);
                if c == 0 {
                    let last = at(ALL - 1);
                    chunks.extend((0..panels).map(|p| source.chunks(phase, block, own(p), last)));
                }
                W::at_level(Elements {
                    copied: &rest[..copied],
                    offsets: std::array::from_fn(at),
                    source: &source,
                    chunks: &chunks,
                    to: Shared::new(elements.as_mut_ptr()),
                    wide: &wide,
                    line: c,
                    laid,
                    too_large,
                });
            }
            let deep = even(ins, W::DEPTH);
            for first in channels.clone().step_by(rows) {
                let high = rows.min(channels.end - first);
                for element in 0..ALL {
                    for panel in 0..panels {
                        let n = own(panel).len();
                        let at = panel * ALL + element;
                        for k in (0..ins).step_by(deep) {
                            let from = (element * outs + first) * ins + k;
                            let from = Shared::new(weights[from..].as_ptr().cast_mut());
                            let step = Step {
                                rows: Matrix { at: from, rows: ins as isize, cols: 1 },
                                columns: &elements[at * laid + k * wide[panel]..],
                                sizes: [high, deep.min(ins - k), n],
                                sums: sums_of[at * sums..].as_mut_ptr(),
                                adds: k > 0,
                                out: None,
                            };
                            // SAFETY: weights, lines and sums have the sizes that are named.
                            unsafe { W::multiply(step) };
                        }
                    }
                }
                for panel in 0..panels {
                    let own = own(panel);
                    W::at_level(Results {
                        job: self,
                        phase: &tiles.results,
                        block,
                        runs: block.runs(own.clone()).collect(),
                        own,
                        channels: group * outs + first..group * outs + first + high,
                        sums: &sums_of[panel * ALL * sums..],
                        apart: sums,
                    });
                }
            }
        });
    }
}
