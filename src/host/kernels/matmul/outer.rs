//! One column by one row: each result is one product, and writing takes the time.
//!
//! The gradient of a weight that has met one row is such a product: those of [1, 1024] by
//! [1024, 1024] took 637 us by the library on two cores of a Zen 4, and 121 by this loop, in two
//! runs of the sweep.

use super::super::isa::vectorize;
use super::super::nest::{Shared, in_parts, slice_of};
use super::{Float, Product};
use crate::view::Parallel;
use std::ops::{Add, Mul};

/// Bytes of results below which a further thread does not pay, as of a copy.
const PART_BYTES: usize = 256 << 10;

/// Multiplies operands with `k == 1`.
pub(super) fn multiply<T>(p: &Product, a: *const u8, b: *const u8, out: *mut u8, par: &dyn Parallel)
where
    T: Float + Mul<Output = T> + Add<Output = T> + Default,
{
    debug_assert_eq!(p.k, 1);
    let (a, b, out) =
        (Shared::<T>::new(a.cast_mut()), Shared::<T>::new(b.cast_mut()), Shared::<T>::new(out));
    let (rows, n) = (p.batch.numel() * p.m, p.n);
    let least = PART_BYTES / size_of::<T>();
    // The longer side is cut.
    let cuts = if rows < par.threads() { n.div_ceil(least) } else { 1 };
    let each = n.div_ceil(cuts);
    in_parts(rows * cuts, (least / each).max(1), par, &|part| {
        for i in part {
            let (row, cut) = (i / cuts, slice_of(n, cuts, i % cuts));
            let [o, a, b] = p.at(row / p.m, a, b, out);
            let (row, n) = (row % p.m, cut.len());
            let (to, first) = (o.from(row, cut.start), b.from(0, cut.start).cast_const());
            let step = b.cols;
            // SAFETY: a row of the result, which no other part writes, and an element of a.
            let (to, x) = unsafe {
                let to = std::slice::from_raw_parts_mut(to.cast::<std::mem::MaybeUninit<T>>(), n);
                (to, *a.from(row, 0))
            };
            // A sum begins with zero, which is what a product of -0 comes to.
            if step == 1 {
                // SAFETY: a row of b.
                let b = unsafe { std::slice::from_raw_parts(first, n) };
                vectorize!(move || to.iter_mut().zip(b).for_each(|(to, &b)| {
                    to.write(x * b + T::default());
                }));
            } else {
                for (j, to) in to.iter_mut().enumerate() {
                    // SAFETY: an element of b.
                    to.write(x * unsafe { *first.offset(j as isize * step) } + T::default());
                }
            }
        }
    });
}
