//! What flows back to the weights: rows of `dy` by lines of the input, summed up over all places.
//!
//! The input is copied channels last, so that a line of columns (taps, channel by channel) at a
//! place is a few pieces of memory.

use super::plan::{Block, Grid, Phase, Run};
use super::products::{aligned, lies_even};
use super::source::{Chunks, WIDE, chunks_of, lay};
use super::{Geometry, Image, LEAST, Real};
use crate::host::kernels::copy::tile;
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::Load;
use crate::host::kernels::matmul::{LINE, Matrix, SUMS, Step, columns_of, panels_of};
use crate::host::kernels::nest::{Shared, in_parts, slice_of};
use crate::view::Parallel;
use std::ops::Range;

/// Elements of the input that are copied at a time.
const COPIED: usize = 2 << 20;
/// Panels that go by the same rows of `dy` one after the other.
const BUNDLE: usize = 4;
/// Parts that there should be, so that several threads have work.
const PARTS: usize = 8;

pub(super) fn to_weight<T: Load<W>, W: Real>(
    geo: &Geometry,
    dy: Image<T>,
    x: Image<T>,
    to: Shared<T>,
    par: &dyn Parallel,
) {
    let [ins, outs] = geo.channels;
    let phase = &Phase::forward(geo, x.steps);
    let taps = phase.taps();
    let columns = ins * taps.len();
    let panels = panels_of(columns);
    let bundles = panels.div_ceil(BUNDLE);
    let grid = Grid::new(phase, geo.batch, COPIED / (ins * geo.groups).max(1), 1, usize::MAX);
    if geo.batch == 0 {
        let all = geo.groups * outs * columns;
        // SAFETY: all elements of the result.
        return (0..all).for_each(|i| unsafe { to.at(i as isize).write(T::store(W::ZERO)) });
    }
    let (first, all) = (grid.block(0), panels * outs * SUMS * geo.groups);
    // Few columns: places are summed up in several lots, and the lots at the end, in order.
    let most = pieces::<W>(&first).min((16 << 20) / size_of::<W>() / all.max(1)).max(1);
    let lots = (PARTS / (bundles * geo.groups).max(1)).clamp(1, most);
    let region = |block: &Block| phase.region(&block.at).size.iter().product::<usize>() * ins;
    let each = region(&first) * first.images.len();
    W::turned(|memory| {
        let room = each * geo.groups + WIDE;
        crate::room::at_least(memory, lots * all + room, W::ZERO);
        let (sums, copied) = memory.split_at_mut(lots * all);
        let sums = Shared::<W>::new(sums.as_mut_ptr());
        for i in 0..grid.count() {
            let block = grid.block(i);
            let laid = Laid { phase, block: &block, x, ins, each: region(&block) };
            laid.copy(geo.groups, &mut copied[..room], par);
            let copied = &copied[..room];
            let work = block.places() * outs * columns * geo.groups;
            let units = bundles * geo.groups * lots;
            in_parts(units, LEAST.div_ceil((work / units).max(1)), par, &|range| {
                for unit in range {
                    let (lot, own) = (unit / (bundles * geo.groups), unit % (bundles * geo.groups));
                    let (g, bundle) = (own / bundles, slice_of(panels, bundles, own % bundles));
                    let to = lot * all + (g * panels + bundle.start) * outs * SUMS;
                    let part = Part {
                        laid: &laid,
                        taps: &taps,
                        dy,
                        rows: g * outs..(g + 1) * outs,
                        panels: bundle,
                        sums: Shared::new(sums.at(to as isize)),
                    };
                    let from = &copied[g * block.images.len() * laid.each..];
                    part.run(geo, slice_of(pieces::<W>(&block), lots, lot), from, i == 0);
                }
            });
        }
        // The number of each column among the elements of a channel's kernel, as it is stored.
        let at = |j: usize| j % ins * taps.len() + taps[j / ins].0;
        let place: Vec<usize> = (0..columns).map(at).collect();
        in_parts(geo.groups * outs, LEAST.div_ceil(columns.max(1)), par, &|rows| {
            for row in rows {
                let (g, o) = (row / outs, row % outs);
                for panel in 0..panels {
                    let own = columns_of(columns, panel);
                    let own = own.start * LINE..(own.end * LINE).min(columns);
                    let from = ((g * panels + panel) * outs + o) * SUMS;
                    for (j, &place) in place[own].iter().enumerate() {
                        let of = |lot: usize| sums.at((lot * all + from + j) as isize);
                        let to = to.at((row * columns + place) as isize);
                        // SAFETY: the sums are done; a row of the result is this part's own.
                        unsafe {
                            let first = *of(0);
                            let sum = (1..lots).fold(first, |sum, lot| sum.add(*of(lot)));
                            to.write(T::store(sum));
                        }
                    }
                }
            }
        });
    });
}

