//! What results of a convolution meet, along each axis: the same form forwards and backwards.
//!
//! Forwards a place of the result meets the input at one element a tap, `step` elements after those
//! of the place before. What flows back with a stride falls into [`Phase`]s, one for each remainder
//! of a place by the stride: the places of a phase meet the same taps, one element further each.
//! Pure arithmetic.

use super::Geometry;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// A tap along an axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Tap {
    /// Its share of the number of the kernel's element.
    pub of: usize,
    /// The input element that place 0 meets. It may lie in the padding.
    pub shift: isize,
}

/// An axis of places.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Axis {
    pub places: usize,
    /// From a place to the next in the plane of the result.
    pub every: usize,
    /// Elements of the input, and how many lie between what a place and the next meet.
    pub input: usize,
    pub step: usize,
    pub taps: SmallVec<[Tap; 8]>,
}

impl Axis {
    /// The only place and tap.
    fn alone() -> Axis {
        Axis { places: 1, every: 0, input: 1, step: 1, taps: smallvec![Tap { of: 0, shift: 0 }] }
    }

    /// True where each place meets the element of its number, and no other.
    fn is_plain(&self) -> bool {
        let first = self.taps.first().is_some_and(|tap| tap.shift == 0);
        first && self.taps.len() == 1 && self.step == 1 && self.places == self.input
    }

    /// True where a place meets an element beyond the input.
    fn meets_padding(&self) -> bool {
        let (least, reach) = self.reach();
        let last = least + (reach + (self.places - 1) * self.step) as isize;
        least < 0 || last > self.input as isize
    }

    /// The first tap's shift, and how many elements the taps of one place reach over.
    pub fn reach(&self) -> (isize, usize) {
        let shifts = || self.taps.iter().map(|tap| tap.shift);
        let least = shifts().min().unwrap_or(0);
        (least, (shifts().max().unwrap_or(0) - least) as usize + 1)
    }
}

/// Places that meet the same taps.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Phase {
    pub axes: [Axis; 3],
    /// Where place 0 lies in the plane of the result.
    pub first: usize,
    /// Of the input, in elements of memory.
    pub steps: [isize; 3],
}

/// Elements of the input that some places meet: the first along each axis, and how many. The
/// padding is among them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub from: [isize; 3],
    pub size: [usize; 3],
}

/// From an element to the next along each axis, row by row.
fn row_major([_, high, wide]: [usize; 3]) -> [usize; 3] {
    [high * wide, wide, 1]
}

impl Phase {
    /// All results of a convolution, whose input has these steps.
    pub fn forward(geo: &Geometry, steps: [isize; 3]) -> Phase {
        let (every, of) = (row_major(geo.output), row_major(geo.kernel));
        let axes = std::array::from_fn(|a| Axis {
            places: geo.output[a],
            every: every[a],
            input: geo.input[a],
            step: geo.stride[a],
            taps: (0..geo.kernel[a])
                .map(|k| Tap { of: k * of[a], shift: geo.shift(a, k) })
                .collect(),
        });
        Phase { axes, first: 0, steps }.folded()
    }

    /// All elements of the input that a tap has met: what flows back to them. `steps` are those of
    /// what flows.
    pub fn backward(geo: &Geometry, steps: [isize; 3]) -> Vec<Phase> {
        let (every, of) = (row_major(geo.input), row_major(geo.kernel));
        let along = |a: usize| -> Vec<(usize, Axis)> {
            let stride = geo.stride[a];
            let phase = |rest: usize| {
                let met = |k: usize| {
                    let at = rest as isize - geo.shift(a, k);
                    let tap = Tap { of: k * of[a], shift: at / stride as isize };
                    (at % stride as isize == 0).then_some(tap)
                };
                let axis = Axis {
                    places: (geo.input[a] - rest).div_ceil(stride),
                    every: stride * every[a],
                    input: geo.output[a],
                    step: 1,
                    taps: (0..geo.kernel[a]).filter_map(met).collect(),
                };
                (!axis.taps.is_empty()).then_some((rest * every[a], axis))
            };
            (0..stride.min(geo.input[a])).filter_map(phase).collect()
        };
        let [deep, high, wide] = [along(0), along(1), along(2)];
        let mut phases = Vec::new();
        for (z, deep) in &deep {
            for (y, high) in &high {
                for (x, wide) in &wide {
                    let axes = [deep.clone(), high.clone(), wide.clone()];
                    phases.push(Phase { axes, first: z + y + x, steps }.folded());
                }
            }
        }
        phases
    }

