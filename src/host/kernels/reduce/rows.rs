//! Reductions along memory: a result's elements lie side by side, or are gathered into a tile.

use super::super::nest::{Dim, Shared, in_parts, least_part};
use super::fold::{BLOCK, Tree};
use super::gather::Tiles;
use super::kernel::{Kernel, RowsCall, To};
use super::{Scratch, TILE_BYTES, TILE_BYTES_MAX, Task, least};
use crate::view::Parallel;
use std::ops::Range;

/// Partial results that one call keeps, at most.
pub(super) const PARTIALS: usize = 256;

pub(super) fn fold_rows(task: &Task<'_>, kernel: &Kernel) {
    let results = task.kept.numel();
    let chunk = chunk_of(task.count, results, least(kernel.size), task.par);
    if chunk >= task.count {
        in_parts(results, (least(kernel.size) / task.count.max(1)).max(1), task.par, &|part| {
            some_rows(task, kernel, part);
        });
        return;
    }
    // Few results of many elements: each is cut at whole runs of its tree, and the runs join after.
    let chunks = task.count.div_ceil(chunk);
    let mut partials = [0u64; PARTIALS];
    let to = Shared::<u64>::new(partials.as_mut_ptr());
    task.par.run(results * chunks, &|i| {
        let first = (i % chunks) * chunk;
        let [_, offset] = task.kept.at(i / chunks);
        if let Some(acc) = one_row(task, kernel, offset, first..(first + chunk).min(task.count)) {
            // SAFETY: `chunk_of` has seen to it that there are at most `PARTIALS`; each part writes
            // its own.
            unsafe { to.at(i as isize).write(acc) };
        }
    });
    for (p, [at, _]) in task.kept.turns(0..results) {
        let mut tree = Tree::new();
        partials[p * chunks..(p + 1) * chunks].iter().for_each(|&run| tree.push(run, kernel.join));
        // SAFETY: `at` is an index of the output.
        unsafe { (kernel.end)(tree.end(kernel.join), task.result(at), task.mean()) };
    }
}

/// Elements of a result that one part folds: all of them unless results are few and long; then a
/// power of two of blocks, so that the tree is the same however many threads there are.
pub(super) fn chunk_of(count: usize, results: usize, least: usize, par: &dyn Parallel) -> usize {
    let (threads, work) = (par.threads(), results.saturating_mul(count));
    let least = least_part(work, least, par);
    if threads <= 1 || results >= 4 * threads || work < 2 * least || count < 2 * BLOCK {
        return count;
    }
    let parts = (4 * threads).div_ceil(results).min(PARTIALS / results).max(1);
    count.div_ceil(parts).max(least / 4).div_ceil(BLOCK).next_power_of_two() * BLOCK
}

/// Whole results, one after another.
fn some_rows(task: &Task<'_>, kernel: &Kernel, part: Range<usize>) {
    let n = task.count;
    if n == 0 || !task.side_by_side() {
        for (_, [at, offset]) in task.kept.turns(part) {
            let acc = one_row(task, kernel, offset, 0..n);
            // SAFETY: `at` is an index of the output.
            unsafe { (kernel.end)(acc, task.result(at), task.mean()) };
        }
        return;
    }
    // All rows of the innermost kept loop in one call; of a fused input, as many as fit a tile.
    let mut outer = task.kept.clone();
    let along = outer.dims.pop().unwrap_or(Dim { size: 1, step: [1, n as isize] });
    let most = match task.read {
        None => along.size,
        Some(_) if along.step[1] == n as isize => (TILE_BYTES / kernel.size / n).max(1),
        Some(_) => 1,
    };
    let mut scratch = Scratch::new(if task.read.is_some() { TILE_BYTES } else { 0 });
    let mut next = part.start;
    while next < part.end {
        let i = next % along.size;
        let rows = most.min(along.size - i).min(part.end - next);
        let [at, offset] = outer.at(next / along.size);
        let (at, offset) = (at + i as isize * along.step[0], offset + i as isize * along.step[1]);
        if task.read.is_some() && n * kernel.size > TILE_BYTES {
            let acc = one_row(task, kernel, offset, 0..n);
            // SAFETY: `at` is an index of the output.
            unsafe { (kernel.end)(acc, task.result(at), task.mean()) };
        } else {
            let to = To::Results { out: task.result(at), step: along.step[0], mean: task.mean() };
            // SAFETY: rows of the input (of a fused one, as many as the scratch holds), and their
            // results.
            unsafe {
                let x = task.run(offset, rows * n, kernel.size, scratch.ptr());
                let step = if task.read.is_some() { n as isize } else { along.step[1] };
                (kernel.rows)(RowsCall { x, step, rows, n, to });
            }
        }
        next += rows;
    }
}

/// The elements `range` of the result whose first lies at `offset`. The range starts at a block.
/// None for none.
fn one_row(task: &Task<'_>, kernel: &Kernel, offset: isize, range: Range<usize>) -> Option<u64> {
    if range.is_empty() {
        return None;
    }
    let mut acc = 0;
    if task.side_by_side() && task.read.is_none() {
        let x = task.at(offset + range.start as isize * task.inner().1, kernel.size);
        // SAFETY: a run of the input.
        unsafe {
            (kernel.rows)(RowsCall { x, step: 0, rows: 1, n: range.len(), to: To::Words(&mut acc) })
        };
        return Some(acc);
    }
    let mut tree = Tree::new();
    blocks(task, kernel, offset, range, |_, acc| tree.push(acc, kernel.join));
    tree.end(kernel.join)
}

/// Shows the value of each block of elements `range` of a result, with the number of its first
/// element.
pub(super) fn blocks(
    task: &Task<'_>,
    kernel: &Kernel,
    offset: isize,
    range: Range<usize>,
    mut see: impl FnMut(usize, u64),
) {
    let mut words = [0u64; TILE_BYTES_MAX / BLOCK];
    let mut tiles = Tiles::new(task, kernel.size, offset, range);
    while let Some((first, x, n)) = tiles.next() {
        // SAFETY: `n` elements of the tile; it has at most `words.len()` blocks.
        unsafe {
            let to = words.as_mut_ptr();
            let (whole, rest) = (n / BLOCK, n % BLOCK);
            let call =
                RowsCall { x, step: BLOCK as isize, rows: whole, n: BLOCK, to: To::Words(to) };
            (kernel.rows)(call);
            if rest > 0 {
                let x = x.add(whole * BLOCK * kernel.size);
                (kernel.rows)(RowsCall {
                    x,
                    step: 0,
                    rows: 1,
                    n: rest,
                    to: To::Words(to.add(whole)),
                });
            }
        }
        words[..n.div_ceil(BLOCK)]
            .iter()
            .enumerate()
            .for_each(|(b, &acc)| see(first + b * BLOCK, acc));
    }
}
