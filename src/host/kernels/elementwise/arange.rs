//! Numbers by their position: `start + i * step`.
//!
//! Floats are computed in f64 and integers in wrapping i64, whatever their type. Knows no tiles.

#![allow(unsafe_code)]

use crate::dtype::{DType, Scalar};
use crate::float8::narrow_odd;
use crate::host::kernels::isa::vectorize;

/// Positions of a run: so few that 32-bit integers count them, which every level turns into floats
/// side by side.
const RUN: usize = 4096;

/// Writes the numbers of `n` positions from `first` on; 16-bit types as f32 that are yet to be
/// rounded.
///
/// # Safety
/// `dst` is valid for writes of `n` elements of the type's representation.
pub(super) unsafe fn fill(
    dtype: DType,
    start: Scalar,
    step: Scalar,
    first: usize,
    dst: *mut u8,
    n: usize,
) {
    let (floats, ints) = ((start.as_f64(), step.as_f64()), (start.as_i64(), step.as_i64()));
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F64 => of_floats(floats, first, dst, n, |x| x),
            DType::F32 => of_floats(floats, first, dst, n, |x| x as f32),
            DType::F16 | DType::BF16 => of_floats(floats, first, dst, n, narrow_odd),
            DType::I64 => of_ints(ints, first, dst, n, |x| x),
            DType::I32 => of_ints(ints, first, dst, n, |x| x as i32),
            DType::U8 => of_ints(ints, first, dst, n, |x| x as u8),
            DType::Bool => of_ints(ints, first, dst, n, |x| x != 0),
            stored => stored.never_computed(),
        }
    }
}

/// # Safety
/// `dst` is valid for writes of `n` elements.
unsafe fn of_floats<T>(
    (start, step): (f64, f64),
    first: usize,
    dst: *mut u8,
    n: usize,
    store: impl Fn(f64) -> T + Copy,
) {
    let dst = dst.cast::<T>();
    vectorize!(move || for run in (0..n).step_by(RUN) {
        // Whole numbers below 2^53: the sum of two is exact.
        let base = (first + run) as f64;
        for i in 0..RUN.min(n - run) as i32 {
            let x = start + (base + f64::from(i)) * step;
            // SAFETY: the caller's promise.
            unsafe { dst.add(run + i as usize).write(store(x)) };
        }
    });
}

/// # Safety
/// As above.
unsafe fn of_ints<T>(
    (start, step): (i64, i64),
    first: usize,
    dst: *mut u8,
    n: usize,
    store: impl Fn(i64) -> T + Copy,
) {
    let dst = dst.cast::<T>();
    vectorize!(move || for i in 0..n {
        let x = start.wrapping_add(((first + i) as i64).wrapping_mul(step));
        // SAFETY: the caller's promise.
        unsafe { dst.add(i).write(store(x)) };
    });
}
