//! Reductions over any set of dimensions, from memory or straight from a fused elementwise program.
//!
//! Called by the CPU backend, one call a step. [`fold`] says what is computed and in which order;
//! [`rows`] and [`columns`] walk memory the way it lies; [`arg`] finds positions. What the engine has
//! checked before: types, shapes, and that `max`, `min`, `argmax`, `argmin` have something to look at.

mod arg;
mod columns;
pub(super) mod fold;
mod rows;
#[cfg(test)]
mod tests;

use super::super::{Parallel, View, ViewMut};
use super::nest::{Dim, Nest, Shared};
use crate::dtype::DType;
use crate::op::ReduceOp;
use fold::{Fold, Max, Mean, Min, Prod, Sum, Test};
use half::{bf16, f16};
use std::ops::Range;

/// Writes the elements of a range of positions, row by row over the iteration shape, to an address.
pub(crate) type Reader<'a> = &'a (dyn Fn(Range<usize>, *mut u8) + Sync);

/// What is reduced.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A value in memory.
    View(View<'a>),
    /// An elementwise program over `shape` with results of type `dtype`, evaluated piece by piece.
    Fused { dtype: DType, shape: &'a [usize], read: Reader<'a> },
}

/// Reduces the dimensions that `dims` marks, writing one element for each index of the others, row by
/// row. (So `keepdim` makes no difference here.)
pub(crate) fn reduce(op: ReduceOp, input: Source<'_>, dims: &[bool], output: &ViewMut<'_>, par: &dyn Parallel) {
    use DType::*;
    let task = Task::new(input, dims, output.ptr, par);
    debug_assert_eq!(task.kept.numel(), output.numel());
    macro_rules! by_type {
        ($($dtype:pat => $F:ty),* $(,)?) => {
            match task.dtype { $($dtype => fold_all::<$F>(&task),)* other => unreachable!("{op:?} of {other}") }
        };
    }
    match op {
        ReduceOp::Sum => by_type! {
            F32 => Sum<f32, f32, f32>, F64 => Sum<f64, f64, f64>, F16 => Sum<f16, f32, f16>, BF16 => Sum<bf16, f32, bf16>,
            I32 => Sum<i32, i64, i64>, I64 => Sum<i64, i64, i64>, U8 | Bool => Sum<u8, i64, i64>,
        },
        ReduceOp::Prod => by_type! {
            F32 => Prod<f32, f32, f32>, F64 => Prod<f64, f64, f64>, F16 => Prod<f16, f32, f16>, BF16 => Prod<bf16, f32, bf16>,
            I32 => Prod<i32, i64, i64>, I64 => Prod<i64, i64, i64>, U8 | Bool => Prod<u8, i64, i64>,
        },
        ReduceOp::Mean => by_type! {
            F32 => Mean<f32, f32, f32>, F64 => Mean<f64, f64, f64>, F16 => Mean<f16, f32, f16>, BF16 => Mean<bf16, f32, bf16>,
        },
        ReduceOp::Max => by_type! {
            F32 => Max<f32, f32, f32>, F64 => Max<f64, f64, f64>, F16 => Max<f16, f32, f16>, BF16 => Max<bf16, f32, bf16>,
            I32 => Max<i32, i32, i32>, I64 => Max<i64, i64, i64>, U8 | Bool => Max<u8, u8, u8>,
        },
        ReduceOp::Min => by_type! {
            F32 => Min<f32, f32, f32>, F64 => Min<f64, f64, f64>, F16 => Min<f16, f32, f16>, BF16 => Min<bf16, f32, bf16>,
            I32 => Min<i32, i32, i32>, I64 => Min<i64, i64, i64>, U8 | Bool => Min<u8, u8, u8>,
        },
        ReduceOp::Any => test_all::<false>(&task),
        ReduceOp::All => test_all::<true>(&task),
        ReduceOp::ArgMax => arg::by_dtype::<true>(&task),
        ReduceOp::ArgMin => arg::by_dtype::<false>(&task),
    }
}

fn test_all<const ALL: bool>(task: &Task<'_>) {
    match task.dtype {
        DType::F32 => fold_all::<Test<f32, f32, ALL>>(task),
        DType::F64 => fold_all::<Test<f64, f64, ALL>>(task),
        DType::F16 => fold_all::<Test<f16, f32, ALL>>(task),
        DType::BF16 => fold_all::<Test<bf16, f32, ALL>>(task),
        DType::I32 => fold_all::<Test<i32, i32, ALL>>(task),
        DType::I64 => fold_all::<Test<i64, i64, ALL>>(task),
        DType::U8 | DType::Bool => fold_all::<Test<u8, u8, ALL>>(task),
    }
}

