//! Reductions across memory: neighbouring results are folded side by side, in the same order of
//! elements as one row.

use super::super::isa::vectorize;
use super::super::nest::{Nest, Shared, in_parts, slice_of};
use super::fold::{BLOCK, Fold, LANES, Tree};
use super::rows::chunk_of;
use super::{Input, Task, least};
use std::ops::Range;

/// Results that are folded side by side, at most: with 4-byte elements a page of memory.
const WIDTH: usize = 1024;
/// Results that one turn of the innermost loop holds in registers.
const STRIP: usize = 32;
/// Levels of the tree within a block.
const LEVELS: usize = LANES.ilog2() as usize;

pub(super) fn fold_columns<F: Fold>(task: &Task<'_>, column: usize) {
    let mut outer = task.kept.clone();
    let along = outer.dims.remove(column);
    let cuts = along.size.div_ceil(WIDTH);
    let units = outer.numel() * cuts;
    let work = Work {
        reduced: &task.reduced,
        input: task.input::<F::In>(),
        count: task.count,
        step: along.step[0],
        output: task.output.cast::<F::Out>(),
    };
    let strip = |unit: usize| {
        let ([at, offset], cut) = (outer.at(unit / cuts), slice_of(along.size, cuts, unit % cuts));
        (at + cut.start as isize * along.step[0], offset + cut.start as isize, cut.len())
    };
    let width = along.size.div_ceil(cuts);
    let chunk = chunk_of(task.count, units, least::<F::In>() / width, task.par.threads());
    if chunk >= task.count {
        in_parts(units, (least::<F::In>() / (width * task.count)).max(1), task.par, &|part| {
            let mut room = Room::<F>::new(width, task.count, work.input.read.is_some());
            for unit in part {
                let (at, offset, n) = strip(unit);
                vectorize(|| {
                    work.fold(&mut room, offset, n, 0..task.count);
                    room.total(n).enumerate().for_each(|(i, acc)| {
                        // SAFETY: an index of the output, and this unit's own.
                        unsafe { work.output.at(at + i as isize * work.step).write(F::end(acc, task.count)) };
                    });
                });
            }
        });
        return;
    }
    let chunks = task.count.div_ceil(chunk);
    let mut partials = vec![F::start(); units * chunks * width];
    let to = Shared::<F::Acc>::new(partials.as_mut_ptr());
    task.par.run(units * chunks, &|i| {
        let first = (i % chunks) * chunk;
        let range = first..(first + chunk).min(task.count);
        let mut room = Room::<F>::new(width, range.len(), work.input.read.is_some());
        let (_, offset, n) = strip(i / chunks);
        vectorize(|| work.fold(&mut room, offset, n, range));
        // SAFETY: each part has `width` partial results of its own, and `n` is at most that.
        room.total(n).enumerate().for_each(|(w, acc)| unsafe { to.at((i * width + w) as isize).write(acc) });
    });
    for unit in 0..units {
        let (at, _, n) = strip(unit);
        for w in 0..n {
            let mut tree = Tree::<F>::new();
            (0..chunks).for_each(|c| tree.push(partials[(unit * chunks + c) * width + w]));
            // SAFETY: an index of the output.
            unsafe { work.output.at(at + w as isize * work.step).write(F::end(tree.end(), task.count)) };
        }
    }
}

/// What the strips of a task have in common.
struct Work<'a, F: Fold> {
    reduced: &'a Nest<1>,
    input: Input<'a, F::In>,
    count: usize,
    step: isize,
    output: Shared<F::Out>,
}

/// Trees of neighbouring results, level by level: first the lanes', then the blocks'.
struct Room<F: Fold> {
    levels: Vec<F::Acc>,
    width: usize,
    blocks: usize,
    evaluated: Vec<F::In>,
}

/// Elements that a fused input is asked for at once, at most: these stay in the second-level cache.
const EVALUATED: usize = 64 << 10;

impl<F: Fold> Room<F> {
    fn new(width: usize, count: usize, fused: bool) -> Room<F> {
        let width = width.next_multiple_of(STRIP);
        let levels = LEVELS + 1 + count.div_ceil(BLOCK).ilog2() as usize + 1;
        let evaluated = if fused { EVALUATED.max(BLOCK / LANES * width) } else { 0 };
        Room {
            levels: vec![F::start(); levels * width],
            width,
            blocks: 0,
            evaluated: Vec::with_capacity(evaluated),
        }
    }

