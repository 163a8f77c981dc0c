//! Copies: strided to contiguous, contiguous or strided into a window of a larger value, and fills.
//!
//! Called for `contiguous`, `cat`, `stack`, `slice_assign`, and by other kernels that want rows
//! without gaps. Elements are moved by size, so nothing here knows what they mean.

mod joined;
mod rows;
mod turned;

use super::isa::vectorize;
use super::nest::{Dim, Nest, Shared, in_parts, slice_of};
use super::simd::level;
use super::stream::{self, LINE, STREAM_FROM};
use crate::dtype::Scalar;
use crate::shape::Shape;
use crate::view::{Parallel, Serial, View, ViewMut};
pub(crate) use joined::join;
pub(super) use rows::asked_ahead;
use rows::{SHORT, copy_row, short_rows, stream_row};
use std::marker::PhantomData;
pub(super) use turned::{TILE, tile};
use turned::{transpose, weave};

/// Bytes below which a further thread does not pay (512 KiB in order 29.6, 17.3, 28.7 us, filled
/// 29.6, 18.4, 27.9; 256 KiB turned 41.6, 23.9, 41.4).
const PART_BYTES: usize = 256 << 10;

/// Where a copy writes when that is not contiguous: a part of a value that is the kernel's own.
pub(crate) struct Window<'a> {
    /// Address of the element at index (0, 0, ...). Valid for writes at every index of the source's
    /// shape; no two indices meet.
    pub ptr: *mut u8,
    /// In elements.
    pub strides: &'a [isize],
    pub life: PhantomData<&'a mut [u8]>,
}

/// Writes the elements of `src` row by row to `dst`, which has the same shape and element type.
pub(crate) fn copy(src: View<'_>, dst: &ViewMut<'_>, par: &dyn Parallel) {
    debug_assert_eq!((src.dtype, src.numel()), (dst.dtype, dst.numel()));
    let strides = crate::shape::contiguous_strides(src.shape);
    copy_into(src, &Window { ptr: dst.ptr, strides: &strides, life: PhantomData }, par);
}

/// Fills `dst` with elements of `src` in the order of its rows, from the one with this number on.
#[allow(dead_code)] // For devices with memory of their own.
pub(crate) fn copy_part(src: View<'_>, mut first: usize, dst: &ViewMut<'_>) {
    let (dtype, size, mut left, mut to) = (dst.dtype, src.dtype.size(), dst.numel(), dst.ptr);
    let (&[_, ref inner @ ..], &[step, ref steps @ ..]) = (src.shape, src.strides) else {
        return copy(src, dst, &Serial);
    };
    let row = crate::shape::numel(inner);
    while left > 0 {
        let (at, skipped) = (first / row, first % row);
        let ptr = src.ptr.wrapping_offset(at as isize * step * size as isize);
        let n = if skipped == 0 && left >= row {
            // Whole rows at once.
            let mut shape = Shape::from(src.shape);
            shape.dims_mut()[0] = left / row;
            let room = ViewMut { ptr: to, dtype, shape: &shape, life: PhantomData };
            copy(View { ptr, shape: &shape, ..src }, &room, &Serial);
            left / row * row
        } else {
            let n = left.min(row - skipped);
            let room = ViewMut { ptr: to, dtype, shape: &[n], life: PhantomData };
            copy_part(View { ptr, shape: inner, strides: steps, ..src }, skipped, &room);
            n
        };
        (first, left, to) = (first + n, left - n, to.wrapping_add(n * size));
    }
}

/// Writes the elements of `src` to the same indices of a window.
pub(crate) fn copy_into(src: View<'_>, dst: &Window<'_>, par: &dyn Parallel) {
    if src.shape.contains(&0) {
        return;
    }
    let nest = Nest::new(src.shape, [dst.strides, src.strides]);
    copy_nest(nest, src.dtype.size(), dst.ptr, src.ptr, par);
}

/// Copies elements of a size over a nest of destination and source, which is not empty.
pub(super) fn copy_nest(
    nest: Nest<2>,
    size: usize,
    dst: *mut u8,
    src: *const u8,
    par: &dyn Parallel,
) {
    match size {
        1 => copy_sized::<u8>(nest, dst, src, par),
        2 => copy_sized::<u16>(nest, dst, src, par),
        4 => copy_sized::<u32>(nest, dst, src, par),
        _ => copy_sized::<u64>(nest, dst, src, par),
    }
}

/// Writes one number to every element.
pub(crate) fn fill(value: Scalar, dst: &ViewMut<'_>, par: &dyn Parallel) {
    let bits = value.bits(dst.dtype);
    match dst.dtype.size() {
        1 => fill_sized(bits as u8, dst, par),
        2 => fill_sized(bits as u16, dst, par),
        4 => fill_sized(bits as u32, dst, par),
        _ => fill_sized(bits, dst, par),
    }
}