/// Pieces of so many places as a product takes, of one image each.
fn pieces<W: Real>(block: &Block) -> usize {
    block.images.len() * (block.places() / block.images.len().max(1)).div_ceil(W::DEPTH)
}

/// The input of a block, channels last.
struct Laid<'a, T> {
    phase: &'a Phase,
    block: &'a Block,
    x: Image<T>,
    /// Channels of a group.
    ins: usize,
    /// Elements of an image of a group.
    each: usize,
}

impl<T: Copy + Send + Sync> Laid<'_, T> {
    /// Copies all groups' channels, with zeros for the padding.
    fn copy<W: Real>(&self, groups: usize, to: &mut [W], par: &dyn Parallel)
    where
        T: Load<W>,
    {
        let (region, input) = (self.phase.region(&self.block.at), self.phase.input());
        let ([deep, high, wide], images) = (region.size, self.block.images.len());
        let row = wide * self.ins;
        let to = Shared::<W>::new(to.as_mut_ptr());
        let steps = self.phase.steps;
        in_parts(groups * images * deep * high, LEAST.div_ceil(8 * row.max(1)), par, &|rows| {
            vectorize!(|| {
                for r in rows {
                    let y = (r % high) as isize + region.from[1];
                    let z = (r / high % deep) as isize + region.from[0];
                    let (n, g) = (r / high / deep % images, r / high / deep / images);
                    // SAFETY: the row is this part's own.
                    let line =
                        unsafe { std::slice::from_raw_parts_mut(to.at((r * row) as isize), row) };
                    let on =
                        (0..input[0] as isize).contains(&z) && (0..input[1] as isize).contains(&y);
                    let start = (-region.from[2]).clamp(0, wide as isize) as usize;
                    let end = (input[2] as isize - region.from[2]).clamp(0, wide as isize) as usize;
                    if !on || start >= end {
                        line.fill(W::ZERO);
                        continue;
                    }
                    line[..start * self.ins].fill(W::ZERO);
                    line[end * self.ins..].fill(W::ZERO);
                    let at = z * steps[0] + y * steps[1] + (region.from[2].max(0)) * steps[2];
                    let from = self.x.plane(self.block.images.start + n, g * self.ins).at(at);
                    let line = &mut line[start * self.ins..end * self.ins];
                    // SAFETY: elements of the input's row, of all channels of the group.
                    unsafe {
                        turn(from, [self.x.planes[1], steps[2]], line, [self.ins, end - start]);
                    }
                }
            });
        });
    }
}