    /// The results of all blocks so far, in the order of [`Tree::end`].
    #[inline(always)]
    fn total(&self, n: usize) -> impl Iterator<Item = F::Acc> + '_ {
        (0..n).map(|w| {
            let mut acc = None;
            for level in 0..usize::BITS as usize - self.blocks.leading_zeros() as usize {
                if self.blocks >> level & 1 == 1 {
                    let run = self.levels[(LEVELS + level) * self.width + w];
                    acc = Some(acc.map_or(run, |right| F::join(run, right)));
                }
            }
            acc.unwrap_or(F::start())
        })
    }
}

impl<F: Fold> Work<'_, F> {
    /// Folds elements `range` of `n` neighbouring results, whose first elements lie from `offset` on.
    #[inline(always)]
    fn fold(&self, room: &mut Room<F>, offset: isize, n: usize, range: Range<usize>) {
        room.blocks = 0;
        let mut offsets = [0isize; BLOCK];
        let whole = match &self.reduced.dims[..] {
            // Whole rows that follow each other, and are few enough to be evaluated together.
            [d] => self.input.read.is_some() && d.step[0] == n as isize && n * BLOCK <= EVALUATED,
            _ => false,
        };
        let mut first = range.start;
        while first < range.end {
            let len = BLOCK.min(range.end - first);
            self.reduced.each(first..first + len, |r, [at]| offsets[r - first] = offset + at);
            let mut input = self.input;
            let rows = &mut offsets[..len];
            if whole {
                // SAFETY: `len` rows of `n` elements of the input, for which there is room.
                let at = unsafe { input.run(rows[0], len * n, room.evaluated.as_mut_ptr()) };
                input = Input { at: Shared::new(at.cast_mut()), read: None };
                rows.iter_mut().enumerate().for_each(|(r, at)| *at = (r * n) as isize);
            }
            self.fold_block(room, input, rows, n);
            room.blocks += 1;
            first += len;
        }
    }

    /// One block: lanes in the order in which their tree wants them, so that a level is one buffer.
    #[inline(always)]
    fn fold_block(&self, room: &mut Room<F>, input: Input<'_, F::In>, rows: &[isize], n: usize) {
        let width = room.width;
        for i in 0..LANES {
            let lane = i.reverse_bits() >> (usize::BITS as usize - LEVELS);
            let mut level = i.trailing_ones() as usize;
            let mut from: [*const F::In; BLOCK / LANES] = [std::ptr::null(); BLOCK / LANES];
            let mut turns = 0;
            while lane + turns * LANES < rows.len() {
                let offset = rows[lane + turns * LANES];
                // SAFETY: `n` elements of the input; a fused one's have room beside each other.
                from[turns] =
                    unsafe { input.run(offset, n, room.evaluated.as_mut_ptr().wrapping_add(turns * n)) };
                turns += 1;
            }
            let from = &from[..turns];
            // The last lane of a block ends it: its value goes on into the blocks' tree.
            let last = i + 1 == LANES;
            if last {
                level = LEVELS + room.blocks.trailing_ones() as usize;
            }
            let (below, at) = room.levels.split_at_mut(level * width);
            let at = &mut at[..width];
            let full = n / STRIP * STRIP;
            let mut w = 0;
            while w < full {
                // SAFETY: `w + STRIP` is at most `n`.
                unsafe { strip::<F, STRIP>(from, w, STRIP, below, width, level, at) };
                w += STRIP;
            }
            if w < n {
                // SAFETY: reads `n - w` elements at `w`.
                unsafe { strip::<F, STRIP>(from, w, n - w, below, width, level, at) };
            }
        }
    }
}

/// Folds one lane of `n` results from `w` on, and joins it with what waits on the levels below.
///
/// # Safety
/// Each of `from` is valid for reads of `w + n` elements; `n` is at most `N`.
#[inline(always)]
unsafe fn strip<F: Fold, const N: usize>(
    from: &[*const F::In],
    w: usize,
    n: usize,
    below: &[F::Acc],
    width: usize,
    level: usize,
    at: &mut [F::Acc],
) {
    let mut acc = [F::start(); N];
    for row in from {
        // SAFETY: by the caller's promise.
        let row = unsafe { std::slice::from_raw_parts(row.add(w), n) };
        if n == N {
            (0..N).for_each(|i| acc[i] = F::join(acc[i], F::lift(row[i])));
        } else {
            (0..n).for_each(|i| acc[i] = F::join(acc[i], F::lift(row[i])));
        }
    }
    for l in 0..level {
        let left = &below[l * width + w..][..N];
        (0..N).for_each(|i| acc[i] = F::join(left[i], acc[i]));
    }
    at[w..w + N].copy_from_slice(&acc);
}