    /// Phases by what their places meet, which may be the same: with a stride as long as the kernel
    /// all phases have one tap, and it meets the element of the place's number.
    pub fn sets(phases: Vec<Phase>) -> Vec<Vec<Phase>> {
        let mut sets: Vec<Vec<Phase>> = Vec::new();
        for phase in phases {
            match sets.iter_mut().find(|set| set[0].meets_what(&phase)) {
                Some(set) => set.push(phase),
                None => sets.push(vec![phase]),
            }
        }
        sets
    }

    fn meets_what(&self, other: &Phase) -> bool {
        let shifts = |axis: &Axis| axis.taps.iter().map(|tap| tap.shift).collect::<Vec<_>>();
        let same = |(a, b): (&Axis, &Axis)| {
            (a.places, a.input, a.step) == (b.places, b.input, b.step) && shifts(a) == shifts(b)
        };
        self.steps == other.steps && self.axes.iter().zip(&other.axes).all(same)
    }

    /// The same with as few and as long axes as can be: places of a plain axis are part of a place
    /// of the axis outside.
    fn folded(mut self) -> Phase {
        for _ in 0..2 {
            let ([deep, high, wide], n) = (&self.axes, self.axes[2].input);
            let even = high.input == 1 || self.steps[1] == self.steps[2] * n as isize;
            let beside = high.places == 1 || high.every == wide.every * n;
            let one = n == 1 && wide.places == 1;
            if !wide.is_plain() || !(one || high.step == 1 && even && beside) {
                break;
            }
            let fold =
                |tap: &Tap| Tap { of: tap.of + wide.taps[0].of, shift: tap.shift * n as isize };
            let folded = Axis {
                places: high.places * n,
                every: if one { high.every } else { wide.every },
                input: high.input * n,
                step: high.step,
                taps: high.taps.iter().map(fold).collect(),
            };
            self.axes = [Axis::alone(), deep.clone(), folded];
            let inner = if one { self.steps[1] } else { self.steps[2] };
            self.steps = [0, self.steps[0], inner];
        }
        self
    }

    pub fn meets_padding(&self) -> bool {
        self.axes.iter().any(Axis::meets_padding)
    }

    pub fn places(&self) -> [usize; 3] {
        self.axes.each_ref().map(|axis| axis.places)
    }

    /// The input's sizes along the axes.
    pub fn input(&self) -> [usize; 3] {
        self.axes.each_ref().map(|axis| axis.input)
    }

    /// True where the places lie side by side in the plane of the result.
    pub fn lies_even(&self) -> bool {
        let mut step = 1;
        self.axes.iter().rev().all(|axis| {
            let even = axis.places == 1 || axis.every == step;
            step *= axis.places;
            even
        })
    }

    /// Taps of a place, with the number of the kernel's element and where they lie in a region,
    /// from its first element on.
    pub fn taps(&self) -> SmallVec<[(usize, [usize; 3]); 16]> {
        let [deep, high, wide] = &self.axes;
        let least = self.axes.each_ref().map(|axis| axis.reach().0);
        let mut all = SmallVec::new();
        for z in &deep.taps {
            for y in &high.taps {
                for x in &wide.taps {
                    let at = |a: usize, tap: &Tap| (tap.shift - least[a]) as usize;
                    all.push((z.of + y.of + x.of, [at(0, z), at(1, y), at(2, x)]));
                }
            }
        }
        all
    }

    pub fn region(&self, at: &[Range<usize>; 3]) -> Region {
        let reach = self.axes.each_ref().map(|axis| axis.reach());
        let first = |a: usize| (at[a].start * self.axes[a].step) as isize + reach[a].0;
        let size = |a: usize| (at[a].len() - 1) * self.axes[a].step + reach[a].1;
        Region { from: std::array::from_fn(first), size: std::array::from_fn(size) }
    }

    /// Where a place lies in the plane of the result.
    #[inline(always)]
    pub fn result(&self, [z, y, x]: [usize; 3]) -> usize {
        let [deep, high, wide] = &self.axes;
        self.first + z * deep.every + y * high.every + x * wide.every
    }
}

/// Images and places along each axis that are worked on together, which lie side by side.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub images: Range<usize>,
    pub at: [Range<usize>; 3],
}

/// A run of places of a block: of an image, of a row.
pub(super) struct Run {
    /// The number of the first among the block's places.
    pub start: usize,
    pub len: usize,
    pub image: usize,
    /// Within the block.
    pub at: [usize; 3],
}

