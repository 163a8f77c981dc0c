//! The input of a block of places, so that each tap is an offset: where it lies, or copied with
//! zeros around it; and lines that are laid from it for a product.

use super::plan::{Block, Phase, Region};
use super::{Image, Real, same};
use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::Load;
use smallvec::SmallVec;
use std::ops::Range;

/// Elements that are copied at once: what is laid reaches so far beyond its end, less one.
pub(super) const WIDE: usize = 16;

/// The channels of a block's input.
pub(super) struct Source<W> {
    /// The first element of the block's region, of its first image and channel.
    at: *const W,
    image: isize,
    pub channel: isize,
    /// From a plane to the next, and from a row.
    rows: [isize; 2],
    /// Rows lie in so many lots, each so long: what places side by side meet lies side by side.
    lots: usize,
    lot: usize,
    /// Elements that may be read from `at` on.
    end: isize,
}

/// How many elements a copy takes, a channel.
pub(super) fn room(phase: &Phase, region: &Region, images: usize) -> usize {
    let [deep, high, wide] = region.size;
    let step = phase.axes[2].step;
    images * deep * high * wide.div_ceil(step) * step
}

impl<W: Real> Source<W> {
    /// The input where it lies, if a tap is an offset there.
    pub fn there<T: Load<W>>(
        phase: &Phase,
        block: &Block,
        x: Image<T>,
        channels: Range<usize>,
    ) -> Option<Source<W>> {
        let (region, input, steps) = (phase.region(&block.at), phase.input(), phase.steps);
        let within = |a: usize| {
            let end = region.from[a] + region.size[a] as isize;
            region.from[a] >= 0 && end <= input[a] as isize
        };
        let line = input[2] as isize;
        let even = steps[2] == 1
            && (input[1] == 1 || steps[1] == line)
            && (input[0] == 1 || steps[0] == line * input[1] as isize);
        if !same::<T, W>()
            || phase.axes[2].step != 1
            || !(0..3).all(within)
            || !even
            || x.planes[0] < 0
            || x.planes[1] < 0
        {
            return None;
        }
        let rows = [line * input[1] as isize, line];
        let at = x.plane(block.images.start, channels.start);
        let first = region.from[0] * rows[0] + region.from[1] * rows[1] + region.from[2];
        let last = (0..3).map(|a| {
            let step = if a == 2 { 1 } else { rows[a] };
            (region.size[a] as isize - 1) * step
        });
        let (images, planes) = (block.images.len() as isize - 1, channels.len() as isize - 1);
        let end = images * x.planes[0] + planes.max(0) * x.planes[1] + last.sum::<isize>() + 1;
        let (lots, lot) = (1, region.size[2]);
        let at = at.at(first).cast::<W>().cast_const();
        Some(Source { at, image: x.planes[0], channel: x.planes[1], rows, lots, lot, end })
    }

    /// Copies the input, with zeros for the padding, to `room` elements of `to` for each channel
    /// and [`WIDE`] more.
    pub fn copied<T: Load<W>>(
        phase: &Phase,
        block: &Block,
        x: Image<T>,
        channels: Range<usize>,
        to: &mut [W],
    ) -> Source<W> {
        let region = phase.region(&block.at);
        let ([deep, high, wide], step) = (region.size, phase.axes[2].step);
        let lot = wide.div_ceil(step);
        let (row, input) = (lot * step, phase.input());
        let rows = block.images.len() * channels.len() * deep * high;
        assert!(rows * row + WIDE <= to.len(), "there is room for all rows");
        let mut line = to.as_mut_ptr();
        vectorize!(|| {
            for n in block.images.clone() {
                for c in channels.clone() {
                    let plane = x.plane(n, c);
                    for z in region.from[0]..region.from[0] + deep as isize {
                        for y in region.from[1]..region.from[1] + high as isize {
                            let on = (0..input[0] as isize).contains(&z)
                                && (0..input[1] as isize).contains(&y);
                            let from = plane.at(z * phase.steps[0] + y * phase.steps[1]);
                            // SAFETY: a row of the input, and one of the copy, which goes on for
                            // `WIDE` elements.
                            unsafe {
                                if on {
                                    for i in 0..step {
                                        let line = line.add(i * lot);
                                        let first = region.from[2] + i as isize;
                                        let apart = phase.steps[2];
                                        copy_line((from, apart, input[2]), first, step, line, lot);
                                    }
                                } else {
                                    zeros(line, row);
                                }
                                line = line.add(row);
                            }
                        }
                    }
                }
            }
        });
        let plane = (deep * high * row) as isize;
        let rows = [(high * row) as isize, row as isize];
        let image = plane * channels.len() as isize;
        let end = to.len() as isize;
        Source { at: to.as_ptr(), image, channel: plane, rows, lots: step, lot, end }
    }

