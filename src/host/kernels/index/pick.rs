//! `gather`, `index_select`, `embedding`, `one_hot`, and `scatter`, the way back.

use super::super::load::Load;
use super::super::nest::{Nest, Shared, in_parts, slice_of};
use super::wide::join_runs;
use super::{Failure, LEAST, OutOfRange, PICKED, place, with_index, with_size};
use crate::dtype::{DType, Element};
use crate::op::ScatterMode;
use crate::view::{Parallel, View, ViewMut};
use half::{bf16, f16};
use std::ops::{Add, Mul};

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
    let mut strides: Vec<isize> = input.strides.to_vec();
    let (size, step) = (input.shape[dim], input.strides[dim]);
    strides[dim] = 0;
    let nest = Nest::new(index.shape, [&strides, index.strides]).merged();
    let failure = Failure::none();
    with_size!(input.dtype, T => with_index!(index.dtype, I => {
        let (from, to) = (Shared::<T>::new(input.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        let at = Shared::<I>::new(index.ptr.cast_mut());
        in_parts(out.numel(), PICKED, par, &|part| {
            let mut failed = false;
            for (turn, [x, i]) in nest.turns(part) {
                // SAFETY: an index of the view of indices.
                match place(unsafe { *at.at(i) }.load(), size, from_end) {
                    // SAFETY: `place` has seen that the element is the input's; `turn` counts the
                    // output's.
                    Some(p) => unsafe { to.at(turn as isize).write(*from.at(x + p * step)) },
                    None if !failed => {
                        failed = true;
                        failure.at(turn);
                    }
                    None => {}
                }
            }
        });
    }));
    failure.result(size, |turn| read(&index, turn))
}

/// The index at a position.
fn read(index: &View<'_>, position: usize) -> i64 {
    let [at] = Nest::new(index.shape, [index.strides]).at(position);
    with_index!(index.dtype, I => {
        let x: I = {
            // SAFETY: an index of the view.
            unsafe { *Shared::<I>::new(index.ptr.cast_mut()).at(at) }
        };
        Load::<i64>::load(x)
    })
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
    let failure = Failure::none();
    with_size!(input.dtype, T => with_index!(index.dtype, I => {
        let (from, to) = (Shared::<T>::new(input.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        let at = Shared::<I>::new(index.ptr.cast_mut());
        in_parts(outers * chosen, (LEAST / n.max(1)).max(1), par, &|part| {
            for row in part {
                let (o, j) = (row / chosen, row % chosen);
                let [i] = indices.at(j);
                // SAFETY: an index of the view of indices.
                let Some(p) = place(unsafe { *at.at(i) }.load(), size, from_end) else {
                    failure.at(j);
                    continue;
                };
                if out.numel() == 0 {
                    continue;
                }
                let (x, y) = (from.at(outer.at(o)[0] + p * step), to.at((row * n) as isize));
                // SAFETY: `place` has seen that the row is the input's; rows of the output are `n`
                // long.
                unsafe {
                    match &inner.dims[..] {
                        [] => y.write(*x),
                        [d] if d.step == [1] => std::ptr::copy_nonoverlapping(x, y, n),
                        _ => {
                            for (k, [offset]) in inner.turns(0..n) {
                                y.add(k).write(*x.offset(offset));
                            }
                        }
                    }
                }
            }
        });
    }));
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
    crate::dtype::with_dtype!(out.dtype, T => with_index!(index.dtype, I => {
        let (at, to) = (Shared::<I>::new(index.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        for (turn, [i]) in nest.turns(0..index.numel()) {
            // SAFETY: an index of the view of indices.
            match place(unsafe { *at.at(i) }.load(), classes, false) {
                // SAFETY: `place` has seen that it lies in the row.
                Some(p) => unsafe { to.at((turn * classes) as isize + p).write(T::from_i64(1)) },
                None => failure.at(turn),
            }
        }
    }));
    failure.result(classes, |turn| read(&index, turn))
}

/// `out[i, index[i, j, k], k]` joined with `src[i, j, k]` for `dim` 1. Where an index comes more
/// than once, that is done in order; of halves in float32, rounded once. Negative indices count
/// from the end. The index may be smaller than `src` in any dimension, and smaller than the output
/// in all but `dim`.
///
/// # Errors
/// The first index that is out of range.
pub(crate) fn scatter(
    dim: usize,
    mode: ScatterMode,
    index: View<'_>,
    src: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    if mode == ScatterMode::Assign {
        return with_size!(out.dtype, T => join_all(dim, &index, &src, out, par, |_: T, x: T| x));
    }
    if out.dtype.is_half()
        && matches!(mode, ScatterMode::Sum | ScatterMode::Prod)
        && index.numel() > 0
    {
        let join: fn(f32, f32) -> f32 = if mode == ScatterMode::Sum { Add::add } else { Mul::mul };
        let runs = if out.dtype == DType::F16 { join_runs::<f16> } else { join_runs::<bf16> };
        let failure = runs(dim, &index, &src, out, par, join);
        return failure.result(out.shape[dim], |turn| read(&index, turn));
    }
    macro_rules! by_type {
        ($($dtype:pat => $T:ident in $W:ident,)*) => {
            match out.dtype {
                $($dtype => compute_all::<$T, $W>(mode, dim, &index, &src, out, par),)*
            }
        };
    }
    by_type! {
        DType::F32 => f32 in f32,
        DType::F64 => f64 in f64,
        DType::F16 => f16 in f32,
        DType::BF16 => bf16 in f32,
        DType::I32 => i32 in i32,
        DType::I64 => i64 in i64,
        DType::U8 => u8 in u8,
        DType::Bool => Truth in u8,
    }
}

/// A bool as a byte, whose sum is "or".
#[derive(Clone, Copy)]
struct Truth(u8);
impl Load<u8> for Truth {
    #[inline(always)]
    fn load(self) -> u8 {
        self.0
    }
    #[inline(always)]
    fn store(wide: u8) -> Truth {
        Truth((wide != 0) as u8)
    }
}

/// `out[i, index[j], k] = src[i, j, k]` for `dim` 1; of several that come to one place the last
/// stays. Negative indices count from the end.
///
/// # Errors
/// The first index that is out of range.
pub(crate) fn index_copy(
    dim: usize,
    index: View<'_>,
    src: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    let (size, chosen, step) = (out.shape[dim], index.numel(), src.strides[dim]);
    let outer = Nest::new(&src.shape[..dim], [&src.strides[..dim]]).merged();
    let inner = Nest::new(&src.shape[dim + 1..], [&src.strides[dim + 1..]]).merged();
    let indices = Nest::new(index.shape, [index.strides]).merged();
    let n = inner.numel();
    // Of two rows for one place the later is written later: threads share rows, not indices.
    // Where there is nothing to copy, the indices are still looked at, once.
    let (outers, cuts) = match src.numel() {
        0 => (1, 1),
        _ => (outer.numel(), n.div_ceil(LEAST / chosen.max(1) + 1)),
    };
    let failure = Failure::none();
    with_size!(out.dtype, T => with_index!(index.dtype, I => {
        let (from, to) = (Shared::<T>::new(src.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        let at = Shared::<I>::new(index.ptr.cast_mut());
        in_parts(outers * cuts, (LEAST * cuts / (n * chosen).max(1)).max(1), par, &|part| {
            for unit in part {
                let (o, cut) = (unit / cuts, slice_of(n, cuts, unit % cuts));
                for j in 0..chosen {
                    // SAFETY: an index of the view of indices.
                    let index = unsafe { *at.at(indices.at(j)[0]) };
                    let Some(p) = place(index.load(), size, true) else {
                        failure.at(j);
                        continue;
                    };
                    if src.numel() == 0 {
                        continue;
                    }
                    let x = from.at(outer.at(o)[0] + j as isize * step);
                    let y = to.at(((o * size) as isize + p) * n as isize);
                    // SAFETY: `place` has seen that the row is the output's; this cut of it is this
                    // part's, and the same of the source is read.
                    unsafe {
                        match &inner.dims[..] {
                            [d] if d.step == [1] => {
                                let (x, y) = (x.add(cut.start), y.add(cut.start));
                                std::ptr::copy_nonoverlapping(x, y, cut.len());
                            }
                            _ => {
                                for (k, [offset]) in inner.turns(cut.clone()) {
                                    y.add(k).write(*x.offset(offset));
                                }
                            }
                        }
                    }
                }
            }
        });
    }));
    failure.result(size, |j| read(&index, j))
}

fn compute_all<T: Load<W>, W: super::super::reduce::fold::Wide>(
    mode: ScatterMode,
    dim: usize,
    index: &View<'_>,
    src: &View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) -> Result<(), OutOfRange> {
    // The others are rare, and share a loop.
    let other: fn(W, W) -> W = match mode {
        ScatterMode::Prod => W::mul,
        ScatterMode::Max => W::larger,
        ScatterMode::Min => W::smaller,
        ScatterMode::Sum | ScatterMode::Assign => {
            return join_all(dim, index, src, out, par, |y: T, x: T| {
                T::store(y.load().add(x.load()))
            });
        }
    };
    join_all(dim, index, src, out, par, move |y: T, x: T| T::store(other(y.load(), x.load())))
}

fn join_all<T: Copy + Send + Sync + 'static>(
    dim: usize,
    index: &View<'_>,
    src: &View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
    join: impl Fn(T, T) -> T + Sync,
) -> Result<(), OutOfRange> {
    if index.numel() == 0 {
        return Ok(());
    }
    let strides = crate::shape::contiguous_strides(out.shape);
    let without = |s: &[isize]| -> Vec<isize> {
        s.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, &s)| s).collect()
    };
    let shape: Vec<usize> =
        index.shape.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, &n)| n).collect();
    let own = crate::shape::contiguous_strides(index.shape);
    let kept = [&own, index.strides, src.strides, &strides].map(without);
    // Lines along `dim` never meet in the output, so they may be worked on at once.
    let lines = Nest::new(&shape, [&kept[0], &kept[1], &kept[2], &kept[3]]);
    let (n, size) = (index.shape[dim], out.shape[dim]);
    let steps = [own[dim], index.strides[dim], src.strides[dim], strides[dim]];
    let failure = Failure::none();
    with_index!(index.dtype, I => {
        let at = Shared::<I>::new(index.ptr.cast_mut());
        let (from, to) = (Shared::<T>::new(src.ptr.cast_mut()), Shared::<T>::new(out.ptr));
        in_parts(lines.numel(), (PICKED / n.max(1)).max(1), par, &|part| {
            // All lines of a part a step at a time, as they lie in memory: an inner line is a
            // column.
            for j in 0..n as isize {
                for (_, [turn, i, x, y]) in lines.turns(part.clone()) {
                    // SAFETY: an index of the view of indices.
                    match place(unsafe { *at.at(i + j * steps[1]) }.load(), size, true) {
                        // SAFETY: `place` has seen that the element is the output's; the line is
                        // this part's.
                        Some(p) => unsafe {
                            let (x, y) = (from.at(x + j * steps[2]), to.at(y + p * steps[3]));
                            y.write(join(*y, *x));
                        },
                        None => failure.at((turn + j * steps[0]) as usize),
                    }
                }
            }
        });
    });
    failure.result(size, |turn| read(index, turn))
}
