//! Products of half-precision matrices: tiles are widened to f32, multiplied there, and rounded
//! once, or not at all where the result is in f32.
//!
//! `gemm` has a kernel for f16, but it rounds between blocks of k, and none for bf16.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Shared, slice_of};
use super::{Cut, Matrix, Product, gemm_piece, is_few, panel};
use crate::sync::threads::thread_local;
use crate::view::Parallel;
use std::cell::RefCell;

/// Sides of a tile of the output: with a step's depth, three buffers of a MiB at most. Elements are
/// widened once a tile, so the longer its sides, the fewer conversions a multiply-add.
const ROWS: usize = 512;
const COLS: usize = 512;

thread_local! {
    static BUFFERS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn halves<T: Load<f32>, O: Load<f32>>(
    p: &Product,
    a: *const u8,
    b: *const u8,
    out: *mut u8,
    par: &dyn Parallel,
) {
    let (a, b, out) =
        (Shared::<T>::new(a.cast_mut()), Shared::<T>::new(b.cast_mut()), Shared::<O>::new(out));
    let cut = Cut::new(p, p.library_grain(), par);
    cut.run(par, &|matrix, rows, cols| {
        let ([_, a, b], [o, ..]) = (p.at(matrix, a, b, a), p.at(matrix, out, out, out));
        // Tiles as even as can be: one of a single column would be summed up in another order.
        let (down, across) = (rows.len().div_ceil(ROWS), cols.len().div_ceil(COLS));
        for i in 0..down * across {
            let (r, c) =
                (slice_of(rows.len(), down, i / across), slice_of(cols.len(), across, i % across));
            let (row, col) = (rows.start + r.start, cols.start + c.start);
            let o = Matrix { at: Shared::new(o.from(row, col)), ..o };
            let a = Matrix { at: Shared::new(a.from(row, 0)), ..a };
            let b = Matrix { at: Shared::new(b.from(0, col)), ..b };
            // SAFETY: the tile lies within the output and is this part's own.
            unsafe { tile(o, a, b, [r.len(), c.len(), p.k], p.as_packed) };
        }
    });
}

/// One tile of the output. `as_packed` is [`matmul`](super::matmul)'s.
///
/// # Safety
/// The matrices are valid over `high` rows, `wide` columns and `k`.
unsafe fn tile<T: Load<f32>, O: Load<f32>>(
    o: Matrix<O>,
    a: Matrix<T>,
    b: Matrix<T>,
    [high, wide, k]: [usize; 3],
    as_packed: bool,
) {
    // With one row the library sums up in another order: it is given the row twice, and nobody
    // looks at the second.
    let rows = if as_packed && high == 1 { 2 } else { high };
    let plain = as_packed && is_few(rows, wide);
    BUFFERS.with_borrow_mut(|buffers| {
        let deep = panel::depth(k);
        crate::room::at_least(buffers, high * deep + deep * wide + rows * wide, 0.0);
        let (wide_a, rest) = buffers.split_at_mut(high * deep);
        let (wide_b, acc) = rest.split_at_mut(deep * wide);
        let acc = &mut acc[..rows * wide];
        let mut depth = 0;
        loop {
            let deep = deep.min(k - depth);
            // SAFETY: by the caller's promise; the buffers have the sizes that are named.
            unsafe {
                let a = widen(
                    Matrix { at: Shared::new(a.from(0, depth)), ..a },
                    wide_a,
                    high,
                    deep,
                    false,
                );
                let b = widen(
                    Matrix { at: Shared::new(b.from(depth, 0)), ..b },
                    wide_b,
                    deep,
                    wide,
                    plain,
                );
                let a = if rows > high { Matrix { rows: 0, ..a } } else { a };
                gemm_piece::<f32>(
                    Matrix { at: Shared::new(acc.as_mut_ptr()), rows: wide as isize, cols: 1 },
                    a,
                    b,
                    [rows, wide, deep],
                    depth > 0,
                );
            }
            depth += deep;
            if depth >= k {
                break;
            }
        }
        let acc = &acc[..high * wide];
        vectorize!(|| {
            for (r, line) in acc.chunks(wide).enumerate() {
                // SAFETY: rows of the output lie without gaps.
                line.iter()
                    .enumerate()
                    .for_each(|(c, &x)| unsafe { o.from(r, c).write(O::store(x)) });
            }
        });
    });
}

/// Widens a matrix to f32 in the order in which it lies, so that a transposed weight is read along
/// memory too; the product takes any order. If it is to be `plain`, row by row.
///
/// # Safety
/// The matrix is valid over `rows` and `cols`.
unsafe fn widen<T: Load<f32>>(
    from: Matrix<T>,
    to: &mut [f32],
    rows: usize,
    cols: usize,
    plain: bool,
) -> Matrix<f32> {
    let turned = from.rows == 1 && from.cols != 1 && !plain;
    let (lines, len) = if turned { (cols, rows) } else { (rows, cols) };
    vectorize!(|| {
        for (i, line) in to.chunks_mut(len.max(1)).take(lines).enumerate() {
            let first = if turned { from.from(0, i) } else { from.from(i, 0) };
            if turned || from.cols == 1 {
                // SAFETY: by the caller's promise; the elements of a line lie side by side.
                let x = unsafe { std::slice::from_raw_parts(first, len) };
                line.iter_mut().zip(x).for_each(|(o, x)| *o = x.load());
            } else {
                // SAFETY: by the caller's promise.
                line.iter_mut()
                    .enumerate()
                    .for_each(|(c, o)| *o = unsafe { *from.from(i, c) }.load());
            }
        }
    });
    let at = Shared::new(to.as_mut_ptr());
    match turned {
        true => Matrix { at, rows: 1, cols: len as isize },
        false => Matrix { at, rows: len as isize, cols: 1 },
    }
}
