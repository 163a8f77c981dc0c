//! The transforms of convolutions by [`tiles`](super::tiles): of weights, of the elements that a
//! tile meets, and of sums into results. Each goes along rows, then along columns, a register at a
//! time.

use super::plan::{Block, Phase, Run};
use super::products::Job;
use super::registers::{Body, Registers};
use super::source::{Chunks, Source, WIDE};
use super::{Real, store};
use crate::host::kernels::load::Load;
use crate::host::kernels::matmul::SUMS;
use crate::host::kernels::nest::Shared;
use crate::sync::plain::{AtomicBool, Ordering::Relaxed};
use smallvec::SmallVec;
use std::ops::Range;

/// Elements of a transformed tile: 4 x 4.
pub(super) const ALL: usize = 16;

/// The largest number that is taken: 81 products of two such are far from the largest there is.
const LIMIT: f64 = 1e15;

/// `a + b`
#[inline(always)]
fn add<W: Real, R: Registers<W>>(a: R::Register, b: R::Register) -> R::Register {
    // SAFETY: the features of `R` are enabled where this is inlined.
    unsafe { R::fma(R::splat(W::ONE), a, b) }
}

/// `a - b`
#[inline(always)]
fn sub<W: Real, R: Registers<W>>(a: R::Register, b: R::Register) -> R::Register {
    // SAFETY: the features of `R` are enabled where this is inlined.
    unsafe { R::fma(R::splat(W::of(-1.0)), b, a) }
}

/// `G (a b c)`
#[inline(always)]
fn of_weights<W: Real, R: Registers<W>>([a, b, c]: [R::Register; 3]) -> [R::Register; 4] {
    // SAFETY: the features of `R` are enabled where this is inlined.
    let (outer, inner) = unsafe {
        let (half, zero) = (R::splat(W::of(0.5)), R::splat(W::ZERO));
        (R::fma(half, add::<W, R>(a, c), zero), R::fma(half, b, zero))
    };
    [a, add::<W, R>(outer, inner), sub::<W, R>(outer, inner), c]
}

/// `B (a b c d)`
#[inline(always)]
fn of_elements<W: Real, R: Registers<W>>([a, b, c, d]: [R::Register; 4]) -> [R::Register; 4] {
    [sub::<W, R>(a, c), add::<W, R>(b, c), sub::<W, R>(c, b), sub::<W, R>(b, d)]
}

/// `A (a b c d)`
#[inline(always)]
fn of_sums<W: Real, R: Registers<W>>([a, b, c, d]: [R::Register; 4]) -> [R::Register; 2] {
    [add::<W, R>(add::<W, R>(a, b), c), sub::<W, R>(sub::<W, R>(b, c), d)]
}

/// A row of weights, of all channels that are summed up.
pub(super) struct Transformed<'a, W> {
    pub from: &'a [W],
    /// From a channel to the next.
    pub step: usize,
    /// Where each tap lies among a channel's weights, row by row.
    pub taps: [usize; 9],
    pub ins: usize,
    /// A row of the first element's matrix, and how far the next's is.
    pub to: Shared<W>,
    pub apart: usize,
    pub too_large: &'a AtomicBool,
}

impl<W: Real> Body<W> for Transformed<'_, W> {
    #[inline(always)]
    fn run<R: Registers<W>>(self) {
        let (limit, mut large) = (W::of(LIMIT).size(), false);
        let (step, taps) = (self.step, self.taps);
        let reach = 1 + taps.iter().max().unwrap_or(&0);
        for first in (0..self.ins).step_by(WIDE) {
            let n = WIDE.min(self.ins - first);
            let from = self.from[first * step..][..(n - 1) * step + reach].as_ptr();
            let mut rows = [[W::ZERO; WIDE]; 9];
            for t in 0..9 {
                let from = from.wrapping_add(taps[t]);
                // SAFETY: weights of so many channels, as the slice has just shown.
                unsafe {
                    if n == WIDE {
                        for i in 0..WIDE {
                            rows[t][i] = *from.add(i * step);
                        }
                    } else {
                        for i in 0..n {
                            rows[t][i] = *from.add(i * step);
                        }
                    }
                }
                for i in 0..WIDE {
                    large |= rows[t][i].size() > limit;
                }
            }
            let mut rest = [[W::ZERO; WIDE]; ALL];
            let (to, apart) = match n {
                WIDE => (self.to.at(first as isize), self.apart),
                _ => (rest.as_mut_ptr().cast(), WIDE),
            };
            for lane in (0..WIDE).step_by(R::WIDTH) {
                // SAFETY: whole registers of arrays, or of the matrices' rows; the features of
                // `R` are enabled where this is inlined.
                unsafe {
                    let mut rows_of = [[R::splat(W::ZERO); 4]; 3];
                    for y in 0..3 {
                        let mut row = [R::splat(W::ZERO); 3];
                        for x in 0..3 {
                            row[x] = R::load(rows[3 * y + x].as_ptr().add(lane));
                        }
                        rows_of[y] = of_weights::<W, R>(row);
                    }
                    for x in 0..4 {
                        let [a, b, c] = rows_of;
                        let column = of_weights::<W, R>([a[x], b[x], c[x]]);
                        for y in 0..4 {
                            R::store(to.add((4 * y + x) * apart + lane), column[y]);
                        }
                    }
                }
            }
            if n < WIDE {
                for (element, rest) in rest.iter().enumerate() {
                    let to = self.to.at((element * self.apart + first) as isize);
                    // SAFETY: a row of the matrix of this element.
                    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to, n) };
                }
            }
        }
        if large {
            self.too_large.store(true, Relaxed);
        }
    }
}