/// `to[i * channels + c] = from[c * steps[0] + i * steps[1]]`, tile by tile.
///
/// # Safety
/// The elements that are named may be read.
#[inline(always)]
unsafe fn turn<T: Load<W>, W: Real>(
    from: *const T,
    steps: [isize; 2],
    to: &mut [W],
    [channels, n]: [usize; 2],
) {
    let mut buffer = [[W::ZERO; WIDE]; WIDE];
    for c in (0..channels).step_by(WIDE) {
        let deep = WIDE.min(channels - c);
        for i in (0..n).step_by(WIDE) {
            let wide = WIDE.min(n - i);
            for k in 0..deep {
                let from =
                    from.wrapping_offset((c + k) as isize * steps[0] + i as isize * steps[1]);
                // SAFETY: by the caller's promise.
                unsafe {
                    if steps[1] == 1 && wide == WIDE {
                        let row = from.cast::<[T; WIDE]>().read_unaligned();
                        for i in 0..WIDE {
                            buffer[k][i] = row[i].load();
                        }
                    } else {
                        for i in 0..wide {
                            buffer[k][i] = (*from.offset(i as isize * steps[1])).load();
                        }
                    }
                }
            }
            let out = to[i * channels + c..].as_mut_ptr();
            // SAFETY: a tile of the line.
            unsafe {
                let (from, step) = (buffer.as_ptr().cast(), channels as isize);
                match (deep, wide) {
                    (WIDE, WIDE) => tile::<W>(out, from, step, WIDE as isize, WIDE, WIDE),
                    _ => tile::<W>(out, from, step, WIDE as isize, wide, deep),
                }
            }
        }
    }
}

/// Some panels of a group's columns, by some pieces of places.
struct Part<'a, T, W> {
    laid: &'a Laid<'a, T>,
    taps: &'a [(usize, [usize; 3])],
    dy: Image<T>,
    rows: Range<usize>,
    panels: Range<usize>,
    /// Panel by panel, a row of [`SUMS`] for each row of `dy`.
    sums: Shared<W>,
}

