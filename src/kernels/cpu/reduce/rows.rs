//! Reductions along memory: a result's elements lie side by side, or are gathered into a tile.

use super::super::isa::vectorize;
use super::super::nest::{Nest, Shared, in_parts};
use super::fold::{BLOCK, Fold, Tree, fold_block, fold_row};
use super::{Input, Scratch, TILE, Task, least};
use std::ops::Range;

/// Partial results that one call keeps, at most.
const PARTIALS: usize = 256;

pub(super) fn fold_rows<F: Fold>(task: &Task<'_>) {
    let results = task.kept.numel();
    let chunk = chunk_of(task.count, results, least::<F::In>(), task.par.threads());
    let (input, output) = (task.input::<F::In>(), task.output.cast::<F::Out>());
    if chunk >= task.count {
        in_parts(results, (least::<F::In>() / task.count.max(1)).max(1), task.par, &|part| {
            vectorize(|| some_rows::<F>(task, input, output, part));
        });
        return;
    }
    // Few results of many elements: each is cut at whole runs of its tree, and the runs join after.
    let chunks = task.count.div_ceil(chunk);
    let mut partials = [F::start(); PARTIALS];
    let to = Shared::<F::Acc>::new(partials.as_mut_ptr());
    task.par.run(results * chunks, &|i| {
        let first = (i % chunks) * chunk;
        let range = first..(first + chunk).min(task.count);
        let [_, offset] = task.kept.at(i / chunks);
        let acc = vectorize(|| one_row::<F>(&task.reduced, input, offset, range));
        // SAFETY: `chunk_of` has seen to it that there are at most `PARTIALS`; each part writes its own.
        unsafe { to.at(i as isize).write(acc) };
    });
    task.kept.each(0..results, |p, [at, _]| {
        let mut tree = Tree::<F>::new();
        partials[p * chunks..(p + 1) * chunks].iter().for_each(|&run| tree.push(run));
        // SAFETY: `at` is an index of the output.
        unsafe { output.at(at).write(F::end(tree.end(), task.count)) };
    });
}

/// Elements of a result that one part folds: all of them unless results are few and long; then a power
/// of two of blocks, so that the tree is the same however many threads there are.
pub(super) fn chunk_of(count: usize, results: usize, least: usize, threads: usize) -> usize {
    if threads <= 1 || results >= 4 * threads || results.saturating_mul(count) < 2 * least || count < 2 * BLOCK
    {
        return count;
    }
    let parts = (4 * threads).div_ceil(results).min(PARTIALS / results).max(1);
    count.div_ceil(parts).max(least / 4).div_ceil(BLOCK).next_power_of_two() * BLOCK
}

/// Whole results, one after another.
#[inline(always)]
fn some_rows<F: Fold>(task: &Task<'_>, input: Input<'_, F::In>, output: Shared<F::Out>, part: Range<usize>) {
    let count = task.count;
    let side_by_side = match &task.reduced.dims[..] {
        [] => true,
        [d] => d.step[0] == 1,
        _ => false,
    };
    // Short rows that follow each other are evaluated together.
    let adjacent = task.kept.dims.len() == 1 && task.kept.dims[0].step[1] == count as isize;
    if input.read.is_some() && side_by_side && adjacent && count > 0 && count <= TILE / 2 {
        let mut scratch = Scratch::<F::In, TILE>::new();
        let (mut p, many) = (part.start, TILE / count);
        while p < part.end {
            let n = many.min(part.end - p);
            // SAFETY: `n` rows fit the tile and lie within the input; `p + i` is an output's index.
            unsafe {
                let rows = input.run((p * count) as isize, n * count, scratch.ptr());
                for i in 0..n {
                    let row = std::slice::from_raw_parts(rows.add(i * count), count);
                    output.at((p + i) as isize).write(F::end(fold_row::<F>(row), count));
                }
            }
            p += n;
        }
        return;
    }
    task.kept.each(part, |_, [at, offset]| {
        let acc = if side_by_side && input.read.is_none() && count > 0 {
            // SAFETY: a row without gaps of the input.
            fold_row::<F>(unsafe { std::slice::from_raw_parts(input.at.at(offset), count) })
        } else {
            one_row::<F>(&task.reduced, input, offset, 0..count)
        };
        // SAFETY: `at` is an index of the output.
        unsafe { output.at(at).write(F::end(acc, count)) };
    });
}

/// The elements `range` of the result whose first lies at `offset`. The range starts at a block.
#[inline(always)]
fn one_row<F: Fold>(reduced: &Nest<1>, input: Input<'_, F::In>, offset: isize, range: Range<usize>) -> F::Acc {
    let mut tree = Tree::<F>::new();
    tiles(reduced, input, offset, range, |_, tile| {
        tile.chunks(BLOCK).for_each(|block| tree.push(fold_block::<F>(block)));
    });
    tree.end()
}

/// Shows the elements `range` of a result in order, as slices of up to [`TILE`], each with the number of
/// its first. All but the last are whole tiles.
#[inline(always)]
pub(super) fn tiles<T: Copy>(
    reduced: &Nest<1>,
    input: Input<'_, T>,
    offset: isize,
    range: Range<usize>,
    mut see: impl FnMut(usize, &[T]),
) {
    let mut scratch = Scratch::<T, TILE>::new();
    let (length, step) = reduced.dims.last().map_or((1, 1), |d| (d.size, d.step[0]));
    let mut first = range.start;
    while first < range.end {
        let n = TILE.min(range.end - first);
        let inside = first % length + n <= length;
        // SAFETY: elements `first..first + n` of the result are the input's; the tile has room for `n`,
        // and all of them are written before the slice is made.
        let tile = unsafe {
            if step == 1 && inside {
                let [at] = reduced.at(first);
                std::slice::from_raw_parts(input.run(offset + at, n, scratch.ptr()), n)
            } else {
                gather(reduced, input, offset, first..first + n, length, step, scratch.ptr());
                std::slice::from_raw_parts(scratch.ptr(), n)
            }
        };
        see(first, tile);
        first += n;
    }
}

/// Writes elements `range` of a result side by side.
///
/// # Safety
/// They are the input's, and `to` has room for them.
#[inline(always)]
unsafe fn gather<T: Copy>(
    reduced: &Nest<1>,
    input: Input<'_, T>,
    offset: isize,
    range: Range<usize>,
    length: usize,
    step: isize,
    to: *mut T,
) {
    let mut done = 0;
    while done < range.len() {
        let r = range.start + done;
        let n = (length - r % length).min(range.len() - done);
        let at = offset + reduced.at(r)[0];
        // SAFETY: by the caller's promise.
        unsafe {
            let to = to.add(done);
            if step == 1 {
                let from = input.run(at, n, to);
                if input.read.is_none() {
                    std::ptr::copy_nonoverlapping(from, to, n);
                }
            } else {
                // A fused input has step 1 here, or it would be folded by columns.
                (0..n as isize).for_each(|i| *to.offset(i) = *input.at.at(at + i * step));
            }
        }
        done += n;
    }
}
