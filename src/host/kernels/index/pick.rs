//! `gather`, `index_select`, `embedding`, `one_hot`, and `index_copy`, the way back.

use super::super::load::Load;
use super::super::nest::{Dim, Nest, Shared, in_parts, slice_of};
use super::super::run::copy_run;
use super::super::stream::{LINE, prefetch_all_second};
use super::places::{BLOCK, Places};
use super::{Failure, LEAST, OutOfRange, PICKED, place, read, with_index, with_size};
use crate::dtype::Element;
use crate::view::{Parallel, View, ViewMut};
use std::ops::Range;

/// Indices that are looked at together: often they name one element (the largest so far).
const GROUP: usize = 16;

/// Rows that no machine foresees are asked for so many bytes ahead, and no more of each: of a long
/// one the machine fetches the rest by itself.
const NEAR: usize = 2 << 10;

/// `out[i, j, k] = input[i, index[i, j, k], k]` for `dim` 1. The output has the shape of the index,
/// which may be smaller than the input in the other dimensions. Negative indices count `from_end`,
/// or are out of range.
///
/// # Errors
/// The first index that is out of range.
pub(crate) fn gather(
    input: View<'_>,
    dim: usize,
    index: View<'_>,
    from_end: bool,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    if out.numel() == 0 {
        return Ok(());
    }
    let mut strides: Vec<isize> = input.strides.to_vec();
    let (size, step) = (input.shape[dim], input.strides[dim]);
    strides[dim] = 0;
    let mut rows = Nest::new(index.shape, [&strides, index.strides]).merged();
    let row = rows.dims.pop().unwrap_or(Dim { size: 1, step: [0, 0] });
    let (failure, places) = (Failure::none(), Places::new(&index, size, from_end));
    let [along, index_along] = row.step;
    // Where most lines of a row are looked at, in no order, the next row is asked for in its own.
    let next = rows.dims.last().map_or(0, |outer| outer.step[0]);
    let bytes = size.saturating_mul(input.dtype.size());
    let asks = [step, along] == [1, 0] && next == size as isize && row.size >= bytes / LINE;
    // Rows, cut where they are long, are the units of work.
    let cuts = row.size.div_ceil(2 * PICKED);
    let least = (PICKED * cuts / row.size).max(1);
    with_size!(input.dtype, T => {
        let (from, to) = (Shared::<T>::new(input.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        in_parts(rows.numel() * cuts, least, par, &|units| {
            let (first, last) = (units.start / cuts, units.end.div_ceil(cuts));
            let mut room = [0; BLOCK];
            for (r, [x, i]) in rows.turns(first..last) {
                let own = |c: &usize| units.contains(&(r * cuts + c));
                if asks {
                    prefetch_all_second(from.at(x + next).cast_const(), size);
                }
                for cut in (0..cuts).filter(own).map(|c| slice_of(row.size, cuts, c)) {
                    for first in cut.clone().step_by(BLOCK) {
                        let n = BLOCK.min(cut.end - first);
                        let turn = r * row.size + first;
                        let (x, y) = (x + first as isize * along, to.at(turn as isize));
                        let i = i + first as isize * index_along;
                        // SAFETY: indices of their view; they are seen to name elements of the
                        // input; turns count the output's.
                        unsafe {
                            let asked = if index_along == 0 { 1 } else { n };
                            match places.block(i, index_along, asked, &mut room) {
                                // One place for all of them.
                                Ok(&[p]) if along == 1 => {
                                    copy_run(y, from.at(x + p * step), n);
                                }
                                Ok(&[p]) => (0..n).for_each(|c| {
                                    y.add(c).write(*from.at(x + c as isize * along + p * step));
                                }),
                                Ok(places) if along == 0 => {
                                    let (groups, rest) = places.as_chunks::<GROUP>();
                                    for (k, group) in groups.iter().enumerate() {
                                        let y = y.add(k * GROUP);
                                        let [first, .., last] = *group;
                                        if first == last && group.iter().all(|&p| p == first) {
                                            let one = *from.at(x + first * step);
                                            y.cast::<[T; GROUP]>().write_unaligned([one; GROUP]);
                                        } else {
                                            for (c, p) in group.iter().enumerate() {
                                                y.add(c).write(*from.at(x + p * step));
                                            }
                                        }
                                    }
                                    for (c, p) in (n - rest.len()..n).zip(rest) {
                                        y.add(c).write(*from.at(x + p * step));
                                    }
                                }
                                Ok(places) => {
                                    for (c, p) in places.iter().enumerate() {
                                        y.add(c).write(*from.at(x + c as isize * along + p * step));
                                    }
                                }
                                Err(good) => failure.at(turn + good),
                            }
                        }
                    }
                }
            }
        });
    });
    failure.result(size, |turn| read(&index, turn))
}

/// The sum of the elements of a matrix of `T` at these rows and columns, which it has.
pub(crate) fn sum_of_places<T: Element>(
    x: View<'_>,
    places: impl Iterator<Item = (usize, usize)>,
) -> f64 {
    assert_eq!((x.dtype, x.shape.len()), (T::DTYPE, 2));
    let from = Shared::<T>::new(x.ptr.cast_mut());
    let element = |(i, j): (usize, usize)| {
        assert!(i < x.shape[0] && j < x.shape[1]);
        // SAFETY: an element of the view.
        unsafe { *from.at(i as isize * x.strides[0] + j as isize * x.strides[1]) }.to_f64()
    };
    places.map(element).sum()
}

/// `out[i, j, k] = input[i, index[j], k]` for `dim` 1. Negative indices count `from_end`, or are
/// out of range.
///
/// # Errors
/// The first index that is out of range.
pub(crate) fn index_select(
    input: View<'_>,
    dim: usize,
    index: View<'_>,
    from_end: bool,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    let (size, step, chosen) = (input.shape[dim], input.strides[dim], index.numel());
    let outer = Nest::new(&input.shape[..dim], [&input.strides[..dim]]).merged();
    let inner = Nest::new(&input.shape[dim + 1..], [&input.strides[dim + 1..]]).merged();
    let indices = Nest::new(index.shape, [index.strides]).merged();
    let n = inner.numel();
    // Where there is nothing to copy, the indices are still looked at, once.
    let outers = if out.numel() == 0 { 1 } else { outer.numel() };
    let (failure, places) = (Failure::none(), Places::new(&index, size, from_end));
    let many = indices.dims.len() > 1;
    let along = indices.dims.last().map_or(0, |d| d.step[0]);
    with_size!(input.dtype, T => {
        let (from, to) = (Shared::<T>::new(input.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        in_parts(outers * chosen, (LEAST / n.max(1)).max(1), par, &|part| {
            let (mut row, mut room) = (part.start, [0; BLOCK]);
            while row < part.end {
                let (o, j) = (row / chosen, row % chosen);
                // Indices that lie a step apart are read a block at a time.
                let most = if many { 1 } else { BLOCK.min(chosen - j) };
                let block = most.min(part.end - row);
                // SAFETY: indices of their view.
                match unsafe { places.block(indices.at(j)[0], along, block, &mut room) } {
                    Ok(_) if out.numel() == 0 => {}
                    Ok(places) => {
                        let (x, y) = (outer.at(o)[0], to.at((row * n) as isize));
                        // SAFETY: `block` has seen that the rows are the input's; rows of the
                        // output are `n` long.
                        unsafe {
                            match &inner.dims[..] {
                                [] => {
                                    for (k, p) in places.iter().enumerate() {
                                        y.add(k).write(*from.at(x + p * step));
                                    }
                                }
                                [d] if d.step == [1] => {
                                    let near = (NEAR / size_of::<T>()).max(1);
                                    for (k, p) in places.iter().enumerate() {
                                        if let Some(next) = places.get(k + 1 + near / n) {
                                            let next = from.at(x + next * step).cast_const();
                                            prefetch_all_second(next, n.min(near));
                                        }
                                        let x = from.at(x + p * step);
                                        copy_run(y.add(k * n), x, n);
                                    }
                                }
                                _ => {
                                    for (k, p) in places.iter().enumerate() {
                                        let (x, y) = (from.at(x + p * step), y.add(k * n));
                                        for (k, [offset]) in inner.turns(0..n) {
                                            y.add(k).write(*x.offset(offset));
                                        }
                                    }
                                }
                            }
                        }
                    }
                    Err(good) => failure.at(j + good),
                }
                row += block;
            }
        });
    });
    failure.result(size, |j| read(&index, j))
}

/// Rows of a table: `out[.., :] = table[index[..], :]`. No word has a negative number.
///
/// # Errors
/// The first index that is out of range.
pub(crate) fn embedding(
    table: View<'_>,
    index: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    index_select(table, 0, index, false, out, par)
}

/// One where the last dimension's place is the index, zero elsewhere.
///
/// # Errors
/// The first index that is not below the number of classes.
pub(crate) fn one_hot(
    index: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    let classes = out.shape[out.shape.len() - 1];
    super::super::copy::fill(crate::Scalar::Int(0), out, par);
    let nest = Nest::new(index.shape, [index.strides]).merged();
    let failure = Failure::none();
    with_index!(index.dtype, I => {
        let (at, to) = (Shared::<I>::new(index.ptr.cast_mut()), Shared::<i64>::new(out.ptr));
        for (turn, [i]) in nest.turns(0..index.numel()) {
            // SAFETY: an index of the view of indices.
            match place(unsafe { *at.at(i) }.load(), classes, false) {
                // SAFETY: `place` has seen that it lies in the row.
                Some(p) => unsafe { to.at((turn * classes) as isize + p).write(1) },
                None => failure.at(turn),
            }
        }
    });
    failure.result(classes, |turn| read(&index, turn))
}

/// `out[i, index[j], k] = src[i, j, k]` for `dim` 1; of several that come to one place the last
/// stays. Negative indices count from the end.
///
/// # Errors
/// The first index that is out of range.
pub(crate) fn index_copy(
    dim: usize,
    from_end: bool,
    index: View<'_>,
    src: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    let (size, chosen, step) = (out.shape[dim], index.numel(), src.strides[dim]);
    let outer = Nest::new(&src.shape[..dim], [&src.strides[..dim]]).merged();
    let inner = Nest::new(&src.shape[dim + 1..], [&src.strides[dim + 1..]]).merged();
    let indices = Nest::new(index.shape, [index.strides]).merged();
    let (n, many) = (inner.numel(), indices.dims.len() > 1);
    let along = indices.dims.last().map_or(0, |d| d.step[0]);
    // Of two rows for one place the later is written later: threads share rows, not indices.
    // Where there is nothing to copy, the indices are still looked at, once.
    let narrow = NARROW / src.dtype.size();
    let (outers, cuts) = match src.numel() {
        0 => (1, 1),
        _ => (outer.numel(), n.div_ceil((LEAST / chosen.max(1) + 1).next_multiple_of(narrow))),
    };
    let (failure, places) = (Failure::none(), Places::new(&index, size, from_end));
    with_size!(out.dtype, T => {
        let (from, to) = (Shared::<T>::new(src.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        in_parts(outers * cuts, (LEAST * cuts / (n * chosen).max(1)).max(1), par, &|part| {
            let mut room = [0; BLOCK];
            for unit in part {
                let (o, cut) = (unit / cuts, slice_of(n, cuts, unit % cuts));
                let mut first = 0;
                while first < chosen {
                    let block = if many { 1 } else { BLOCK.min(chosen - first) };
                    // SAFETY: indices of their view.
                    match unsafe { places.block(indices.at(first)[0], along, block, &mut room) } {
                        Ok(_) if src.numel() == 0 => {}
                        Ok(places) => {
                            let x = outer.at(o)[0] + first as isize * step;
                            for (j, p) in places.iter().enumerate() {
                                let x = from.at(x + j as isize * step);
                                let y = to.at(((o * size) as isize + p) * n as isize);
                                // SAFETY: `block` has seen that the row is the output's; this cut
                                // of it is this part's, and the same of the source is read.
                                unsafe { row(&inner, x, y, cut.clone()) }
                            }
                        }
                        Err(good) => failure.at(first + good),
                    }
                    first += block;
                }
            }
        });
    });
    failure.result(size, |j| read(&index, j))
}

/// A part of a row is at least so many bytes: two threads write no line together, and a call copies
/// more than it costs.
const NARROW: usize = 256;

/// Copies a part of a row.
///
/// # Safety
/// The rows have so many elements.
#[inline(always)]
unsafe fn row<T: Copy>(inner: &Nest<1>, x: *const T, y: *mut T, part: Range<usize>) {
    // SAFETY: by the caller's promise.
    unsafe {
        match &inner.dims[..] {
            [d] if d.step == [1] => {
                copy_run(y.add(part.start), x.add(part.start), part.len());
            }
            [d] if d.step == [0] => {
                let x = *x;
                part.for_each(|k| y.add(k).write(x));
            }
            _ => {
                for (k, [offset]) in inner.turns(part) {
                    y.add(k).write(*x.offset(offset));
                }
            }
        }
    }
}

/// Zeros, but for a number at some places `(row, column)` of a matrix.
pub(crate) fn put_among_zeros<T: Element>(
    places: impl Iterator<Item = (usize, usize)>,
    number: T,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let &[rows, columns] = out.shape else { unreachable!("a matrix") };
    assert_eq!(out.dtype, T::DTYPE);
    super::super::copy::fill(crate::Scalar::Int(0), out, par);
    let to = Shared::<T>::new(out.ptr);
    for (row, column) in places {
        assert!(row < rows && column < columns);
        // SAFETY: an element of the output.
        unsafe { to.at((row * columns + column) as isize).write(number) }
    }
}
