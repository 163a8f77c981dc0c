//! Convolutions to few channels a group, depthwise ones above all: rows of places are summed up in
//! registers, tap by tap, and nothing is laid for a product.

use super::plan::{Block, Grid, Phase};
use super::products::{Job, Side};
use super::registers::{Body, Registers};
use super::source::{Source, WIDE, room};
use super::weights::plain;
use super::{Geometry, Image, LEAST, Real, same};
use crate::host::kernels::load::Load;
use crate::host::kernels::nest::{Shared, in_parts};
use crate::view::Parallel;
use smallvec::SmallVec;

/// Channels of a result that are summed up together, at most.
pub(super) const FEW: usize = 4;
/// Elements of copied planes that lie in the first-level cache, or not far.
const COPIED: usize = 16 << 10;
/// So many elements may be read behind a row.
const ROW: usize = WIDE;
/// A multiply-add takes several times as long as in a product.
const PART: usize = LEAST / 4;

impl<T: Load<W>, W: Real> Job<'_, T, W> {
    /// The planes of a group, of which there are [`FEW`] at most, block by block.
    pub fn run_direct(&self, sides: &[Side<'_, W>], work: usize, par: &dyn Parallel) {
        let room = COPIED / self.channels[0].max(1);
        let grids: SmallVec<[Grid; 4]> =
            sides.iter().map(|s| Grid::new(&s.phases[0], 1, room, 1, 1)).collect();
        let blocks: usize = grids.iter().map(Grid::count).sum();
        let units = self.batch * self.groups * blocks;
        in_parts(units, PART.div_ceil((work / units.max(1)).max(1)), par, &|units| {
            for unit in units {
                let (planes, mut left) = (unit / blocks, unit % blocks);
                let (n, group) = (planes / self.groups, planes % self.groups);
                for (side, grid) in sides.iter().zip(&grids) {
                    if left < grid.count() {
                        let block = Block { images: n..n + 1, ..grid.block(left) };
                        self.planes(side, &block, group);
                        break;
                    }
                    left -= grid.count();
                }
            }
        });
    }

    /// A block of places of the planes of a group.
    fn planes(&self, side: &Side<'_, W>, block: &Block, group: usize) {
        let (phase, [ins, outs]) = (&side.phases[0], self.channels);
        let taps = phase.taps();
        let (depth, row) = (ins * taps.len(), group * outs);
        let channels = group * ins..(group + 1) * ins;
        let plane = block.images.start * self.groups * outs + row;
        let copied = ins * room(phase, &phase.region(&block.at), 1) + ROW;
        W::with_scratch(copied, |scratch| {
            let source = Source::copied(phase, block, self.x, channels, scratch);
            let offsets: SmallVec<[isize; 16]> = (0..ins as isize)
                .flat_map(|c| {
                    let source = &source;
                    taps.iter().map(move |tap| c * source.channel + source.tap(tap.1))
                })
                .collect();
            let bias = |r| self.bias.get(row + r).copied().unwrap_or(W::ZERO);
            W::at_level(Rows::<T, W> {
                weights: &side.weights[row * depth..][..outs * depth],
                offsets: &offsets,
                bias: std::array::from_fn(bias),
                outs,
                phase,
                block,
                source: &source,
                to: Shared::new(self.to.at((plane * self.plane) as isize)),
                plane: self.plane,
            });
        });
    }
}

/// Rows of places of some planes, one `plane` after the other. The copy goes on for [`ROW`]
/// elements.
struct Rows<'a, T, W> {
    /// A row for each plane, an element for each of `offsets`.
    weights: &'a [W],
    offsets: &'a [isize],
    bias: [W; FEW],
    outs: usize,
    phase: &'a Phase,
    block: &'a Block,
    source: &'a Source<W>,
    to: Shared<T>,
    plane: usize,
}

impl<T: Load<W>, W: Real> Body<W> for Rows<'_, T, W> {
    #[inline(always)]
    fn run<R: Registers<W>>(self) {
        match self.outs {
            1 => self.all::<R, 1>(),
            2 => self.all::<R, 2>(),
            3 => self.all::<R, 3>(),
            _ => self.all::<R, FEW>(),
        }
    }
}

