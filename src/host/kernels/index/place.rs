//! Copies that depend on places alone: triangles and rolls. (A flip needs no kernel: its stride is
//! negative.)

use super::super::copy::{Window, copy_into};
use super::super::nest::{Nest, Shared, in_parts};
use super::along::picked;
use super::{LEAST, with_size};
use crate::view::{Parallel, View, ViewMut};
use std::marker::PhantomData;

/// The matrices' elements on and below a diagonal, zero above it.
pub(crate) fn tril(input: View<'_>, diagonal: i64, out: &ViewMut<'_>, par: &dyn Parallel) {
    triangle(input, out, par, &|row, cols| {
        let end = (row as i64).saturating_add(diagonal).saturating_add(1).clamp(0, cols as i64);
        0..end as usize
    });
}

/// The matrices' elements on and above a diagonal, zero below it.
pub(crate) fn triu(input: View<'_>, diagonal: i64, out: &ViewMut<'_>, par: &dyn Parallel) {
    triangle(input, out, par, &|row, cols| {
        let start = (row as i64).saturating_add(diagonal).clamp(0, cols as i64);
        start as usize..cols
    });
}

/// Keeps the columns of each row that `kept(row, columns)` says.
fn triangle(
    x: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
    kept: &(dyn Fn(usize, usize) -> std::ops::Range<usize> + Sync),
) {
    let rank = x.shape.len();
    let (rows, cols, step) = (x.shape[rank - 2], x.shape[rank - 1], x.strides[rank - 1]);
    if out.numel() == 0 {
        return;
    }
    let lines = Nest::new(&x.shape[..rank - 1], [&x.strides[..rank - 1]]);
    with_size!(x.dtype, T => {
        let (from, to) = (Shared::<T>::new(x.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        in_parts(lines.numel(), (LEAST / cols).max(1), par, &|part| {
            for (line, [offset]) in lines.turns(part) {
                let keep = kept(line % rows, cols);
                let to = to.at((line * cols) as isize);
                // SAFETY: a row of the output, and the same indices of the input. Zero bytes are
                // the zero of every element type.
                unsafe {
                    to.write_bytes(0, keep.start);
                    for c in keep.clone() {
                        to.add(c).write(*from.at(offset + c as isize * step));
                    }
                    to.add(keep.end).write_bytes(0, cols - keep.end);
                }
            }
        });
    });
}

/// Bytes of a row that is moved in one go. Of longer ones the two runs meet in few lines, and they
/// are cut among threads.
const SHORT_ROW: usize = 64 << 10;

/// Moves every element on by `shift` places in each of some dimensions, those at the end to the
/// front.
pub(crate) fn roll(
    input: View<'_>,
    shifts: &[(usize, i64)],
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let strides = crate::shape::contiguous_strides(input.shape);
    let mut by = vec![0usize; input.shape.len()];
    for &(dim, shift) in shifts {
        let n = input.shape[dim];
        by[dim] = (by[dim] + shift.rem_euclid(n as i64) as usize) % n;
    }
    // Each dimension falls into two runs that stay together; their combinations are blocks.
    let dims: Vec<usize> = (0..by.len()).filter(|&d| by[d] != 0).collect();
    // Short rows would be gone over twice, and lines that lie in both runs fetched for each.
    if let Some(&last) = dims.last()
        && last + 1 == by.len()
        && input.shape[last] * input.dtype.size() <= SHORT_ROW
    {
        let places = |&d: &usize| {
            let n = input.shape[d];
            (d, (0..n).map(|i| (i + n - by[d]) % n).collect())
        };
        return picked(input, &dims.iter().map(places).collect::<Vec<_>>(), out, par);
    }
    for block in 0..1usize << dims.len() {
        let mut shape = input.shape.to_vec();
        let (mut from, mut to) = (0isize, 0isize);
        for (bit, &d) in dims.iter().enumerate() {
            let (n, by) = (input.shape[d], by[d]);
            if block >> bit & 1 == 0 {
                shape[d] = n - by;
                to += by as isize * strides[d];
            } else {
                shape[d] = by;
                from += (n - by) as isize * input.strides[d];
            }
        }
        let size = input.dtype.size() as isize;
        let view = View { ptr: input.ptr.wrapping_offset(from * size), shape: &shape, ..input };
        let window = Window {
            ptr: out.ptr.wrapping_offset(to * size),
            strides: &strides,
            life: PhantomData,
        };
        copy_into(view, &window, par);
    }
}
