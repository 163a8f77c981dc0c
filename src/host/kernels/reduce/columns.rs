//! Reductions across memory: neighbouring results are folded side by side, in the same order of
//! elements as one row.

use super::super::nest::{Dim, Nest, Shared, in_parts, slice_of};
use super::fold::{BLOCK, Tree};
use super::kernel::{BlockCall, Kernel, To};
use super::rows::chunk_of;
use super::{LEVELS, STRIP, Scratch, TILE_BYTES_MAX, Task, least};
use std::ops::Range;

/// Bytes of a row that are folded side by side, at most, so that a machine that fetches ahead
/// seldom starts anew. (On two cores of a Zen 4, 4, 8 and 16 KiB took 146, 104 and 100 us for 64
/// rows of 50000 float32.)
const BYTES: usize = 8 << 10;
/// Results that they are at most, so that what waits to be joined stays in a core's own caches.
const WIDTH: usize = 4096;
/// Results of a strip, at least, where there would be too few strips for all threads.
const LEAST_WIDTH: usize = 512;

/// The columns of a task, cut into strips: a strip of results at each turn of the outer loops.
pub(super) struct Columns<'a, 'b> {
    pub task: &'b Task<'a>,
    outer: Nest<2>,
    along: Dim<2>,
    cuts: usize,
}

impl<'a, 'b> Columns<'a, 'b> {
    pub fn new(task: &'b Task<'a>, column: usize, size: usize) -> Columns<'a, 'b> {
        let mut outer = task.kept.clone();
        let along = outer.dims.remove(column);
        // All of a block of a fused input is evaluated before it is folded.
        let most = if task.read.is_some() { TILE_BYTES_MAX / BLOCK } else { BYTES };
        let cuts = along.size.div_ceil((most / size).min(WIDTH));
        // Many rows are cut between rows, and those of a fused input are evaluated together.
        let is_cut = task.count < 2 * BLOCK && task.read.is_none();
        let threads = if is_cut { task.par.threads() } else { 1 };
        let wanted = if threads > 1 { (4 * threads).div_ceil(outer.numel().max(1)) } else { 1 };
        Columns { task, outer, along, cuts: cuts.max(wanted.min(along.size / LEAST_WIDTH)) }
    }

    /// How many strips there are.
    pub fn units(&self) -> usize {
        self.outer.numel() * self.cuts
    }

    /// Results of the widest strip.
    pub fn width(&self) -> usize {
        self.along.size.div_ceil(self.cuts)
    }

    /// From one result of a strip to the next.
    pub fn step(&self) -> isize {
        self.along.step[0]
    }

    /// Where a strip's first result and that one's first element lie, and how many results it has.
    pub fn strip(&self, unit: usize) -> (isize, isize, usize) {
        let [at, offset] = self.outer.at(unit / self.cuts);
        let cut = slice_of(self.along.size, self.cuts, unit % self.cuts);
        (at + cut.start as isize * self.along.step[0], offset + cut.start as isize, cut.len())
    }

    /// Shows the rows of elements `range` of `n` neighbouring results, whose first elements lie
    /// from `offset` on: block by block, with the number of the first.
    pub fn blocks(
        &self,
        size: usize,
        offset: isize,
        n: usize,
        range: Range<usize>,
        mut see: impl FnMut(usize, &[*const u8]),
    ) {
        let task = self.task;
        let mut evaluated = Scratch::new(if task.read.is_some() { BLOCK * n * size } else { 0 });
        // Rows of a fused input that follow each other are evaluated together.
        let whole = matches!(&task.reduced.dims[..], [d] if d.step[0] == n as isize);
        let mut rows = [std::ptr::null::<u8>(); BLOCK];
        let mut first = range.start;
        while first < range.end {
            let len = BLOCK.min(range.end - first);
            let to = evaluated.ptr();
            if task.read.is_some() && whole {
                // SAFETY: `len` rows of the input, for which there is room.
                unsafe { task.run(offset + (first * n) as isize, len * n, size, to) };
                rows[..len]
                    .iter_mut()
                    .enumerate()
                    .for_each(|(r, row)| *row = to.wrapping_add(r * n * size));
            } else {
                for (r, [at]) in task.reduced.turns(first..first + len) {
                    let to = to.wrapping_add((r - first) * n * size);
                    // SAFETY: a row of the input, for which there is room.
                    rows[r - first] = unsafe { task.run(offset + at, n, size, to) };
                }
            }
            see(first, &rows[..len]);
            first += len;
        }
    }
}

pub(super) fn fold_columns(task: &Task<'_>, kernel: &Kernel, column: usize) {
    let columns = Columns::new(task, column, kernel.size);
    let (units, width, count) = (columns.units(), columns.width(), task.count);
    let least = (least(kernel.size) / width).max(1);
    let chunk = chunk_of(count, units, least, task.par);
    // Levels of the trees, lanes' and blocks', of as many results as a strip has or as one turn of
    // the kernel takes.
    let room = width.max(STRIP);
    let fold = |unit: usize, range: Range<usize>, mean: Option<usize>, words: *mut u64| {
        let (at, offset, n) = columns.strip(unit);
        let levels = LEVELS + 2 + range.len().div_ceil(BLOCK).ilog2() as usize;
        let mut levels = Scratch::new(levels * room * kernel.acc);
        let levels = levels.ptr();
        let mut blocks = 0;
        columns.blocks(kernel.size, offset, n, range, |_, rows| {
            // SAFETY: rows of `n` elements; levels as many as `blocks` can come to need.
            unsafe { (kernel.block)(BlockCall { rows, n, levels, width: room, blocks }) };
            blocks += 1;
        });
        let results = To::Results { out: task.result(at), step: columns.step(), mean };
        let to = if words.is_null() { results } else { To::Words(words) };
        // SAFETY: the levels that were written, and this unit's own results or words.
        unsafe { (kernel.finish)(levels, room, blocks, n, to) };
    };
    if chunk >= count {
        in_parts(units, (least / count).max(1), task.par, &|part| {
            part.for_each(|unit| fold(unit, 0..count, task.mean(), std::ptr::null_mut()));
        });
        return;
    }
    // Few strips of many rows: each is cut at whole runs of its trees, and the runs join after.
    let chunks = count.div_ceil(chunk);
    let mut partials = crate::room::filled(units * chunks * width, 0u64);
    let to = Shared::<u64>::new(partials.as_mut_ptr());
    task.par.run(units * chunks, &|i| {
        let first = (i % chunks) * chunk;
        fold(i / chunks, first..(first + chunk).min(count), None, to.at((i * width) as isize));
    });
    for unit in 0..units {
        let (at, _, n) = columns.strip(unit);
        for w in 0..n {
            let mut tree = Tree::new();
            (0..chunks)
                .for_each(|c| tree.push(partials[(unit * chunks + c) * width + w], kernel.join));
            let out = task.result(at + w as isize * columns.step());
            // SAFETY: an index of the output.
            unsafe { (kernel.end)(tree.end(kernel.join), out, task.mean()) };
        }
    }
}
