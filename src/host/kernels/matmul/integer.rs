//! Products of integers, which wrap: a plain blocked loop.

use super::super::isa::vectorize;
use super::super::nest::Shared;
use super::{Cut, Matrix, Product};
use crate::view::Parallel;
use std::ops::Range;

/// An integer with wrapping arithmetic.
pub(super) trait Int: Copy + Send + Sync + 'static {
    const ZERO: Self;
    const ONE: Self;
    fn mul_add(self, b: Self, c: Self) -> Self;
}
macro_rules! int {
    ($($t:ident)*) => {$(
        impl Int for $t {
            const ZERO: $t = 0;
            const ONE: $t = 1;
            #[inline(always)]
            fn mul_add(self, b: $t, c: $t) -> $t { self.wrapping_mul(b).wrapping_add(c) }
        }
    )*};
}
int! { i32 i64 u8 }

/// Columns and depth of the block of b that is brought into order at a time.
const COLS: usize = 128;
const DEPTH: usize = 64;

pub(super) fn integers<T: Int>(
    p: &Product,
    a: *const u8,
    b: *const u8,
    out: *mut u8,
    par: &dyn Parallel,
) {
    let (a, b, out) =
        (Shared::<T>::new(a.cast_mut()), Shared::<T>::new(b.cast_mut()), Shared::<T>::new(out));
    let cut = Cut::new(p, [4, COLS], par);
    cut.run(par, &|matrix, rows, cols| {
        let [o, a, b] = p.at(matrix, a, b, out);
        vectorize!(|| {
            let mut c = cols.start;
            while c < cols.end {
                let width = COLS.min(cols.end - c);
                // SAFETY: the piece lies within the output and is this part's own.
                unsafe { stripe(o, a, b, rows.clone(), c, width, p.k) };
                c += width;
            }
        });
    });
}

/// `width` columns of the output from `col` on.
///
/// # Safety
/// The matrices are valid over the rows, the columns and `k`.
#[inline(always)]
unsafe fn stripe<T: Int>(
    o: Matrix<T>,
    a: Matrix<T>,
    b: Matrix<T>,
    rows: Range<usize>,
    col: usize,
    width: usize,
    k: usize,
) {
    let mut block = [[T::ZERO; COLS]; DEPTH];
    let mut depth = 0;
    loop {
        let deep = DEPTH.min(k - depth);
        // SAFETY: by the caller's promise, here and below.
        for (p, line) in block[..deep].iter_mut().enumerate() {
            line[..width]
                .iter_mut()
                .enumerate()
                .for_each(|(j, x)| *x = unsafe { *b.from(depth + p, col + j) });
        }
        for row in rows.clone() {
            let mut acc = [T::ZERO; COLS];
            // SAFETY: as above.
            let x = |p: usize| unsafe { *a.from(row, depth + p) };
            let (fours, rest) = block[..deep].as_chunks::<4>();
            for (p, [b0, b1, b2, b3]) in fours.iter().enumerate() {
                let [x0, x1, x2, x3] = [x(4 * p), x(4 * p + 1), x(4 * p + 2), x(4 * p + 3)];
                for j in 0..COLS {
                    acc[j] = x0.mul_add(
                        b0[j],
                        x1.mul_add(b1[j], x2.mul_add(b2[j], x3.mul_add(b3[j], acc[j]))),
                    );
                }
            }
            for (p, line) in rest.iter().enumerate() {
                let x = x(deep - rest.len() + p);
                (0..COLS).for_each(|j| acc[j] = x.mul_add(line[j], acc[j]));
            }
            for (j, &x) in acc[..width].iter().enumerate() {
                let to = o.from(row, col + j);
                // SAFETY: as above; from the second block on the output has been written.
                unsafe { *to = if depth == 0 { x } else { T::ONE.mul_add(x, *to) } };
            }
        }
        depth += deep;
        if depth >= k {
            return;
        }
    }
}
