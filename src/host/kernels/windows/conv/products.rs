//! Convolutions as matrix products: rows of weights by lines of the input, which are laid for a few
//! places at a time and multiplied by all weights while they are in cache.

use super::plan::{Block, Grid, Phase};
use super::source::{Chunks, Source, WIDE, lay, room};
use super::{Geometry, Image, LEAST, Real, same, store};
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::Load;
use crate::host::kernels::matmul::{BUNDLE, LINE, Matrix, SUMS, Step, columns_of, panels_of};
use crate::host::kernels::nest::{Shared, in_parts, slice_of};
use crate::host::kernels::stream::prefetch_second;
use crate::view::Parallel;
use smallvec::SmallVec;
use std::ops::Range;

/// Bytes of a copied input that stay in the second-level cache beside the lines laid from it.
const SOURCE_BYTES: usize = 512 << 10;

/// Bytes of weights that do not stay in the second-level cache.
const LARGE: usize = 512 << 10;

/// A product in either direction: from the channels of `x` to those of `to`.
pub(super) struct Job<'a, T, W> {
    pub batch: usize,
    pub groups: usize,
    /// Channels of a group that are summed up, and that come of it.
    pub channels: [usize; 2],
    pub x: Image<T>,
    /// A number for each channel of the result, or none at all.
    pub bias: &'a [W],
    pub to: Shared<T>,
    /// Elements of a plane of the result.
    pub plane: usize,
}

/// Phases whose places meet the same elements of the input, by weights of their own: for each
/// group, a row for each phase and channel of the result, of the taps of the channels that are
/// summed up.
pub(super) struct Side<'a, W> {
    pub phases: &'a [Phase],
    pub weights: &'a [W],
}

