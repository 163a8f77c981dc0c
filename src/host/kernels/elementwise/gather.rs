//! Inputs that do not lie row by row: broadcast, transposed, sliced with a step. A tile of one is
//! copied into a slot, in the order of the iteration.
//!
//! Called by the executor before the loops of a tile. Knows strides and bytes, no types and no ops.

#![allow(unsafe_code)]

use smallvec::SmallVec;

/// One dimension: how many, and how many bytes from one to the next.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Dim {
    size: usize,
    stride: isize,
}

/// How an input lies, its dimensions joined as far as they can be.
pub(super) enum Lie {
    /// One element for all positions.
    Uniform,
    /// Row by row.
    Contiguous,
    /// Anything else.
    Strided(Gather),
}

/// A strided input.
pub(super) struct Gather {
    ptr: *const u8,
    /// Bytes of an element.
    size: usize,
    /// Outermost first.
    dims: SmallVec<[Dim; 4]>,
    /// Where the outermost dimensions only repeat: after so many positions everything comes again.
    pub period: Option<usize>,
    /// What the slot holds now: the phase it begins at and how many elements.
    held: Option<(usize, usize)>,
}

/// Sizes and strides (in bytes) without ones, neighbours joined where one walk covers both.
fn joined(shape: &[usize], strides: &[isize], size: usize) -> SmallVec<[Dim; 4]> {
    let mut dims: SmallVec<[Dim; 4]> = SmallVec::new();
    for (&n, &s) in shape.iter().zip(strides) {
        let dim = Dim { size: n, stride: s * size as isize };
        match dims.last_mut() {
            _ if n == 1 => {}
            Some(last) if last.stride == dim.stride * n as isize => {
                *last = Dim { size: last.size * n, stride: dim.stride };
            }
            _ => dims.push(dim),
        }
    }
    dims
}

/// Finds out how an input lies over the iteration shape.
pub(super) fn lie(ptr: *const u8, size: usize, shape: &[usize], strides: &[isize]) -> Lie {
    let dims = joined(shape, strides, size);
    match dims[..] {
        [] => return Lie::Contiguous, // one element
        [Dim { stride: 0, .. }] => return Lie::Uniform,
        [Dim { stride, .. }] if stride == size as isize => return Lie::Contiguous,
        _ => {}
    }
    let period = (dims[0].stride == 0).then(|| dims[1..].iter().map(|d| d.size).product());
    Lie::Strided(Gather { ptr, size, dims, period, held: None })
}

impl Gather {
    /// Copies the elements at positions `start..start + n` to `dst`.
    ///
    /// # Safety
    /// The input may be read at every position, `dst` is valid for writes of `n` elements, does not
    /// overlap the input, and still holds what the last call put there.
    pub unsafe fn tile(&mut self, start: usize, n: usize, dst: *mut u8) {
        if let Some(period) = self.period {
            let phase = start % period;
            if self.held.is_some_and(|(p, m)| p == phase && m >= n) {
                return;
            }
            self.held = Some((phase, n));
        }
        // SAFETY: the caller's promise.
        unsafe {
            match self.size {
                1 => self.copy::<u8>(start, n, dst.cast()),
                2 => self.copy::<u16>(start, n, dst.cast()),
                4 => self.copy::<u32>(start, n, dst.cast()),
                _ => self.copy::<u64>(start, n, dst.cast()),
            }
        }
    }

    /// # Safety
    /// As for [`Gather::tile`], for elements as large as `T`.
    unsafe fn copy<T: Copy>(&self, start: usize, n: usize, mut dst: *mut T) {
        let (&inner, outer) = self.dims.split_last().expect("a strided input has dimensions");
        // The place of `start`: coordinates of the outer dimensions and how far into the inner one.
        let mut rest = start / inner.size;
        let mut i = start % inner.size;
        let mut index: SmallVec<[usize; 4]> = SmallVec::from_elem(0, outer.len());
        let mut row = 0isize;
        for (k, dim) in outer.iter().enumerate().rev() {
            index[k] = rest % dim.size;
            row += index[k] as isize * dim.stride;
            rest /= dim.size;
        }
        let mut left = n;
        while left > 0 {
            let run = left.min(inner.size - i);
            let src = self.ptr.wrapping_offset(row + i as isize * inner.stride);
            // SAFETY: positions of the run are inside the shape, and `left` elements of `dst` are
            // ours.
            unsafe {
                if inner.stride == size_of::<T>() as isize {
                    run_copy(src.cast(), dst, run);
                } else if inner.stride == 0 {
                    let x = *src.cast::<T>();
                    for j in 0..run {
                        dst.add(j).write(x);
                    }
                } else {
                    for j in 0..run {
                        dst.add(j).write(*src.wrapping_offset(j as isize * inner.stride).cast());
                    }
                }
                dst = dst.add(run);
            }
            left -= run;
            i = 0;
            for (k, dim) in outer.iter().enumerate().rev() {
                index[k] += 1;
                row += dim.stride;
                if index[k] < dim.size {
                    break;
                }
                index[k] = 0;
                row -= dim.size as isize * dim.stride;
            }
        }
    }
}

/// Copies a run; a short one without the call that a longer one is worth.
///
/// # Safety
/// `src` and `dst` are valid for `n` elements and do not overlap.
#[inline(always)]
unsafe fn run_copy<T: Copy>(src: *const T, dst: *mut T, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if n <= 8 {
            for j in 0..n {
                dst.add(j).write(*src.add(j));
            }
        } else {
            std::ptr::copy_nonoverlapping(src, dst, n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_that_one_walk_covers_are_joined() {
        let dim = |size, stride| Dim { size, stride };
        assert_eq!(joined(&[2, 1, 3, 4], &[12, 99, 4, 1], 4)[..], [dim(24, 4)]);
        assert_eq!(joined(&[2, 3, 4], &[0, 0, 1], 4)[..], [dim(6, 0), dim(4, 4)]);
        assert_eq!(joined(&[2, 3], &[-3, -1], 1)[..], [dim(6, -1)]);
        assert_eq!(joined(&[2, 3], &[1, 2], 8)[..], [dim(2, 8), dim(3, 16)]);
        assert!(joined(&[], &[], 8).is_empty());
    }

    #[test]
    fn a_row_that_repeats_is_copied_once() {
        let row = [1u32, 2, 3];
        let Lie::Strided(mut g) = lie(row.as_ptr().cast(), 4, &[4, 3], &[0, 1]) else { panic!() };
        assert_eq!(g.period, Some(3));
        let mut out = [0u32; 6];
        // SAFETY: six elements from position 3 on.
        unsafe { g.tile(3, 6, out.as_mut_ptr().cast()) };
        assert_eq!(out, [1, 2, 3, 1, 2, 3]);
        out[0] = 9; // stays, since the same phase is not copied again
        // SAFETY: as above.
        unsafe { g.tile(6, 6, out.as_mut_ptr().cast()) };
        assert_eq!(out[0], 9);
        // SAFETY: as above.
        unsafe { g.tile(7, 5, out.as_mut_ptr().cast()) };
        assert_eq!(out, [2, 3, 1, 2, 3, 3]);
    }
}
