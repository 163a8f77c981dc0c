//! The order in which the values of blocks meet.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// The binary tree over blocks, built from the left: entry `i` is the value of a run of `2^i` of
/// them.
pub(in super::super) struct Tree<A> {
    runs: [MaybeUninit<A>; 48],
    count: usize,
}

impl<A: Copy> Tree<A> {
    #[inline(always)]
    pub const fn new() -> Tree<A> {
        Tree { runs: [const { MaybeUninit::uninit() }; 48], count: 0 }
    }

    /// Adds the value of the next block, or of the next run when all before were of that length.
    #[inline(always)]
    pub fn push(&mut self, mut acc: A, join: impl Fn(A, A) -> A) {
        let level = self.count.trailing_ones() as usize;
        for run in &self.runs[..level] {
            // SAFETY: bit `i` of the count is set, so run `i` has been written.
            acc = join(unsafe { run.assume_init() }, acc);
        }
        self.runs[level].write(acc);
        self.count += 1;
    }

    /// The value of all: what is left over joins from the right. None if there was nothing.
    #[inline(always)]
    pub fn end(&self, join: impl Fn(A, A) -> A) -> Option<A> {
        let mut acc = None;
        let mut rest = self.count;
        while rest != 0 {
            // SAFETY: the bit is set, so the run has been written.
            let run = unsafe { self.runs[rest.trailing_zeros() as usize].assume_init() };
            acc = Some(acc.map_or(run, |right| join(run, right)));
            rest &= rest - 1;
        }
        acc
    }
}
