//! Reductions over any set of dimensions, from memory or straight from a fused elementwise program.
//!
//! Called by `host/step`, one call a step. [`fold`] has the values and their order;
//! [`rows`] and [`columns`] walk memory the way it lies; [`arg`] finds positions, and [`others`] is
//! the way back through products. The engine has checked types, shapes, and that `max`, `min`,
//! `argmax`, `argmin` have at least one element.

mod accumulators;
mod arg;
mod columns;
pub(super) mod fold;
mod gather;
mod kernel;
mod others;
mod rows;
#[cfg(test)]
mod tests;
mod tree;

use super::nest::{Dim, Nest, Shared};
use crate::dtype::DType;
use crate::op::ReduceOp;
use crate::sync::threads::thread_local;
use crate::view::{Parallel, Serial, View, ViewMut};
use fold::{All, Any, LANES, Max, Min, OfSquares, Prod, Sum, SumBytes};
use half::{bf16, f16};
use kernel::Kernel;
pub(crate) use others::product_back;
use std::cell::RefCell;
use std::ops::Range;

/// Writes the elements of a range of positions, row by row over the iteration shape, to an address.
pub(crate) type Reader<'a> = &'a (dyn Fn(Range<usize>, *mut u8) + Sync);

/// What is reduced.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A value in memory.
    View(View<'a>),
    /// The squares of a value in memory, in float32 if it has halves: for sums and means. By the
    /// program that they are as well they would be written to a tile and read again (norms of 4096
    /// rows of 1024 took 240 us on two cores of a Zen 4, and their sums 115).
    Squares(View<'a>),
    /// An elementwise program over `shape` with results of type `dtype`, evaluated piece by piece.
    Fused { dtype: DType, shape: &'a [usize], read: Reader<'a> },
}

/// Reduces the dimensions that `dims` marks, writing one element for each index of the others, row
/// by row. (So `keepdim` makes no difference here.)
pub(crate) fn reduce(
    op: ReduceOp,
    input: Source<'_>,
    dims: &[bool],
    output: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if output.numel() == 0 {
        return;
    }
    let kernel = match input {
        Source::Squares(x) => kernel_of_squares(x.dtype),
        Source::View(_) | Source::Fused { .. } => kernel_of(op, input.dtype()),
    };
    let task = Task::new(op, kernel, input, dims, output, par);
    debug_assert_eq!(task.kept.numel(), output.numel());
    match op {
        ReduceOp::ArgMax | ReduceOp::ArgMin => arg::find(&task, kernel, op == ReduceOp::ArgMax),
        ReduceOp::Sum
        | ReduceOp::Prod
        | ReduceOp::Mean
        | ReduceOp::Max
        | ReduceOp::Min
        | ReduceOp::Any
        | ReduceOp::All => match task.column() {
            Some(column) if task.count > 0 => columns::fold_columns(&task, kernel, column),
            Some(_) | None => rows::fold_rows(&task, kernel),
        },
    }
}

/// The loops for sums of squares of floats of a type.
fn kernel_of_squares(dtype: DType) -> &'static Kernel {
    match dtype {
        DType::F64 => const { &Kernel::of::<OfSquares<Sum<f64, f64, f64>>>(false) },
        DType::F16 => const { &Kernel::of::<OfSquares<Sum<f16, f32, f32>>>(false) },
        DType::BF16 => const { &Kernel::of::<OfSquares<Sum<bf16, f32, f32>>>(false) },
        _ => const { &Kernel::of::<OfSquares<Sum<f32, f32, f32>>>(false) },
    }
}

