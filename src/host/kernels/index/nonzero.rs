//! The places of elements that are not zero. Two passes: the size of the result depends on the
//! data, so its memory is had between them.

use super::super::isa::vectorize;
use super::super::nest::{Nest, Shared};
use crate::dtype::{Element, with_dtype};
use crate::view::{Parallel, View, ViewMut};

/// Elements that are counted together.
const CHUNK: usize = if cfg!(all(test, debug_assertions)) { 100 } else { 64 << 10 };

/// Elements that are looked through at a time.
const BLOCK: usize = 256;

/// How many elements are not zero, in each run of elements; [`nonzero`] takes it from here. NaN is
/// not zero. `None` where there is no memory for the counts.
pub(crate) fn count_nonzero(input: View<'_>, par: &dyn Parallel) -> Option<Vec<usize>> {
    let (n, nest) = (input.numel(), Nest::new(input.shape, [input.strides]).merged());
    let mut counts: Vec<usize> = Vec::new();
    counts.try_reserve_exact(n.div_ceil(CHUNK)).ok()?;
    counts.resize(n.div_ceil(CHUNK), 0);
    let to = Shared::<usize>::new(counts.as_mut_ptr());
    with_dtype!(input.dtype, T => {
        let from = Shared::<T>::new(input.ptr.cast_mut());
        let zero = T::from_i64(0);
        let count = |chunk: usize| {
            let range = chunk * CHUNK..((chunk + 1) * CHUNK).min(n);
            let count = vectorize!(|| match &nest.dims[..] {
                [d] if d.step == [1] => {
                    // SAFETY: a run of the input.
                    let run = unsafe {
                        std::slice::from_raw_parts(from.at(range.start as isize), range.len())
                    };
                    run.iter().filter(|&&x| x != zero).count()
                }
                _ => {
                    let mut count = 0;
                    for (_, [at]) in nest.turns(range) {
                        // SAFETY: an index of the input.
                        count += (unsafe { *from.at(at) } != zero) as usize;
                    }
                    count
                }
            });
            // SAFETY: each chunk has its own place.
            unsafe { to.at(chunk as isize).write(count) };
        };
        match (counts.len(), par.threads()) {
            (0 | 1, _) | (_, 1) => (0..counts.len()).for_each(count),
            (chunks, _) => par.run(chunks, &count),
        }
    });
    Some(counts)
}

/// Writes the multi-index of every element that is not zero, row by row: `[count, rank]` of int64.
pub(crate) fn nonzero(input: View<'_>, counts: &[usize], out: &ViewMut<'_>, par: &dyn Parallel) {
    let (n, rank) = (input.numel(), input.shape.len());
    debug_assert_eq!(out.numel(), counts.iter().sum::<usize>() * rank);
    let nest = Nest::new(input.shape, [input.strides]).merged();
    let mut starts: Vec<usize> = crate::room::with_capacity(counts.len());
    starts.extend(counts.iter().scan(0, |sum, count| {
        *sum += count;
        Some(*sum - count)
    }));
    let to = Shared::<i64>::new(out.ptr);
    with_dtype!(input.dtype, T => {
        let from = Shared::<T>::new(input.ptr.cast_mut());
        let zero = T::from_i64(0);
        let write = |chunk: usize| {
            let mut row = starts[chunk];
            let end = row + counts[chunk];
            let (first, last) = (chunk * CHUNK, ((chunk + 1) * CHUNK).min(n));
            // A block's places are found without a branch, which no machine would foresee: each is
            // written, and stays if the next one is not written over it.
            let mut found = [0usize; BLOCK + 1];
            for first in (first..last).step_by(BLOCK) {
                if row == end {
                    return;
                }
                let (block, mut some) = (first..last.min(first + BLOCK), 0);
                let mut see = |turn: usize, at: isize| {
                    found[some] = turn;
                    // SAFETY: an element of the input.
                    some += (unsafe { *from.at(at) } != zero) as usize;
                };
                match &nest.dims[..] {
                    [d] if d.step == [1] => block.for_each(|turn| see(turn, turn as isize)),
                    _ => nest.turns(block).for_each(|(turn, [at])| see(turn, at)),
                }
                let some = &found[..some.min(end - row)];
                let to = to.at((row * rank) as isize);
                for (row, &turn) in some.iter().enumerate() {
                    let mut rest = turn;
                    for d in (0..rank).rev() {
                        let size = input.shape[d];
                        let i = if d == 0 { rest } else { rest % size };
                        // SAFETY: the rows are below this chunk's end, and so the output's own.
                        unsafe { to.add(row * rank + d).write(i as i64) };
                        rest = if d == 0 { 0 } else { rest / size };
                    }
                }
                row += some.len();
            }
        };
        match (counts.len(), par.threads()) {
            (0 | 1, _) | (_, 1) => (0..counts.len()).for_each(write),
            (chunks, _) => par.run(chunks, &write),
        }
    });
}