/// A channel of a block's tiles.
pub(super) struct Elements<'a, W> {
    pub copied: &'a [W],
    pub offsets: [isize; ALL],
    pub source: &'a Source<W>,
    /// Those of each panel.
    pub chunks: &'a [Chunks],
    pub to: Shared<W>,
    /// Places of each panel's lines.
    pub wide: &'a [usize],
    /// The number of the channel: its line among those of a panel's element.
    pub line: usize,
    /// From an element of a panel to the next.
    pub laid: usize,
    pub too_large: &'a AtomicBool,
}

impl<W: Real> Body<W> for Elements<'_, W> {
    #[inline(always)]
    fn run<R: Registers<W>>(self) {
        let (limit, mut large) = (W::of(LIMIT).size(), false);
        for x in self.copied {
            large |= x.size() > limit;
        }
        if large {
            self.too_large.store(true, Relaxed);
        }
        let (offsets, laid) = (self.offsets, self.laid);
        for (panel, chunks) in self.chunks.iter().enumerate() {
            let wide = self.wide[panel];
            let to = self.to.at((panel * ALL * laid + self.line * wide) as isize);
            for &chunk in chunks {
                for lane in (0..WIDE).step_by(R::WIDTH) {
                    let from = self.source.at(chunk.from).wrapping_add(lane);
                    let to = to.wrapping_add(chunk.to + lane);
                    // SAFETY: the copy goes on for `WIDE` elements behind the last tile, and a
                    // panel's lines for as many; the features of `R` are enabled where this is
                    // inlined.
                    unsafe {
                        let mut rows = [[R::splat(W::ZERO); 4]; 4];
                        for y in 0..4 {
                            let mut row = [R::splat(W::ZERO); 4];
                            for x in 0..4 {
                                row[x] = R::load(from.wrapping_offset(offsets[4 * y + x]));
                            }
                            rows[y] = of_elements::<W, R>(row);
                        }
                        for x in 0..4 {
                            let column = [rows[0][x], rows[1][x], rows[2][x], rows[3][x]];
                            let column = of_elements::<W, R>(column);
                            for y in 0..4 {
                                R::store(to.add((4 * y + x) * laid), column[y]);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What comes of a panel's sums, for some channels of the result.
pub(super) struct Results<'a, T, W> {
    pub job: &'a Job<'a, T, W>,
    /// Where the results lie.
    pub phase: &'a Phase,
    pub block: &'a Block,
    pub own: Range<usize>,
    pub runs: SmallVec<[Run; 8]>,
    pub channels: Range<usize>,
    pub sums: &'a [W],
    /// From an element to the next.
    pub apart: usize,
}

impl<T: Load<W>, W: Real> Body<W> for Results<'_, T, W> {
    #[inline(always)]
    fn run<R: Registers<W>>(self) {
        let (job, phase) = (self.job, self.phase);
        let [_, high, wide] = phase.places();
        let start = self.block.at.each_ref().map(|r| r.start);
        let channels = job.groups * job.channels[1];
        for (row, channel) in self.channels.clone().enumerate() {
            let bias = *job.bias.get(channel).unwrap_or(&W::ZERO);
            for run in &self.runs {
                let at = [start[0] + run.at[0], 2 * (start[1] + run.at[1])];
                let image = self.block.images.start + run.image;
                let plane = (image * channels + channel) * job.plane;
                for i in (0..run.len).step_by(WIDE) {
                    let from = row * SUMS + run.start - self.own.start + i;
                    let mut all = [[[W::ZERO; WIDE]; 2]; 2];
                    for lane in (0..WIDE).step_by(R::WIDTH) {
                        // SAFETY: sums of a row, or some of the next; the features of `R` are
                        // enabled where this is inlined.
                        unsafe {
                            let from = self.sums.as_ptr().add(from + lane);
                            let mut columns = [[R::splat(W::ZERO); 2]; 4];
                            for x in 0..4 {
                                let mut column = [R::splat(W::ZERO); 4];
                                for y in 0..4 {
                                    column[y] = R::load(from.add((4 * y + x) * self.apart));
                                }
                                columns[x] = of_sums::<W, R>(column);
                            }
                            for y in 0..2 {
                                let [a, b, c, d] = columns;
                                let row = of_sums::<W, R>([a[y], b[y], c[y], d[y]]);
                                for x in 0..2 {
                                    let y_x = add::<W, R>(row[x], R::splat(bias));
                                    R::store(all[y][x].as_mut_ptr().add(lane), y_x);
                                }
                            }
                        }
                    }
                    let first = 2 * (start[2] + run.at[2] + i);
                    let there = (2 * (run.len - i)).min(wide - first);
                    for (y, [even, odd]) in all.iter().enumerate() {
                        if at[1] + y >= high {
                            break;
                        }
                        let mut line = [W::ZERO; 2 * WIDE];
                        for i in 0..WIDE {
                            (line[2 * i], line[2 * i + 1]) = (even[i], odd[i]);
                        }
                        let to = plane + phase.result([at[0], at[1] + y, first]);
                        let to = job.to.at(to as isize);
                        // SAFETY: results of this part, which lie side by side.
                        unsafe {
                            if there >= line.len() {
                                store(&line, to);
                            } else {
                                store(&line[..there], to);
                            }
                        }
                    }
                }
            }
        }
    }
}