impl<T: Load<W>, W: Real> Rows<'_, T, W> {
    #[inline(always)]
    fn all<R: Registers<W>, const M: usize>(&self) {
        // So many sums as there are registers for. Guards are `const` so that what cannot be is
        // not compiled either.
        if const { M == 1 } {
            self.chunks::<R, M, 8>();
        } else if const { M > 2 && R::WIDTH < 16 } {
            self.chunks::<R, M, 2>();
        } else {
            self.chunks::<R, M, 4>();
        }
    }

    /// Places a register at a time, `N` of them together, of one row or of several.
    #[inline(always)]
    fn chunks<R: Registers<W>, const M: usize, const N: usize>(&self) {
        let every = self.phase.axes[2].every;
        let [z, y, x] = self.block.at.each_ref().map(|r| r.start);
        let mut from = [std::ptr::null::<W>(); N];
        let (mut to, mut len) = ([self.to.at(0); N], [0; N]);
        let mut n = 0;
        for run in self.block.runs(0..self.block.places()) {
            let at = [z + run.at[0], y + run.at[1], x + run.at[2]];
            let row = self.source.at(self.source.place(self.phase, 0, run.at));
            let place = self.to.at(self.phase.result(at) as isize);
            let mut i = 0;
            while i < run.len {
                from[n] = row.wrapping_add(i);
                to[n] = place.wrapping_add(i * every);
                len[n] = R::WIDTH.min(run.len - i);
                n += 1;
                if n == N {
                    // SAFETY: the copy goes on for `ROW` elements, and the places are of these
                    // planes.
                    unsafe { self.some::<R, M, N>(from, to, len) };
                    n = 0;
                }
                i += R::WIDTH;
            }
        }
        if n > 0 {
            for i in n..N {
                (from[i], len[i]) = (from[0], 0);
            }
            // SAFETY: as above.
            unsafe { self.some::<R, M, N>(from, to, len) };
        }
    }

    /// `N` registers of places of each plane, of which the first few count.
    ///
    /// # Safety
    /// From all offsets a register may be read, and so many places of all planes be written.
    #[inline(always)]
    unsafe fn some<R: Registers<W>, const M: usize, const N: usize>(
        &self,
        from: [*const W; N],
        to: [*mut T; N],
        len: [usize; N],
    ) {
        let (depth, every) = (self.offsets.len(), self.phase.axes[2].every);
        // SAFETY: by the caller's promise; rows of weights are as long as there are offsets, and
        // no register is wider than `WIDE`.
        unsafe {
            let mut sums = [[R::splat(W::ZERO); N]; M];
            for r in 0..M {
                sums[r] = [R::splat(self.bias[r]); N];
            }
            let weights = self.weights.as_ptr();
            for (k, &offset) in self.offsets.iter().enumerate() {
                let mut x = [R::splat(W::ZERO); N];
                for i in 0..N {
                    x[i] = R::load(from[i].offset(offset));
                }
                for r in 0..M {
                    let w = R::splat(*weights.add(r * depth + k));
                    for i in 0..N {
                        sums[r][i] = R::fma(x[i], w, sums[r][i]);
                    }
                }
            }
            for r in 0..M {
                for i in 0..N {
                    let to = to[i].wrapping_add(r * self.plane);
                    if same::<T, W>() && every == 1 && len[i] == R::WIDTH {
                        R::store(to.cast::<W>(), sums[r][i]);
                        continue;
                    }
                    let mut row = [W::ZERO; WIDE];
                    R::store(row.as_mut_ptr(), sums[r][i]);
                    for (i, &sum) in row[..len[i]].iter().enumerate() {
                        to.add(i * every).write(T::store(sum));
                    }
                }
            }
        }
    }
}