/// The fill with elements of one size.
fn fill_sized<T: Copy + Send + Sync>(x: T, dst: &ViewMut<'_>, par: &dyn Parallel) {
    let to = Shared::<T>::new(dst.ptr);
    let streamed = dst.numel() * size_of::<T>() >= STREAM_FROM;
    in_parts(dst.numel(), PART_BYTES / size_of::<T>(), par, &|part| {
        let first = to.at(part.start as isize);
        if streamed {
            // SAFETY: as below.
            unsafe { stream::fill(level(), x, first, part.len()) };
            return stream::fence();
        }
        // SAFETY: the part lies within the destination, which is this kernel's own, and parts do
        // not meet. `MaybeUninit` elements need no initial value.
        let out = unsafe {
            std::slice::from_raw_parts_mut(first.cast::<std::mem::MaybeUninit<T>>(), part.len())
        };
        vectorize!(move || out.iter_mut().for_each(|o| {
            o.write(x);
        }));
    });
}

/// The copy for elements of one size: puts the loops into an order that is good for memory, and
/// chooses between rows, transposed tiles and single elements.
fn copy_sized<T: Copy + Send + Sync>(
    mut nest: Nest<2>,
    dst: *mut u8,
    src: *const u8,
    par: &dyn Parallel,
) {
    let (to, from) = (Shared::<T>::new(dst), Shared::<T>::new(src.cast_mut()));
    // The destination's order: writes that jump cost more than reads that do.
    nest.dims
        .sort_by_key(|d| std::cmp::Reverse((d.step[0].unsigned_abs(), d.step[1].unsigned_abs())));
    let mut nest = nest.merged();
    let least = PART_BYTES / size_of::<T>();
    let row = nest.dims.pop().unwrap_or(Dim { size: 1, step: [1, 1] });
    if let Some(&last) = nest.dims.last()
        && (2..TILE / 2).contains(&row.size)
        && (row.step[0], last.step) == (1, [row.size as isize, 1])
    {
        nest.dims.pop();
        return weave(&nest, last.size, row, to, from, least, par);
    }
    let across = nest.dims.iter().position(|d| d.step[1] == 1 && d.size >= TILE / 2);
    if let (true, Some(j), 1) =
        (row.step[1].unsigned_abs() > 1 && row.size >= TILE / 2, across, row.step[0])
    {
        let column = nest.dims.remove(j);
        // A turned element takes the time of two.
        return transpose(&nest, column, row, to, from, least / 2, par);
    }
    // What no cache holds is written around it, where there are lines enough in a row.
    let bytes = nest.numel().saturating_mul(row.size * size_of::<T>());
    let streamed = bytes >= STREAM_FROM
        && row.size * size_of::<T>() >= 16 * LINE
        && matches!(row.step, [1, 0 | 1]);
    let rows = nest.numel();
    if !streamed && row.size * size_of::<T>() <= SHORT && row.step == [1, 1] {
        return short_rows(nest, row.size, to, from, (least / row.size).max(1), par);
    }
    // Rows, cut where they are long, are the units of work.
    let cuts = row.size.div_ceil(least).max(1);
    let each = row.size.div_ceil(cuts);
    in_parts(rows * cuts, (least / each).max(1), par, &|part| {
        vectorize!(|| {
            let (first, last) = (part.start / cuts, part.end.div_ceil(cuts));
            for (r, [d, s]) in nest.turns(first..last) {
                for c in 0..cuts {
                    if part.contains(&(r * cuts + c)) {
                        let cut = slice_of(row.size, cuts, c);
                        let (d, s) = (
                            d + cut.start as isize * row.step[0],
                            s + cut.start as isize * row.step[1],
                        );
                        // SAFETY: both views are valid at every index of the shape, which these
                        // are; parts write elements that do not meet; what is written is nobody
                        // else's.
                        unsafe {
                            match streamed {
                                true => stream_row(to.at(d), from.at(s), cut.len(), row.step),
                                false => copy_row(to.at(d), from.at(s), cut.len(), row.step),
                            }
                        };
                    }
                }
            }
        });
        if streamed {
            stream::fence();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::dtype::Element;

    fn copies<T: Element>(rng: &mut Rng, shape: &[usize]) {
        let x = Value::<T>::random(rng, shape, small);
        let par = Threads { threads: 1 + rng.below(3), seed: rng.word() };
        assert_eq!(filled::<T>(shape, |out| copy(x.view(), out, &par)), x.to_vec(), "{x:?}");
    }

    #[test]
    fn a_copy_of_any_layout_is_row_by_row() {
        let mut rng = Rng::new(11);
        for turn in 0..400 {
            let rank = rng.below(5);
            let shape = random_shape(&mut rng, rank, if turn % 4 == 0 { 40 } else { 7 });
            match turn % 5 {
                0 => copies::<u8>(&mut rng, &shape),
                1 => copies::<half::f16>(&mut rng, &shape),
                2 => copies::<f64>(&mut rng, &shape),
                _ => copies::<f32>(&mut rng, &shape),
            }
        }
    }

    /// Channels last, and back, and elements that are repeated; rows and columns changed.
    fn woven<T: Element>(rng: &mut Rng) {
        let [n, k, wide] = [1 + rng.below(3), 1 + rng.below(40), 1 + rng.below(120)];
        let par = Threads { threads: 2, seed: rng.word() };
        let data: Vec<T> = (0..n * k * wide).map(|i| T::from_i64(i as i64 % 256)).collect();
        for (shape, strides) in [
            ([n, wide, k], [k * wide, 1, wide]),
            ([n, k, wide], [k * wide, 1, k]),
            ([n, k * wide, 1 + k % 9], [k * wide, 1, 0]),
        ] {
            let strides = strides.map(|step| step as isize).to_vec();
            let x = Value { data: data.clone(), offset: 0, shape: shape.to_vec(), strides };
            let got = filled::<T>(&shape, |out| copy(x.view(), out, &par));
            assert!(got == x.to_vec(), "{shape:?} {:?}", x.strides);
        }
    }

    #[test]
    fn a_few_rows_are_woven_and_taken_apart() {
        let mut rng = Rng::new(14);
        for _ in turns(60) {
            woven::<f32>(&mut rng);
            woven::<half::bf16>(&mut rng);
            woven::<f64>(&mut rng);
            woven::<u8>(&mut rng);
        }
    }

    #[test]
    fn parts_of_any_layout_are_the_whole_in_its_order() {
        let mut rng = Rng::new(13);
        for _ in 0..300 {
            let rank = rng.below(5);
            let shape = random_shape(&mut rng, rank, 7);
            let x = Value::<i32>::random(&mut rng, &shape, small);
            let (all, most) = (x.to_vec(), 1 + rng.below(40));
            let mut got = Vec::new();
            while got.len() < all.len() {
                let n = most.min(all.len() - got.len());
                got.extend(filled::<i32>(&[n], |out| copy_part(x.view(), got.len(), out)));
            }
            assert_eq!(got, all, "{x:?} by {most}");
        }
    }

    #[test]
    fn large_copies_are_cut_between_threads_and_whole() {
        let par = Threads { threads: 3, seed: 5 };
        let x = Value::<f32>::new(&[1000, 1100], (0..1_100_000).map(|i| i as f32).collect());
        assert_eq!(filled::<f32>(&x.shape, |out| copy(x.view(), out, &par)), x.data);
        let t = Value { shape: vec![1100, 1000], strides: vec![1, 1100], ..x.clone() };
        assert_eq!(filled::<f32>(&t.shape, |out| copy(t.view(), out, &par)), t.to_vec());
        let column = Value { shape: vec![500, 1100], strides: vec![1100, 0], ..x.clone() };
        assert_eq!(
            filled::<f32>(&column.shape, |out| copy(column.view(), out, &par)),
            column.to_vec()
        );
        let line = Value { shape: vec![1_100_000], strides: vec![1], ..x };
        assert_eq!(filled::<f32>(&line.shape, |out| copy(line.view(), out, &par)), line.data);
    }

    #[test]
    fn a_window_receives_its_elements_and_nothing_around_it_changes() {
        let mut rng = Rng::new(12);
        for _ in 0..200 {
            let shape = [1 + rng.below(5), 1 + rng.below(20), 1 + rng.below(20)];
            let x = Value::<i32>::random(&mut rng, &shape, small);
            // A window at (1, 2, 3) of a value that is larger by 2, 3 and 4.
            let outer = [shape[0] + 2, shape[1] + 3, shape[2] + 4];
            let strides = crate::shape::contiguous_strides(&outer);
            let mut got = vec![i32::MIN; outer.iter().product()];
            let at = strides[0] + 2 * strides[1] + 3 * strides[2];
            let ptr = got.as_mut_ptr().wrapping_offset(at).cast();
            copy_into(x.view(), &Window { ptr, strides: &strides, life: PhantomData }, &Serial);
            let mut expected = vec![i32::MIN; got.len()];
            for i in indices(&shape) {
                let to = (i[0] + 1) as isize * strides[0]
                    + (i[1] + 2) as isize * strides[1]
                    + (i[2] + 3) as isize;
                expected[to as usize] = x.get(&i);
            }
            assert_eq!(got, expected, "{x:?}");
        }
    }

    #[test]
    fn a_fill_writes_the_number_to_every_element_of_any_type() {
        let par = Threads { threads: 2, seed: 1 };
        assert_eq!(
            filled::<f32>(&[300_000], |o| fill(Scalar::Float(2.5), o, &par)),
            vec![2.5; 300_000]
        );
        assert_eq!(filled::<bool>(&[2, 3], |o| fill(Scalar::Int(3), o, &par)), vec![true; 6]);
        assert_eq!(filled::<i64>(&[], |o| fill(Scalar::Float(-2.5), o, &par)), vec![-2]);
        assert_eq!(filled::<u8>(&[0, 3], |o| fill(Scalar::Int(3), o, &par)), Vec::<u8>::new());
    }

    at_every_level! {
        a_few_rows_are_woven_and_taken_apart
        a_copy_of_any_layout_is_row_by_row
        parts_of_any_layout_are_the_whole_in_its_order
        large_copies_are_cut_between_threads_and_whole
        a_window_receives_its_elements_and_nothing_around_it_changes
        a_fill_writes_the_number_to_every_element_of_any_type
    }
}
