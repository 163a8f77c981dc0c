//! A result's elements in order, as tiles of whole blocks, wherever they lie.

use super::super::copy::copy_nest;
use super::super::nest::{Dim, Nest};
use super::super::run::copy_run;
use super::fold::BLOCK;
use super::{Scratch, Serial, TILE_BYTES, TILE_BYTES_MAX, Task};
use smallvec::smallvec;
use std::ops::Range;

/// Gathers elements `range` of the result whose first lies at `offset`.
pub(super) struct Tiles<'a, 'b> {
    task: &'b Task<'a>,
    size: usize,
    offset: isize,
    next: usize,
    end: usize,
    scratch: Scratch,
    room: usize,
}

impl<'a, 'b> Tiles<'a, 'b> {
    pub fn new(
        task: &'b Task<'a>,
        size: usize,
        offset: isize,
        range: Range<usize>,
    ) -> Tiles<'a, 'b> {
        // Across memory a tile has room for sixteen lines, so that each cache line that is touched
        // is used up while it is near.
        let (length, step) = task.inner();
        let lines =
            if step.unsigned_abs() > 1 && task.reduced.dims.len() > 1 { 16 * length } else { 0 };
        let room = lines
            .clamp(TILE_BYTES / size, TILE_BYTES_MAX / size)
            .min(range.len())
            .next_multiple_of(BLOCK);
        let scratch = Scratch::new(room * size);
        Tiles { task, size, offset, next: range.start, end: range.end, scratch, room }
    }

    /// The number of the next tile's first element, where it lies, and how many elements it has:
    /// whole blocks unless it is the last.
    pub fn next(&mut self) -> Option<(usize, *const u8, usize)> {
        let first = self.next;
        let mut n = self.room.min(self.end - first);
        if n == 0 {
            return None;
        }
        let (length, step) = self.task.inner();
        // Elements that lie side by side from here on: in memory whole blocks of them are read in
        // place, and a block that goes on elsewhere is gathered alone. What is evaluated goes to a
        // tile in any case: the fewer pieces, the better.
        let beside = if step == 1 { length - first % length } else { 0 };
        if beside < n && length >= 2 * BLOCK && step == 1 && self.task.read.is_none() {
            n = if beside < BLOCK { BLOCK.min(n) } else { beside / BLOCK * BLOCK };
        }
        self.next += n;
        if n <= beside {
            let at = self.offset + self.task.reduced.at(first)[0];
            // SAFETY: elements of the input; the scratch has room.
            let tile = unsafe { self.task.run(at, n, self.size, self.scratch.ptr()) };
            return Some((first, tile, n));
        }
        let mut done = 0;
        while done < n {
            done += self.piece(first + done, n - done, done);
        }
        Some((first, self.scratch.ptr(), n))
    }

    /// Gathers up to `n` elements from number `r` on to place `done` of the scratch; gives how
    /// many.
    fn piece(&mut self, r: usize, n: usize, done: usize) -> usize {
        let dims = &self.task.reduced.dims;
        let (length, step) = self.task.inner();
        let at = self.offset + self.task.reduced.at(r)[0];
        let to = self.scratch.ptr().wrapping_add(done * self.size);
        // Whole lines of the loop outside, as many as there are of it and as fit.
        let lines = match dims.len().checked_sub(2).map(|d| dims[d]) {
            Some(outer) if r.is_multiple_of(length) => {
                (n / length).min(outer.size - r / length % outer.size)
            }
            _ => 0,
        };
        if self.task.read.is_some() {
            // A fused input has step 1 here, or it would be folded by columns.
            let n = n.min(length - r % length);
            // SAFETY: elements of the input, for which there is room.
            unsafe { self.task.run(at, n, self.size, to) };
            return n;
        }
        if lines <= 1 && step == 1 {
            let n = n.min(length - r % length);
            // SAFETY: elements of the input, for which there is room.
            unsafe { copy_run(to, self.task.at(at, self.size), n * self.size) };
            return n;
        }
        let nest = if lines > 1 {
            let outer = dims[dims.len() - 2];
            Nest::<2> {
                dims: smallvec![
                    Dim { size: lines, step: [length as isize, outer.step[0]] },
                    Dim { size: length, step: [1, step] }
                ],
            }
        } else {
            let n = n.min(length - r % length);
            Nest::<2> { dims: smallvec![Dim { size: n, step: [1, step] }] }
        };
        let n = nest.numel();
        copy_nest(nest, self.size, to, self.task.at(at, self.size), &Serial);
        n
    }
}