/// The loops for an op and a type.
fn kernel_of(op: ReduceOp, dtype: DType) -> &'static Kernel {
    use DType::*;
    macro_rules! by_type {
        ($($dtype:pat => $F:ty, $any_order:literal;)*) => {
            match dtype {
                $($dtype => const { &Kernel::of::<$F>($any_order) },)*
                #[allow(unreachable_patterns)]
                other => unreachable!("{op:?} of {other}, which inference refuses or widens first"),
            }
        };
    }
    match op {
        ReduceOp::Sum | ReduceOp::Mean => by_type! {
            F32 => Sum<f32, f32, f32>, false;
            F64 => Sum<f64, f64, f64>, false;
            F16 => Sum<f16, f32, f16>, false;
            BF16 => Sum<bf16, f32, bf16>, false;
            I32 => Sum<i32, i64, i64>, true;
            I64 => Sum<i64, i64, i64>, true;
            U8 | Bool => SumBytes, true;
        },
        ReduceOp::Prod => by_type! {
            F32 => Prod<f32, f32, f32>, false;
            F64 => Prod<f64, f64, f64>, false;
            F16 => Prod<f16, f32, f16>, false;
            BF16 => Prod<bf16, f32, bf16>, false;
            I32 => Prod<i32, i64, i64>, true;
            I64 => Prod<i64, i64, i64>, true;
            U8 | Bool => Prod<u8, i64, i64>, true;
        },
        ReduceOp::Max | ReduceOp::ArgMax => by_type! {
            F32 => Max<f32, f32, f32>, true;
            F64 => Max<f64, f64, f64>, true;
            F16 => Max<f16, f32, f16>, true;
            BF16 => Max<bf16, f32, bf16>, true;
            I32 => Max<i32, i32, i32>, true;
            I64 => Max<i64, i64, i64>, true;
            U8 | Bool => Max<u8, u8, u8>, true;
        },
        ReduceOp::Min | ReduceOp::ArgMin => by_type! {
            F32 => Min<f32, f32, f32>, true;
            F64 => Min<f64, f64, f64>, true;
            F16 => Min<f16, f32, f16>, true;
            BF16 => Min<bf16, f32, bf16>, true;
            I32 => Min<i32, i32, i32>, true;
            I64 => Min<i64, i64, i64>, true;
            U8 | Bool => Min<u8, u8, u8>, true;
        },
        ReduceOp::Any => by_type! {
            F32 => Any<u32, true>, true;
            F64 => Any<u64, true>, true;
            F16 | BF16 => Any<u16, true>, true;
            I32 => Any<u32, false>, true;
            I64 => Any<u64, false>, true;
            U8 | Bool => Any<u8, false>, true;
        },
        ReduceOp::All => by_type! {
            F32 => All<u32, true>, true;
            F64 => All<u64, true>, true;
            F16 | BF16 => All<u16, true>, true;
            I32 => All<u32, false>, true;
            I64 => All<u64, false>, true;
            U8 | Bool => All<u8, false>, true;
        },
    }
}

impl Source<'_> {
    fn dtype(&self) -> DType {
        match self {
            Source::View(view) | Source::Squares(view) => view.dtype,
            Source::Fused { dtype, .. } => *dtype,
        }
    }
}

/// A reduction as its walks see it. A fused input has the offsets of a contiguous value.
struct Task<'a> {
    dtype: DType,
    /// Loops over the results: where the result lies, where its first element lies.
    kept: Nest<2>,
    /// Loops over the elements of one result.
    reduced: Nest<1>,
    /// Elements of one result.
    count: usize,
    mean: bool,
    input: Shared<u8>,
    read: Option<Reader<'a>>,
    output: Shared<u8>,
    out_size: usize,
    par: &'a dyn Parallel,
}

impl<'a> Task<'a> {
    fn new(
        op: ReduceOp,
        kernel: &Kernel,
        input: Source<'a>,
        dims: &[bool],
        output: &ViewMut<'_>,
        par: &'a dyn Parallel,
    ) -> Task<'a> {
        let own;
        let (dtype, shape, strides, ptr, read) = match input {
            Source::View(v) | Source::Squares(v) => (v.dtype, v.shape, v.strides, v.ptr, None),
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
        let position = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
        if kernel.any_order && !position && read.is_none() {
            // Along memory, whatever the order of dimensions.
            reduced.dims.sort_by_key(|d: &Dim<1>| std::cmp::Reverse(d.step[0].unsigned_abs()));
        }
        let (kept, reduced) = (kept.merged(), reduced.merged());
        let count = reduced.numel();
        let (input, out_size) = (Shared::new(ptr.cast_mut()), output.dtype.size());
        let (mean, output) = (op == ReduceOp::Mean, Shared::new(output.ptr));
        Task { dtype, kept, reduced, count, mean, input, read, output, out_size, par }
    }