impl Block {
    pub fn places(&self) -> usize {
        self.images.len() * self.at.iter().map(|r| r.len()).product::<usize>()
    }

    /// Some places of the block, run by run.
    #[inline(always)]
    pub fn runs(&self, places: Range<usize>) -> Runs {
        let [deep, high, wide] = &self.at;
        let size = [deep.len(), high.len(), wide.len()];
        let (row, x) = (places.start / size[2], places.start % size[2]);
        let plane = row / size[1];
        let at = [plane % size[0], row % size[1], x];
        Runs { size, at, image: plane / size[0], places }
    }
}

/// What [`Block::runs`] goes over.
pub(super) struct Runs {
    size: [usize; 3],
    at: [usize; 3],
    image: usize,
    places: Range<usize>,
}

impl Iterator for Runs {
    type Item = Run;
    #[inline(always)]
    fn next(&mut self) -> Option<Run> {
        let len = (self.size[2] - self.at[2]).min(self.places.end - self.places.start);
        if len == 0 {
            return None;
        }
        let run = Run { start: self.places.start, len, image: self.image, at: self.at };
        self.places.start += len;
        self.at[2] = 0;
        self.at[1] += 1;
        if self.at[1] == self.size[1] {
            (self.at[1], self.at[0]) = (0, self.at[0] + 1);
            if self.at[0] == self.size[0] {
                (self.at[0], self.image) = (0, self.image + 1);
            }
        }
        Some(run)
    }
}

/// How all images and places of a phase are cut into [`Block`]s.
#[derive(Debug)]
pub(super) struct Grid {
    total: [usize; 4],
    size: [usize; 4],
}

/// So few places are not cut further.
const FEW: usize = 96;

impl Grid {
    /// Blocks that meet at most `room` elements of a channel, where that can be, and are so many as
    /// `wanted`, where there is enough. Small images go together until they have `together` places.
    pub fn new(phase: &Phase, images: usize, room: usize, wanted: usize, together: usize) -> Grid {
        let [deep, high, wide] = phase.places();
        let total = [images, deep, high, wide];
        let reach = phase.axes.each_ref().map(|axis| axis.reach().1);
        let step = phase.axes.each_ref().map(|axis| axis.step);
        // How many places along an axis meet at most `room` elements, where one meets `each`.
        let fit = |a: usize, each: usize| {
            let elements = room / each.max(1);
            (elements.saturating_sub(reach[a]) / step[a] + 1).min(total[a + 1])
        };
        let met = |a: usize, places: usize| (places - 1) * step[a] + reach[a];
        let mut size = [1; 4];
        let each = reach[0] * reach[1];
        size[3] = fit(2, each).max(2 * FEW).min(wide);
        if size[3] == wide {
            let row = met(2, wide);
            size[2] = fit(1, reach[0] * row);
            if size[2] == high {
                let plane = row * met(1, high);
                size[1] = fit(0, plane);
                if size[1] == deep {
                    let fit = (room / (plane * met(0, deep)).max(1)).max(1);
                    let enough = (together / (deep * high * wide).max(1)).max(1);
                    size[0] = fit.min(enough).min(images.max(1));
                }
            }
        }
        let mut grid = Grid { total, size };
        for a in 0..4 {
            let count = grid.count();
            if count >= wanted || grid.size.iter().product::<usize>() < 2 * FEW {
                break;
            }
            let less = grid.size[a].div_ceil(wanted.div_ceil(count));
            let inner: usize = grid.size[a + 1..].iter().product();
            let least = if a < 3 { FEW.div_ceil(inner) } else { FEW };
            grid.size[a] = less.max(least.min(grid.size[a]));
            if grid.size[a] > 1 {
                break;
            }
        }
        for (size, &all) in grid.size.iter_mut().zip(&total) {
            *size = all.div_ceil(all.div_ceil(*size).max(1)).max(1);
        }
        grid
    }

    pub fn count(&self) -> usize {
        (0..4).map(|a| self.total[a].div_ceil(self.size[a])).product()
    }

    pub fn block(&self, mut i: usize) -> Block {
        let mut of = |a: usize| {
            let count = self.total[a].div_ceil(self.size[a]);
            let start = i % count * self.size[a];
            i /= count;
            start..(start + self.size[a]).min(self.total[a])
        };
        let (wide, high, deep) = (of(3), of(2), of(1));
        Block { images: of(0), at: [deep, high, wide] }
    }
}