    /// The offset of a tap, which lies there in the region.
    pub fn tap(&self, [z, y, x]: [usize; 3]) -> isize {
        let (lot, at) = (x % self.lots, x / self.lots);
        z as isize * self.rows[0] + y as isize * self.rows[1] + (lot * self.lot + at) as isize
    }

    /// The offset of a place of the block.
    #[inline(always)]
    pub fn place(&self, phase: &Phase, image: usize, [z, y, x]: [usize; 3]) -> isize {
        let (z, y) = ((z * phase.axes[0].step) as isize, (y * phase.axes[1].step) as isize);
        image as isize * self.image + z * self.rows[0] + y * self.rows[1] + x as isize
    }

    /// An address so many elements on.
    #[inline(always)]
    pub fn at(&self, offset: isize) -> *const W {
        self.at.wrapping_offset(offset)
    }

    /// What lies under some places of the block, as chunks from the first tap of the first channel;
    /// `last` is the farthest offset of a tap and channel.
    pub fn chunks(
        &self,
        phase: &Phase,
        block: &Block,
        places: Range<usize>,
        last: isize,
    ) -> Chunks {
        let mut chunks = Chunks::new();
        for run in block.runs(places.clone()) {
            let from = self.place(phase, run.image, run.at);
            let safe = (self.end - last - from).max(0) as usize;
            chunks_of(run.start - places.start, from, run.len, safe, &mut chunks);
        }
        chunks
    }
}

/// Writes `n` zeros, and up to [`WIDE`] more.
///
/// # Safety
/// So many elements may be written.
#[inline(always)]
unsafe fn zeros<W: Real>(to: *mut W, n: usize) {
    let mut i = 0;
    while i < n {
        // SAFETY: by the caller's promise.
        unsafe { to.add(i).cast::<[W; WIDE]>().write_unaligned([W::ZERO; WIDE]) };
        i += WIDE;
    }
}

/// One row of the input, of `n` elements that are `apart` in memory: element `first` and each
/// `step` on, with zeros for what lies beyond. `len` elements are written, and up to [`WIDE`] more.
///
/// # Safety
/// The row is there, and so many elements may be written.
#[inline(always)]
unsafe fn copy_line<T: Load<W>, W: Real>(
    (from, apart, n): (*const T, isize, usize),
    first: isize,
    step: usize,
    to: *mut W,
    len: usize,
) {
    let before = (-first).max(0) as usize;
    let start = if before == 0 { 0 } else { before.div_ceil(step).min(len) };
    let end = (n as isize - first).max(0) as usize;
    let end = if step == 1 { end } else { end.div_ceil(step) }.clamp(start, len);
    let from = from.wrapping_offset((first + (start * step) as isize) * apart);
    let (count, at) = (end - start, to.wrapping_add(start));
    // SAFETY: elements of the row, by the caller's promise, and of the line.
    unsafe {
        // Loops, not calls with closures, which the compiler would leave out of the level's code.
        zeros(to, start);
        let apart = apart * step as isize;
        // Whole registers, the last of which begins where it ends with the row.
        macro_rules! wide {
            ($apart:literal) => {
                for i in (0..count).step_by(WIDE) {
                    let first = i.min(count - WIDE);
                    let x = from.add($apart * first).cast::<[T; $apart * (WIDE - 1) + 1]>();
                    let x = x.read_unaligned();
                    let mut wide = [W::ZERO; WIDE];
                    for k in 0..WIDE {
                        wide[k] = x[$apart * k].load();
                    }
                    at.add(first).cast::<[W; WIDE]>().write_unaligned(wide);
                }
            };
        }
        if apart == 1 && count >= WIDE {
            wide!(1);
        } else if apart == 2 && count >= WIDE {
            wide!(2);
        } else if apart == 2 {
            for i in 0..count {
                at.add(i).write((*from.add(2 * i)).load());
            }
        } else {
            for i in 0..count {
                at.add(i).write((*from.offset(i as isize * apart)).load());
            }
        }
        zeros(to.add(end), len - end);
    }
}