pub(super) fn to_weight<T: Load<W>, W: Real>(
    geo: &Geometry,
    dy: Image<T>,
    x: Image<T>,
    to: Shared<T>,
    par: &dyn Parallel,
) {
    let [ins, outs] = geo.channels;
    let phase = Phase::forward(geo, x.steps);
    let grid = Grid::new(&phase, 1, COPIED, 1, 1);
    let taps = phase.taps();
    let (parts, work) = (geo.groups * outs * ins, geo.work());
    in_parts(parts, PART.div_ceil((work / parts).max(1)), par, &|parts| {
        let mut sums: Vec<W> = crate::room::filled(taps.len(), W::ZERO);
        for part in parts {
            let (o, own) = (part / ins, part % ins);
            let c = o / outs * ins + own;
            sums.fill(W::ZERO);
            for (n, i) in (0..geo.batch).flat_map(|n| (0..grid.count()).map(move |i| (n, i))) {
                let block = Block { images: n..n + 1, ..grid.block(i) };
                let (copied, len) = (room(&phase, &phase.region(&block.at), 1), block.places());
                W::with_scratch(copied + ROW + len + WIDE, |scratch| {
                    let (scratch, upstream) = scratch.split_at_mut(copied + ROW);
                    let source = Source::copied(&phase, &block, x, c..c + 1, scratch);
                    let first = phase.result(block.at.each_ref().map(|r| r.start));
                    plain(dy, geo.output, n, o..o + 1, first..first + len, upstream);
                    let offsets: SmallVec<[isize; 16]> =
                        taps.iter().map(|tap| source.tap(tap.1)).collect();
                    let (source, upstream, sums) = (&source, &upstream[..], &mut sums[..]);
                    let (phase, block, offsets) = (&phase, &block, &offsets[..]);
                    W::at_level(Dots { phase, block, source, upstream, offsets, sums });
                });
            }
            for (tap, &sum) in taps.iter().zip(&sums) {
                // SAFETY: a channel's taps are this part's own.
                unsafe { to.at((part * taps.len() + tap.0) as isize).write(T::store(sum)) };
            }
        }
    });
}

/// Products of what flows back and what taps meet, added to the taps' sums. Both go on for a
/// register.
struct Dots<'a, W> {
    phase: &'a Phase,
    block: &'a Block,
    source: &'a Source<W>,
    upstream: &'a [W],
    offsets: &'a [isize],
    sums: &'a mut [W],
}

impl<W: Real> Body<W> for Dots<'_, W> {
    #[inline(always)]
    fn run<R: Registers<W>>(mut self) {
        while !self.offsets.is_empty() {
            match self.offsets.len() {
                9.. => self.some::<R, 9>(),
                5.. => self.some::<R, 5>(),
                3.. => self.some::<R, 3>(),
                _ => self.some::<R, 1>(),
            }
        }
    }
}

impl<W: Real> Dots<'_, W> {
    /// The next `N` taps.
    #[inline(always)]
    fn some<R: Registers<W>, const N: usize>(&mut self) {
        let (offsets, later) = self.offsets.split_at(N);
        // SAFETY: what the taps meet under the places has been copied, with a register more, as has
        // what flows back.
        let sums = unsafe {
            let mut sums = [R::splat(W::ZERO); N];
            for run in self.block.runs(0..self.block.places()) {
                let from = self.source.at(self.source.place(self.phase, 0, run.at));
                let up = self.upstream.as_ptr().add(run.start);
                let (whole, rest) = (run.len / R::WIDTH * R::WIDTH, run.len % R::WIDTH);
                let mut i = 0;
                while i < whole {
                    let up = R::load(up.add(i));
                    for t in 0..N {
                        sums[t] = R::fma(up, R::load(from.offset(offsets[t]).add(i)), sums[t]);
                    }
                    i += R::WIDTH;
                }
                if rest > 0 {
                    // What lies behind the row is none of it, and may be no number.
                    let up = R::first(R::load(up.add(whole)), rest);
                    for t in 0..N {
                        let x = R::load(from.offset(offsets[t]).add(whole));
                        sums[t] = R::fma(up, R::first(x, rest), sums[t]);
                    }
                }
            }
            let mut all = [W::ZERO; N];
            for t in 0..N {
                all[t] = R::sum(sums[t]);
            }
            all
        };
        let (to, rest) = std::mem::take(&mut self.sums).split_at_mut(N);
        for t in 0..N {
            to[t] = to[t].add(sums[t]);
        }
        (self.offsets, self.sums) = (later, rest);
    }
}
