//! The places of elements that are not zero. Two passes: the size of the result depends on the
//! data, so its memory is had between them.

use super::super::isa::vectorize;
use super::super::nest::{Nest, Shared};
use crate::dtype::{Element, with_dtype};
use crate::view::{Parallel, View, ViewMut};

/// Elements that are counted together.
const CHUNK: usize = if cfg!(all(test, debug_assertions)) { 100 } else { 64 << 10 };

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
    // Every dimension stays, also those of one element.
    let nest = Nest::<1> {
        dims: (0..rank)
            .map(|d| super::super::nest::Dim { size: input.shape[d], step: [input.strides[d]] })
            .collect(),
    };
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
            if row == end {
                return;
            }
            for (turn, [at]) in nest.turns(chunk * CHUNK..((chunk + 1) * CHUNK).min(n)) {
                // SAFETY: an index of the input.
                if unsafe { *from.at(at) } != zero && row < end {
                    let mut rest = turn;
                    for d in (0..rank).rev() {
                        // SAFETY: `row` is below this chunk's end, and so the output's own row.
                        unsafe {
                            to.at((row * rank + d) as isize).write((rest % input.shape[d]) as i64)
                        };
                        rest /= input.shape[d];
                    }
                    row += 1;
                }
            }
        };
        match (counts.len(), par.threads()) {
            (0 | 1, _) | (_, 1) => (0..counts.len()).for_each(write),
            (chunks, _) => par.run(chunks, &write),
        }
    });
}
