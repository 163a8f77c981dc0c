//! Products by columns that the caller lays, a panel and some of k at a time: for kernels whose
//! right operand is nowhere as a whole. f32 is multiplied as a packed weight is
//! ([`panel`](super::panel)), f64 by the `gemm` crate.

use super::super::load::Load;
use super::super::nest::Shared;
use super::panel::{LINE, Order, Panels, SUMS};
use super::{Float, Matrix, gemm_piece};

/// Rows by a panel of columns.
pub(in super::super) struct Step<'a, W> {
    /// Elements of a row lie side by side.
    pub rows: Matrix<W>,
    /// Row by row, a multiple of [`LINE`] columns.
    pub columns: &'a [W],
    /// Rows, elements along k, columns.
    pub sizes: [usize; 3],
    /// A row for each of `rows`, [`SUMS`] apart.
    pub sums: *mut W,
    /// Whether sums are there already.
    pub adds: bool,
    /// Where the sums go, with the step from one row to the next, instead of staying.
    pub out: Option<(*mut W, usize)>,
}

/// What is multiplied so.
pub(in super::super) trait Laid: Float + Load<Self> {
    /// The most rows, and elements along k, of a step. Of f32 the columns of a step lie in the
    /// first-level cache while rows go by, and errors grow with k over this; the library brings
    /// both operands into an order of its own at each step.
    const ROWS: usize;
    const DEPTH: usize;

    /// # Safety
    /// What is named is there: rows and columns for reads, sums for writes and, if they are added
    /// to, written; the results for writes. There are no more than [`ROWS`](Laid::ROWS) rows.
    unsafe fn multiply(step: Step<'_, Self>);
}

impl Laid for f32 {
    const ROWS: usize = super::panel::BLOCK;
    const DEPTH: usize = 144;

    unsafe fn multiply(step: Step<'_, f32>) {
        let [m, k, n] = step.sizes;
        let lines = &step.columns.as_chunks::<LINE>().0[..n.div_ceil(LINE) * k];
        let by = Panels { lines, k, n, pairs: false };
        let out = step.out.map(|(at, apart)| (Shared::new(at), apart));
        let rows = (step.rows.at, Order::Rows(step.rows.rows), m);
        // SAFETY: by the caller's promise.
        unsafe { by.add(rows, (Shared::new(step.sums), step.adds), out) };
    }
}

impl Laid for f64 {
    const ROWS: usize = 1 << 20;
    const DEPTH: usize = 512;

    unsafe fn multiply(step: Step<'_, f64>) {
        let [m, k, n] = step.sizes;
        let wide = n.next_multiple_of(LINE) as isize;
        let columns = Shared::new(step.columns.as_ptr().cast_mut());
        let by = Matrix { at: columns, rows: wide, cols: 1 };
        let sums = Matrix { at: Shared::new(step.sums), rows: SUMS as isize, cols: 1 };
        // SAFETY: by the caller's promise.
        unsafe {
            if k > 0 || !step.adds {
                gemm_piece(sums, step.rows, by, [m, n, k], step.adds);
            }
            if let Some((out, apart)) = step.out {
                for r in 0..m {
                    std::ptr::copy_nonoverlapping(sums.from(r, 0), out.add(r * apart), n);
                }
            }
        }
    }
}