/// Elements that lie side by side, and where in a line they go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub to: usize,
    pub from: isize,
    /// [`WIDE`] where as many may be read, and written over by what comes next.
    len: usize,
}

pub(super) type Chunks = SmallVec<[Chunk; 8]>;

/// Chunks of `n` elements, of which `safe` may be read.
pub(super) fn chunks_of(to: usize, from: isize, n: usize, safe: usize, chunks: &mut Chunks) {
    for i in (0..n).step_by(WIDE) {
        let len = if i + WIDE <= safe { WIDE } else { n - i };
        chunks.push(Chunk { to: to + i, from: from + i as isize, len });
    }
}

/// Lays lines, `wide` elements one after the other: for each of `outer` turns, `step` elements
/// further each, and each of `inner` a line of all chunks from there on. Up to [`WIDE`] elements
/// behind the last line are written too.
///
/// # Safety
/// What chunks name may be read, and what is named above be written.
pub(super) unsafe fn lay<W: Real>(
    (outer, step): (usize, isize),
    inner: &[isize],
    chunks: &[Chunk],
    from: *const W,
    to: *mut W,
    wide: usize,
) {
    let whole = chunks.iter().all(|chunk| chunk.len == WIDE);
    let lines = Lines { outer, step, inner, from, to, wide };
    // SAFETY: by the caller's promise, in each arm.
    vectorize!(|| unsafe {
        match (whole, chunks) {
            (true, &[a]) => lines.of([a]),
            (true, &[a, b]) => lines.of([a, b]),
            (true, &[a, b, c]) => lines.of([a, b, c]),
            (true, &[a, b, c, d]) => lines.of([a, b, c, d]),
            (true, &[a, b, c, d, e]) => lines.of([a, b, c, d, e]),
            (true, &[a, b, c, d, e, f]) => lines.of([a, b, c, d, e, f]),
            _ => lines.any(chunks),
        }
    });
}

/// [`WIDE`] elements.
///
/// # Safety
/// So many may be read, and written.
#[inline(always)]
unsafe fn copy<W: Copy>(from: *const W, to: *mut W) {
    // SAFETY: by the caller's promise.
    unsafe { to.cast::<[W; WIDE]>().write_unaligned(from.cast::<[W; WIDE]>().read_unaligned()) };
}

/// What [`lay`] goes over.
#[derive(Clone, Copy)]
struct Lines<'a, W> {
    outer: usize,
    step: isize,
    inner: &'a [isize],
    from: *const W,
    to: *mut W,
    wide: usize,
}

impl<W: Copy> Lines<'_, W> {
    /// # Safety
    /// As for [`lay`].
    #[inline(always)]
    unsafe fn any(self, chunks: &[Chunk]) {
        let mut to = self.to;
        for i in 0..self.outer {
            let from = self.from.wrapping_offset(i as isize * self.step);
            for &offset in self.inner {
                let from = from.wrapping_offset(offset);
                for chunk in chunks {
                    // SAFETY: by the caller's promise.
                    unsafe {
                        let (from, to) = (from.offset(chunk.from), to.add(chunk.to));
                        if chunk.len == WIDE {
                            copy(from, to);
                            continue;
                        }
                        for i in 0..chunk.len {
                            *to.add(i) = *from.add(i);
                        }
                    }
                }
                to = to.wrapping_add(self.wide);
            }
        }
    }

    /// # Safety
    /// As for [`lay`]; all chunks are whole.
    #[inline(always)]
    unsafe fn of<const N: usize>(self, chunks: [Chunk; N]) {
        let mut to = self.to;
        for i in 0..self.outer {
            let from = self.from.wrapping_offset(i as isize * self.step);
            for &offset in self.inner {
                let from = from.wrapping_offset(offset);
                for n in 0..N {
                    // SAFETY: by the caller's promise.
                    unsafe { copy(from.offset(chunks[n].from), to.add(chunks[n].to)) };
                }
                to = to.wrapping_add(self.wide);
            }
        }
    }
}