impl<T: Load<W>, W: Real> Job<'_, T, W> {
    pub fn run(&self, sides: &[Side<'_, W>], work: usize, par: &dyn Parallel) {
        let [ins, outs] = self.channels;
        // So many that a thread that begins late does not keep the others waiting.
        let wanted = match par.threads() {
            0 | 1 => 1,
            threads => (work / LEAST).clamp(1, 4 * threads),
        };
        let planned: SmallVec<[Planned<'_, W>; 4]> = sides
            .iter()
            .map(|side| {
                let (phase, rows) = (&side.phases[0], side.phases.len() * outs);
                let whole = phase.places().map(|n| 0..n);
                let first = Block { images: 0..1, at: whole };
                let there = Source::<W>::there(phase, &first, self.x, 0..ins).is_some();
                let fits = SOURCE_BYTES / size_of::<W>() / ins.max(1);
                let room = if there { usize::MAX } else { fits };
                let boxes = wanted.div_ceil(self.groups * sides.len());
                let grid = Grid::new(phase, self.batch, room, boxes, SUMS * BUNDLE);
                let units = self.groups * grid.count();
                // Few large blocks: their channels are cut too, each with lines of its own.
                let cuts = (wanted / (units * sides.len()).max(1)).clamp(1, (rows / 64).max(1));
                Planned { side, grid, cuts }
            })
            .collect();
        let units: usize = planned.iter().map(|p| self.groups * p.grid.count() * p.cuts).sum();
        let least = LEAST.div_ceil((work / units.max(1)).max(1));
        in_parts(units, least, par, &|range| {
            for unit in range {
                let mut left = unit;
                for planned in &planned {
                    let own = self.groups * planned.grid.count() * planned.cuts;
                    if left < own {
                        let (at, cut) = (left / planned.cuts, left % planned.cuts);
                        let block = planned.grid.block(at / self.groups);
                        let all = planned.side.phases.len() * outs;
                        let rows = slice_of(all, planned.cuts, cut);
                        self.block(planned.side, &block, at % self.groups, rows);
                        break;
                    }
                    left -= own;
                }
            }
        });
    }

    /// Some rows of the weights, of a group, for a block of places.
    fn block(&self, side: &Side<'_, W>, block: &Block, group: usize, rows: Range<usize>) {
        let (phase, [ins, outs]) = (&side.phases[0], self.channels);
        let taps = phase.taps();
        let (depth, places) = (ins * taps.len(), block.places());
        let channels = group * ins..(group + 1) * ins;
        let there = Source::there(phase, block, self.x, channels.clone());
        let copied = match &there {
            Some(_) => 0,
            None => ins * room(phase, &phase.region(&block.at), block.images.len()) + WIDE,
        };
        // As many lines at a time as there is room for: channels with all of their taps, or some
        // taps of a channel.
        let (some, many) = match taps.len() {
            n if n <= W::DEPTH => (even(ins, W::DEPTH / n.max(1)), n.max(1)),
            n => (1, even(n, W::DEPTH)),
        };
        let laid = some * many * SUMS + WIDE;
        let panels = panels_of(places);
        let bundles = panels.div_ceil(BUNDLE);
        let most = panels.div_ceil(bundles);
        let sums = most * rows.len() * SUMS;
        W::with_scratch(most * laid + sums + copied + LINE, |scratch| {
            let (sums, rest) = aligned(scratch).split_at_mut(sums);
            let (lines, rest) = rest.split_at_mut(most * laid);
            let source = there.unwrap_or_else(|| {
                Source::copied(phase, block, self.x, channels, &mut rest[..copied])
            });
            let offsets: SmallVec<[isize; 16]> = taps.iter().map(|t| source.tap(t.1)).collect();
            let last =
                offsets.iter().max().unwrap_or(&0) + (ins.max(1) as isize - 1) * source.channel;
            let row = group * side.phases.len() * outs + rows.start;
            let (high, weights) = (rows.len(), side.weights.as_ptr().wrapping_add(row * depth));
            let direct = same::<T, W>()
                && side.phases.len() == 1
                && phase.lies_even()
                && block.images.len() == 1;
            let first = phase.result(block.at.each_ref().map(|r| r.start));
            let plane = block.images.start * self.groups * outs + row;
            let to = self.to.at((plane * self.plane + first) as isize).cast::<W>();
            for bundle in (0..bundles).map(|i| slice_of(panels, bundles, i)) {
                let bundle: SmallVec<[(Range<usize>, Chunks); BUNDLE]> = bundle
                    .map(|panel| {
                        let own = columns_of(places, panel);
                        let own = own.start * LINE..(own.end * LINE).min(places);
                        (own.clone(), source.chunks(phase, block, own, last))
                    })
                    .collect();
                if !self.bias.is_empty() {
                    let bias = &self.bias[group * outs..(group + 1) * outs];
                    let bias = bias.iter().cycle().skip(rows.start % outs);
                    for sums in sums.chunks_exact_mut(high * SUMS).take(bundle.len()) {
                        let each = sums.chunks_exact_mut(SUMS).zip(bias.clone());
                        each.for_each(|(row, &b)| row.fill(b));
                    }
                }
                let (mut c, mut t) = (0, 0);
                loop {
                    let (cs, ts) = (some.min(ins - c), many.min(taps.len() - t));
                    let is_last = c + cs >= ins && t + ts >= taps.len();
                    for ((own, chunks), lines) in bundle.iter().zip(lines.chunks_exact_mut(laid)) {
                        let from = source.at(c as isize * source.channel);
                        let (turns, wide) =
                            ((cs, source.channel), own.len().next_multiple_of(LINE));
                        let to = lines.as_mut_ptr();
                        // SAFETY: what lies under the places may be read; there is room for so
                        // many lines and `WIDE` elements.
                        unsafe { lay(turns, &offsets[t..t + ts], chunks, from, to, wide) };
                    }
                    for r in (0..high).step_by(W::ROWS) {
                        // Rows of a large weight lie far apart, and what a step takes of each is
                        // short: the next rows' is asked for while these are multiplied.
                        let (next, k) = match r + W::ROWS {
                            next if next < high => (next, c * taps.len() + t),
                            _ => (0, (c + cs) * taps.len()),
                        };
                        if high * depth * size_of::<W>() > LARGE && k < depth {
                            let lines = (0..cs * ts).step_by(64 / size_of::<W>());
                            for row in next..high.min(next + W::ROWS) {
                                let at = weights.wrapping_add(row * depth + k);
                                lines
                                    .clone()
                                    .for_each(|i| prefetch_second(at.wrapping_add(i).cast()));
                            }
                        }
                        for (i, (own, _)) in bundle.iter().enumerate() {
                            let at = weights.wrapping_add(r * depth + c * taps.len() + t);
                            let at = Shared::new(at.cast_mut());
                            let to = to.wrapping_add(own.start + r * self.plane);
                            let step = Step {
                                rows: Matrix { at, rows: depth as isize, cols: 1 },
                                columns: &lines[i * laid..(i + 1) * laid],
                                sizes: [W::ROWS.min(high - r), cs * ts, own.len()],
                                sums: sums[(i * high + r) * SUMS..].as_mut_ptr(),
                                adds: c + t > 0 || !self.bias.is_empty(),
                                out: (direct && is_last).then_some((to, self.plane)),
                            };
                            // SAFETY: weights and lines have the sizes that are named; the results
                            // are this part's own.
                            unsafe { W::multiply(step) };
                        }
                    }
                    if is_last {
                        break;
                    }
                    t += ts;
                    if t >= taps.len() {
                        (c, t) = (c + cs, 0);
                    }
                }
                if !direct {
                    for ((own, _), sums) in bundle.iter().zip(sums.chunks_exact(high * SUMS)) {
                        self.spread(side, block, own.clone(), group, (rows.start, sums));
                    }
                }
            }
        });
    }

    /// Writes results of some places of a block, for each row of weights from one on, where they
    /// belong.
    fn spread(
        &self,
        side: &Side<'_, W>,
        block: &Block,
        places: Range<usize>,
        group: usize,
        (first, from): (usize, &[W]),
    ) {
        let outs = self.channels[1];
        vectorize!(|| {
            for run in block.runs(places.clone()) {
                let [z, y, x] = run.at;
                let at = [z + block.at[0].start, y + block.at[1].start, x + block.at[2].start];
                let plane = ((block.images.start + run.image) * self.groups + group) * outs;
                for (r, row) in from.chunks_exact(SUMS).enumerate() {
                    let phase = &side.phases[(first + r) / outs];
                    let every = phase.axes[2].every;
                    let plane = plane + (first + r) % outs;
                    let to = self.to.at((plane * self.plane + phase.result(at)) as isize);
                    let row = &row[run.start - places.start..][..run.len];
                    // SAFETY: results of this part.
                    unsafe {
                        if every == 1 {
                            store(row, to);
                        } else {
                            for (i, &x) in row.iter().enumerate() {
                                to.add(i * every).write(T::store(x));
                            }
                        }
                    }
                }
            }
        });
    }
}

/// The most of `n` that are taken together, as even as can be.
pub(super) fn even(n: usize, most: usize) -> usize {
    n.div_ceil(n.div_ceil(most.max(1)).max(1)).max(1)
}

/// From the first cache line on, [`LINE`] elements shorter at most.
pub(super) fn aligned<W>(scratch: &mut [W]) -> &mut [W] {
    let start = scratch.as_ptr().align_offset(64).min(LINE);
    &mut scratch[start..]
}

/// A side, and how it is cut.
struct Planned<'a, W> {
    side: &'a Side<'a, W>,
    grid: Grid,
    cuts: usize,
}

