//! Products of half-precision matrices: tiles are widened to f32, multiplied there, and rounded once.
//!
//! `gemm` has a kernel for f16, but it rounds between blocks of k, and none for bf16.

use super::super::super::Parallel;
use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::Shared;
use super::{Cut, Matrix, Product, gemm_piece};
use std::cell::RefCell;

/// Sides of a tile of the output, and the depth of a step: three buffers of half a MiB at most.
const ROWS: usize = 256;
const COLS: usize = 256;
const DEPTH: usize = 512;

thread_local! {
    static BUFFERS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn halves<T: Load<f32>>(p: &Product, a: *const u8, b: *const u8, out: *mut u8, par: &dyn Parallel) {
    let (a, b, out) = (Shared::<T>::new(a.cast_mut()), Shared::<T>::new(b.cast_mut()), Shared::<T>::new(out));
    let cut = Cut::new(p, p.batch.numel(), [24, 64], par.threads());
    cut.run(par, &|matrix, rows, cols| {
        let [o, a, b] = p.at(matrix, a, b, out);
        let mut row = rows.start;
        while row < rows.end {
            let high = ROWS.min(rows.end - row);
            let mut col = cols.start;
            while col < cols.end {
                let wide = COLS.min(cols.end - col);
                let o = Matrix { at: Shared::new(o.from(row, col)), ..o };
                let a = Matrix { at: Shared::new(a.from(row, 0)), ..a };
                let b = Matrix { at: Shared::new(b.from(0, col)), ..b };
                // SAFETY: the tile lies within the output and is this part's own.
                unsafe { tile(o, a, b, high, wide, p.k) };
                col += wide;
            }
            row += high;
        }
    });
}

/// One tile of the output.
///
/// # Safety
/// The matrices are valid over `high` rows, `wide` columns and `k`.
unsafe fn tile<T: Load<f32>>(o: Matrix<T>, a: Matrix<T>, b: Matrix<T>, high: usize, wide: usize, k: usize) {
    BUFFERS.with_borrow_mut(|buffers| {
        let deep = DEPTH.min(k);
        buffers.resize(buffers.len().max(high * deep + deep * wide + high * wide), 0.0);
        let (wide_a, rest) = buffers.split_at_mut(high * deep);
        let (wide_b, acc) = rest.split_at_mut(deep * wide);
        let acc = &mut acc[..high * wide];
        let mut depth = 0;
        loop {
            let deep = deep.min(k - depth);
            // SAFETY: by the caller's promise; the buffers have the sizes that are named.
            unsafe {
                widen(Matrix { at: Shared::new(a.from(0, depth)), ..a }, wide_a, high, deep);
                widen(Matrix { at: Shared::new(b.from(depth, 0)), ..b }, wide_b, deep, wide);
                gemm_piece::<f32>(
                    Matrix { at: Shared::new(acc.as_mut_ptr()), rows: wide as isize, cols: 1 },
                    Matrix { at: Shared::new(wide_a.as_mut_ptr()), rows: deep as isize, cols: 1 },
                    Matrix { at: Shared::new(wide_b.as_mut_ptr()), rows: wide as isize, cols: 1 },
                    [high, wide, deep],
                    depth > 0,
                );
            }
            depth += deep;
            if depth >= k {
                break;
            }
        }
        vectorize(|| {
            for (r, line) in acc.chunks(wide).enumerate() {
                // SAFETY: rows of the output lie without gaps.
                line.iter().enumerate().for_each(|(c, &x)| unsafe { o.from(r, c).write(T::store(x)) });
            }
        });
    });
}

/// Writes a matrix row by row in f32, reading along whichever side lies closer in memory.
///
/// # Safety
/// The matrix is valid over `rows` and `cols`.
unsafe fn widen<T: Load<f32>>(from: Matrix<T>, to: &mut [f32], rows: usize, cols: usize) {
    vectorize(|| {
        if from.cols == 1 {
            for (r, line) in to.chunks_mut(cols.max(1)).take(rows).enumerate() {
                // SAFETY: by the caller's promise.
                let x = unsafe { std::slice::from_raw_parts(from.from(r, 0), cols) };
                line.iter_mut().zip(x).for_each(|(o, x)| *o = x.load());
            }
            return;
        }
        // Bands of 16 columns: what is read of a line stays in the first-level cache until it is used up.
        for band in (0..cols).step_by(16) {
            for r in 0..rows {
                for c in band..(band + 16).min(cols) {
                    // SAFETY: by the caller's promise.
                    to[r * cols + c] = unsafe { *from.from(r, c) }.load();
                }
            }
        }
    });
}
