//! Small products on one thread, one after the other by the same operand: for kernels that multiply
//! as they go along.
//!
//! f32 is put in panels, where its caller has room, and multiplied as a packed weight is; of f64 it
//! is remembered where it lies, and the `gemm` crate brings it into order at each product.

use super::super::nest::Shared;
use super::packed::pack_matrix;
use super::panel::{BLOCK, LINE, Panels, Rows, panels_of};
use super::{Float, Matrix, gemm_piece};
use crate::dtype::{DType, Element};

/// The right operand of products.
pub(in super::super) struct Tile<'a, T> {
    room: &'a mut [T],
    of: Option<(Matrix<T>, [usize; 2])>,
}

impl<'a, T: Float + Element> Tile<'a, T> {
    /// Elements of room for a `[k, n]` matrix; a multiple of a cache line's.
    pub fn room(k: usize, n: usize) -> usize {
        k * n.next_multiple_of(LINE)
    }

    /// With room for its operands. It is fastest where that begins with a cache line.
    pub fn new(room: &'a mut [T]) -> Tile<'a, T> {
        Tile { room, of: None }
    }

    /// Takes a `[k, n]` matrix, unless it has that one already.
    ///
    /// # Safety
    /// The matrix is valid for reads, and is not written, while products by it are asked for and
    /// while it may be given here again.
    pub unsafe fn take(&mut self, matrix: Matrix<T>, [k, n]: [usize; 2]) {
        let there = |of: &(Matrix<T>, [usize; 2])| {
            let at = |matrix: &Matrix<T>| (matrix.at.at(0), matrix.rows, matrix.cols);
            of.1 == [k, n] && at(&of.0) == at(&matrix)
        };
        if self.of.as_ref().is_some_and(there) {
            return;
        }
        self.of = Some((matrix, [k, n]));
        if T::DTYPE == DType::F32 {
            assert!(Self::room(k, n) <= self.room.len(), "there is room for the panels");
            let Matrix { at, rows, cols } = matrix;
            let from = Matrix { at: Shared::<f32>::new(at.at(0)), rows, cols };
            // SAFETY: the caller's promise; there is room for the panels, and T is f32.
            unsafe { pack_matrix(from, [k, n], self.room.as_mut_ptr().cast()) };
        }
    }

    /// `out[m, n] = rows[m, k] x` what was taken; both lie row by row without gaps.
    ///
    /// # Safety
    /// The rows are valid for reads, and `out` for writes that meet nothing else.
    pub unsafe fn product(&self, rows: *mut T, m: usize, out: *mut T) {
        let Some((matrix, [k, n])) = self.of else { return };
        if T::DTYPE == DType::F32 {
            // SAFETY: `take` has put the matrix there in panels, and T is f32; else the caller's
            // promise.
            unsafe {
                let lines =
                    std::slice::from_raw_parts(self.room.as_ptr().cast(), n.div_ceil(LINE) * k);
                let by = Panels::<f32> { lines, k, n, pairs: false };
                for first in (0..m).step_by(BLOCK) {
                    let (from, to) =
                        (Shared::new(rows.add(first * k)), Shared::new(out.add(first * n)));
                    let high = BLOCK.min(m - first);
                    let rows = Rows { from, step: k as isize, high, to, apart: n };
                    // One by one: the others are in the cache, and not to be fetched.
                    (0..panels_of(n))
                        .for_each(|panel| by.multiply::<f32>(&rows, panel..panel + 1, None));
                }
            }
            return;
        }
        let in_rows =
            |at: *mut T, n: usize| Matrix { at: Shared::new(at), rows: n as isize, cols: 1 };
        // SAFETY: the caller's promise.
        unsafe { gemm_piece(in_rows(out, n), in_rows(rows, k), matrix, [m, n, k], false) }
    }
}