/// A reduction as its loops see it. A fused input has the offsets of a contiguous value.
struct Task<'a> {
    dtype: DType,
    /// Loops over the results: where the result lies, where its first element lies.
    kept: Nest<2>,
    /// Loops over the elements of one result.
    reduced: Nest<1>,
    /// Elements of one result.
    count: usize,
    input: Shared<u8>,
    read: Option<Reader<'a>>,
    output: Shared<u8>,
    par: &'a dyn Parallel,
}

impl<'a> Task<'a> {
    fn new(input: Source<'a>, dims: &[bool], output: *mut u8, par: &'a dyn Parallel) -> Task<'a> {
        let own;
        let (dtype, shape, strides, ptr, read) = match input {
            Source::View(v) => (v.dtype, v.shape, v.strides, v.ptr, None),
            Source::Fused { dtype, shape, read } => {
                own = crate::shape::contiguous_strides(shape);
                (dtype, shape, &own[..], std::ptr::null(), Some(read))
            }
        };
        let (mut kept, mut reduced) = (Nest::default(), Nest::default());
        let mut step = 1;
        for (i, &size) in shape.iter().enumerate().rev().filter(|(_, n)| **n != 1) {
            if dims[i] {
                reduced.dims.insert(0, Dim { size, step: [strides[i]] });
            } else {
                kept.dims.insert(0, Dim { size, step: [step, strides[i]] });
                step *= size as isize;
            }
        }
        let (kept, reduced) = (kept.merged(), reduced.merged());
        let count = reduced.numel();
        let (input, output) = (Shared::new(ptr.cast_mut()), Shared::new(output));
        Task { dtype, kept, reduced, count, input, read, output, par }
    }

    /// Which of the kept loops runs along memory, when that is better than running along a result's
    /// own elements.
    fn column(&self) -> Option<usize> {
        let own = self.reduced.dims.last().map_or(0, |d| d.step[0].unsigned_abs());
        if own == 1 {
            return None;
        }
        // A fused input can only be read along its last dimension.
        let along = |d: &Dim<2>| d.step[1] == 1 && (self.read.is_some() || d.size >= 4);
        self.kept.dims.iter().position(along)
    }

    fn input<T>(&self) -> Input<'a, T> {
        Input { at: self.input.cast(), read: self.read }
    }
}

/// The elements of a task by their offset.
struct Input<'a, T> {
    at: Shared<T>,
    read: Option<Reader<'a>>,
}
impl<T> Clone for Input<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Input<'_, T> {}

impl<T: Copy> Input<'_, T> {
    /// The address of `n` elements side by side from an offset: in memory, or in `scratch`, evaluated.
    ///
    /// # Safety
    /// The elements are the input's, and `scratch` has room for `n` where the input is fused.
    #[inline(always)]
    unsafe fn run(&self, offset: isize, n: usize, scratch: *mut T) -> *const T {
        match self.read {
            None => self.at.at(offset),
            Some(read) => {
                read(offset as usize..offset as usize + n, scratch.cast());
                scratch
            }
        }
    }
}

/// Elements that are evaluated or gathered at a time.
const TILE: usize = 8 * fold::BLOCK;

/// Room for a tile, on the stack, aligned for any vector.
#[repr(align(64))]
struct Scratch<T, const N: usize>([std::mem::MaybeUninit<T>; N]);

impl<T, const N: usize> Scratch<T, N> {
    #[inline(always)]
    fn new() -> Self {
        Scratch([const { std::mem::MaybeUninit::uninit() }; N])
    }
    #[inline(always)]
    fn ptr(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }
}

fn fold_all<F: Fold>(task: &Task<'_>) {
    if task.kept.numel() == 0 {
        return;
    }
    match task.column() {
        Some(column) if task.count > 0 => columns::fold_columns::<F>(task, column),
        _ => rows::fold_rows::<F>(task),
    }
}

/// Elements below which a further thread does not pay. Unoptimised tests cut small values, so as to cut often.
fn least<T>() -> usize {
    (if cfg!(all(test, debug_assertions)) { 8 << 10 } else { 256 << 10 }) / size_of::<T>()
}