impl<T: Load<W>, W: Real> Part<'_, T, W> {
    fn run(&self, geo: &Geometry, pieces: Range<usize>, copied: &[W], is_first: bool) {
        let (block, ins, outs) = (self.laid.block, self.laid.ins, self.rows.len());
        let columns = ins * self.taps.len();
        let [_, high, wide] = self.laid.phase.region(&block.at).size;
        let chunks: Vec<Chunks> =
            self.panels.clone().map(|p| self.chunks(p, [high, wide])).collect();
        let places = block.places() / block.images.len();
        let each = places.div_ceil(W::DEPTH);
        let deep = places.div_ceil(each);
        let own = lies_even::<T, W>(self.dy, geo.output);
        let laid = deep * SUMS + WIDE;
        let bundle = self.panels.clone().zip(&chunks);
        let all = self.panels.len() * laid;
        let start = block.at.each_ref().map(|r| r.start);
        let first = self.laid.phase.result(start);
        let mut add = !is_first;
        let mut offsets = Vec::new();
        W::with_scratch(all + if own { 0 } else { outs * deep } + LINE, |scratch| {
            let (lines, upstream) = aligned(scratch).split_at_mut(all);
            for piece in pieces {
                let (n, some) = (piece / each, slice_of(places, each, piece % each));
                let image = block.images.start + n;
                let rows = if own {
                    let at =
                        self.dy.plane(image, self.rows.start).at((first + some.start) as isize);
                    Matrix { at: Shared::new(at), rows: self.dy.planes[1], cols: 1 }
                } else {
                    let here = first + some.start..first + some.end;
                    plain(self.dy, geo.output, image, self.rows.clone(), here, upstream);
                    let at = Shared::new(upstream.as_mut_ptr());
                    Matrix { at, rows: some.len() as isize, cols: 1 }
                };
                offsets.clear();
                let within = n * places + some.start..n * places + some.end;
                block.runs(within).for_each(|run| self.offsets(run, [high, wide], &mut offsets));
                for ((panel, chunks), lines) in bundle.clone().zip(lines.chunks_exact_mut(laid)) {
                    let wide = columns_of(columns, panel).len() * LINE;
                    // SAFETY: what the chunks name has been copied, with `WIDE` elements more; the
                    // lines are the scratch's.
                    unsafe {
                        lay((1, 0), &offsets, chunks, copied.as_ptr(), lines.as_mut_ptr(), wide)
                    };
                }
                for r in (0..outs).step_by(W::ROWS) {
                    for (i, panel) in self.panels.clone().enumerate() {
                        let own = columns_of(columns, panel);
                        let n = (own.end * LINE).min(columns) - own.start * LINE;
                        let step = Step {
                            rows: Matrix { at: Shared::new(rows.from(r, 0)), ..rows },
                            columns: &lines[i * laid..(i + 1) * laid],
                            sizes: [W::ROWS.min(outs - r), some.len(), n],
                            sums: self.sums.at(((i * outs + r) * SUMS) as isize),
                            adds: add,
                            out: None,
                        };
                        // SAFETY: the rows and lines are there; the sums are this part's own.
                        unsafe { W::multiply(step) };
                    }
                }
                add = true;
            }
            if !add {
                let all = self.panels.len() * outs * SUMS;
                // SAFETY: as above.
                (0..all).for_each(|i| unsafe { self.sums.at(i as isize).write(W::ZERO) });
            }
        });
    }

    /// The columns of a panel: those of taps side by side are.
    fn chunks(&self, panel: usize, [high, wide]: [usize; 2]) -> Chunks {
        let ins = self.laid.ins;
        let columns = ins * self.taps.len();
        let own = columns_of(columns, panel);
        let (first, end) = (own.start * LINE, (own.end * LINE).min(columns));
        let mut chunks = Chunks::new();
        let from = |j: usize| {
            let [z, y, x] = self.taps[j / ins].1;
            ((z * high + y) * wide + x) * ins + j % ins
        };
        let mut j = first;
        while j < end {
            let start = j;
            j += 1;
            while j < end && from(j) == from(j - 1) + 1 {
                j += 1;
            }
            chunks_of(start - first, from(start) as isize, j - start, usize::MAX, &mut chunks);
        }
        chunks
    }

    /// Where the places of a run begin in the copy.
    fn offsets(&self, run: Run, [high, wide]: [usize; 2], to: &mut Vec<isize>) {
        let (ins, axes) = (self.laid.ins, &self.laid.phase.axes);
        let [z, y, x] = std::array::from_fn(|a| run.at[a] * axes[a].step);
        let first = run.image * self.laid.each + ((z * high + y) * wide + x) * ins;
        let step = axes[2].step * ins;
        to.extend((first..).step_by(step).take(run.len).map(|at| at as isize));
    }
}

/// Writes some places of some channels, row by row: `places.len()` a channel.
pub(super) fn plain<T: Load<W>, W: Real>(
    image: Image<T>,
    size: [usize; 3],
    n: usize,
    channels: Range<usize>,
    places: Range<usize>,
    to: &mut [W],
) {
    let len = places.len();
    let ([_, high, wide], even) = (size, image.lies_even(size));
    for (channel, to) in channels.zip(to.chunks_mut(len)) {
        let plane = image.plane(n, channel);
        let mut done = 0;
        while done < len {
            let place = places.start + done;
            let (y, x) = (place / wide, place % wide);
            let at = [y / high, y % high, x];
            let count = if even { len - done } else { (wide - x).min(len - done) };
            let from = plane.at(crate::window::offset(at, image.steps));
            let step = image.steps[2];
            vectorize!(|| {
                let to = &mut to[done..done + count];
                if step == 1 {
                    // SAFETY: these elements lie side by side.
                    let line = unsafe { std::slice::from_raw_parts(from, count) };
                    to.iter_mut().zip(line).for_each(|(o, x)| *o = x.load());
                } else {
                    let each = |(i, o): (usize, &mut W)| {
                        // SAFETY: an element of the plane.
                        *o = unsafe { *from.offset(i as isize * step) }.load();
                    };
                    to.iter_mut().enumerate().for_each(each);
                }
            });
            done += count;
        }
    }
}