    /// Which of the kept loops runs along memory, when that is better than running along a result's
    /// own elements.
    fn column(&self) -> Option<usize> {
        if !self.reduced.dims.is_empty() && self.inner().1.unsigned_abs() == 1 {
            return None;
        }
        // A fused input can only be read along its last dimension.
        let along = |d: &Dim<2>| d.step[1] == 1 && (self.read.is_some() || d.size >= 4);
        self.kept.dims.iter().position(along)
    }

    /// Length and step of the innermost loop over a result's elements.
    fn inner(&self) -> (usize, isize) {
        self.reduced.dims.last().map_or((1, 1), |d| (d.size, d.step[0]))
    }

    /// True where a result's elements lie without gaps.
    fn side_by_side(&self) -> bool {
        self.reduced.dims.len() <= 1 && self.inner().1 == 1
    }

    fn mean(&self) -> Option<usize> {
        self.mean.then_some(self.count)
    }

    /// The address of a result.
    fn result(&self, at: isize) -> *mut u8 {
        self.output.at(at * self.out_size as isize)
    }

    /// The address of an element of an input in memory.
    fn at(&self, offset: isize, size: usize) -> *const u8 {
        self.input.at(offset * size as isize)
    }

    /// The address of `n` elements of a size side by side from an offset: in memory, or in
    /// `scratch`, evaluated.
    ///
    /// # Safety
    /// The elements are the input's, and `scratch` has room for `n` where the input is fused.
    unsafe fn run(&self, offset: isize, n: usize, size: usize, scratch: *mut u8) -> *const u8 {
        match self.read {
            None => self.at(offset, size),
            Some(read) => {
                read(offset as usize..offset as usize + n, scratch);
                scratch
            }
        }
    }
}

/// Bytes that are evaluated or gathered at a time, where it need not be more.
const TILE_BYTES: usize = 8 << 10;
/// Bytes that they are at most: half of a second-level cache.
const TILE_BYTES_MAX: usize = 1 << 20;
/// Results that one turn of the innermost loop of columns holds in registers.
const STRIP: usize = 32;
/// Levels of the tree within a block.
const LEVELS: usize = LANES.ilog2() as usize;

/// Memory for a part's own use, aligned for any vector. A thread keeps what it had for the next
/// time.
pub(super) struct Scratch(Vec<Line>);

#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    static SCRATCH: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

impl Scratch {
    pub fn new(bytes: usize) -> Scratch {
        if bytes == 0 {
            return Scratch(Vec::new());
        }
        let mut lines = SCRATCH.with_borrow_mut(|pool| pool.pop()).unwrap_or_default();
        crate::room::reserve(&mut lines, bytes.div_ceil(size_of::<Line>()));
        Scratch(lines)
    }
    pub fn ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.0.capacity() > 0 {
            let lines = std::mem::take(&mut self.0);
            // A thread that is at its end has no pool any more.
            let _ = SCRATCH.try_with(|pool| pool.borrow_mut().push(lines));
        }
    }
}

/// Elements of a size below which a further thread does not pay (512 KiB summed in rows of 1024
/// 27.7, 15.0, 32.1 us, in rows of 64 55.3, 31.1, 45.7, in columns of 1024 36.5, 22.5, 42.2).
/// Unoptimised tests cut small values, so as to cut often.
fn least(size: usize) -> usize {
    (if cfg!(all(test, debug_assertions)) { 8 << 10 } else { 256 << 10 }) / size
}