/// The weights of what flows back, as [`Side`] has them, set by set of phases.
pub(super) fn turned<W: Real>(
    geo: &Geometry,
    sets: &[Vec<Phase>],
    weights: &[W],
    to: &mut [W],
    par: &dyn Parallel,
) {
    let ([ins, outs], taps) = (geo.channels, geo.taps());
    let mut start = 0;
    for set in sets {
        let (many, depth) = (set.len(), outs * set[0].taps().len());
        let met: Vec<SmallVec<[usize; 16]>> =
            set.iter().map(|phase| phase.taps().iter().map(|tap| tap.0).collect()).collect();
        let all = geo.groups * many * ins * depth;
        let room = Shared::<W>::new(to[start..][..all].as_mut_ptr());
        let bands = ins.div_ceil(WIDE);
        let least = (LEAST / 8).div_ceil((WIDE * many * depth).max(1));
        in_parts(geo.groups * bands, least, par, &|part| {
            for unit in part {
                let (g, band) = (unit / bands, unit % bands);
                for (p, met) in met.iter().enumerate() {
                    for o in 0..outs {
                        for c in band * WIDE..ins.min((band + 1) * WIDE) {
                            let from = &weights[((g * outs + o) * ins + c) * taps..][..taps];
                            let row = (g * many + p) * ins + c;
                            let line = room.at((row * depth + o * met.len()) as isize);
                            for (i, &tap) in met.iter().enumerate() {
                                // SAFETY: rows of these channels are this part's own.
                                unsafe { line.add(i).write(from[tap]) };
                            }
                        }
                    }
                }
            }
        });
        start += all;
    }
}

/// True where the elements of a plane of `dy` can be multiplied where they lie.
pub(super) fn lies_even<T: Load<W>, W: Real>(dy: Image<T>, size: [usize; 3]) -> bool {
    same::<T, W>() && dy.lies_even(size) && (dy.steps[2] == 1 || size == [1; 3])
}
