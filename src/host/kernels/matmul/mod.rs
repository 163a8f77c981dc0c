//! Matrix products: `out[b.., m, n] = a[b.., m, k] x b[b.., k, n]`, with broadcast batches and any
//! strides.
//!
//! Called by the matmul op's CPU kernel. Halves, and f32 where an operand is transposed or there
//! are many rows, are put into panels as they are computed ([`by_panels`]), but for bfloat16 where
//! the machine multiplies it well ([`pairs`]). Other products of f32, and those of f64, go to the
//! `gemm` crate, cut here into pieces of the output, but for one row or column of f32 ([`row`]) and
//! for one term a result ([`outer`]); integers wrap. A transposed right operand of up to 4 MiB a
//! piece is turned before the library multiplies it. A weight that stays is packed once
//! ([`Packed`]); the op decides which weight that is, and for how many rows. Kernels that lay their
//! own operands multiply by [`Laid`] and [`Tile`]. The op has checked shapes and equal types.
//!
//! **Results and threads.** Every output element is one chain of multiply-adds over k in blocks
//! whose length depends on k alone, so how the output is cut does not show in it. Where a weight
//! may come to be packed ([`can_be_packed`]) the blocks are [`panel`]'s from the start: the first
//! products, which the library computes, and the later ones are the same to the bit. With one row,
//! with one column, with few results of a transposed operand and with a few sizes more the library
//! adds in other orders; these it is asked for in another way, or they are left to it for good.

mod by_panels;
mod integer;
mod laid;
mod lanes;
mod outer;
mod packed;
mod pairs;
mod panel;
mod row;
#[cfg(test)]
mod tests;
mod tile;

pub(super) use laid::{Laid, Step};
#[cfg(target_arch = "x86_64")]
pub(super) use lanes::{Avx2, Avx512};
pub(super) use lanes::{Lanes, Plain};
pub(crate) use packed::{Packed, can_be_packed, matmul_packed, pack};
pub(super) use panel::{BUNDLE, LINE, SUMS, columns_of, panels_of};
pub(super) use tile::Tile;

use super::isa::vectorize;
use super::nest::{Dim, Nest, Shared, least_part, slice_of};
use crate::dtype::DType;
use crate::sync::threads::thread_local;
use crate::view::{Parallel, View, ViewMut};
use ::half::{bf16, f16};
use std::cell::RefCell;
use std::ops::Range;

/// One matrix operand: where it starts and its steps by row and by column.
#[derive(Clone, Copy)]
pub(super) struct Matrix<T> {
    pub at: Shared<T>,
    pub rows: isize,
    pub cols: isize,
}

impl<T> Matrix<T> {
    #[inline(always)]
    pub fn from(self, row: usize, col: usize) -> *mut T {
        self.at.at(row as isize * self.rows + col as isize * self.cols)
    }

    /// The same elements, rows for columns.
    fn t(self) -> Matrix<T> {
        Matrix { at: self.at, rows: self.cols, cols: self.rows }
    }
}

/// A product as its kernels see it.
struct Product {
    m: usize,
    n: usize,
    k: usize,
    /// Loops over the matrices of the batch: output, a, b.
    batch: Nest<3>,
    a: [isize; 2],
    b: [isize; 2],
    /// Sums are those of a packed weight.
    as_packed: bool,
}

/// Multiplies matrices; `k == 0` gives zeros. Of halves the result may be in float32. `as_packed`
/// is for operands that [`can_be_packed`]: each element is summed up in the order in which it is
/// with the packed weight.
///
/// # Errors
/// For `bool`, which has no product.
pub(crate) fn matmul(
    a: View<'_>,
    b: View<'_>,
    out: &ViewMut<'_>,
    as_packed: bool,
    par: &dyn Parallel,
) -> Result<(), String> {
    debug_assert!(a.dtype == b.dtype && (a.dtype == out.dtype || a.dtype.wide() == out.dtype));
    if out.numel() == 0 {
        return Ok(());
    }
    let product = Product { as_packed, ..Product::new(&a, &b, out.shape) };
    match a.dtype {
        DType::F32 if product.k == 1 => {
            outer::multiply::<f32>(&product, a.ptr, b.ptr, out.ptr, par)
        }
        DType::F64 if product.k == 1 => {
            outer::multiply::<f64>(&product, a.ptr, b.ptr, out.ptr, par)
        }
        DType::F32 if row::takes(&product) => row::multiply(&product, a.ptr, b.ptr, out.ptr, par),
        DType::F32 if by_panels::pays(&product) => {
            by_panels::multiply::<f32, f32>(&product, a.ptr, b.ptr, out.ptr, par)
        }
        DType::F32 => float::<f32>(&product, a.ptr, b.ptr, out.ptr, par),
        DType::F64 => float::<f64>(&product, a.ptr, b.ptr, out.ptr, par),
        DType::F16 if out.dtype == a.dtype => {
            by_panels::multiply::<f16, f16>(&product, a.ptr, b.ptr, out.ptr, par)
        }
        DType::F16 => by_panels::multiply::<f16, f32>(&product, a.ptr, b.ptr, out.ptr, par),
        DType::BF16 if pairs::are_multiplied() => match out.dtype {
            DType::BF16 => pairs::multiply::<bf16>(&product, a.ptr, b.ptr, out.ptr, par),
            _ => pairs::multiply::<f32>(&product, a.ptr, b.ptr, out.ptr, par),
        },
        DType::BF16 if out.dtype == a.dtype => {
            by_panels::multiply::<bf16, bf16>(&product, a.ptr, b.ptr, out.ptr, par)
        }
        DType::BF16 => by_panels::multiply::<bf16, f32>(&product, a.ptr, b.ptr, out.ptr, par),
        DType::I32 => integer::integers::<i32>(&product, a.ptr, b.ptr, out.ptr, par),
        DType::I64 => integer::integers::<i64>(&product, a.ptr, b.ptr, out.ptr, par),
        DType::U8 => integer::integers::<u8>(&product, a.ptr, b.ptr, out.ptr, par),
        DType::Bool => return Err("matrix products of bool are not defined".into()),
        stored => stored.never_computed(),
    }
    Ok(())
}

impl Product {
    fn new(a: &View<'_>, b: &View<'_>, out: &[usize]) -> Product {
        let (ra, rb, rank) = (a.shape.len(), b.shape.len(), out.len());
        let (mut m, n, k) = (a.shape[ra - 2], b.shape[rb - 1], a.shape[ra - 1]);
        let mut steps_a = [a.strides[ra - 2], a.strides[ra - 1]];
        let steps_b = [b.strides[rb - 2], b.strides[rb - 1]];
        let of = |v: &View<'_>, i: usize| match (i + v.shape.len()).checked_sub(rank) {
            Some(d) if v.shape[d] != 1 => v.strides[d],
            _ => 0,
        };
        let mut step = (m * n) as isize;
        let mut batch = Nest::default();
        for i in (0..rank - 2).rev().filter(|&i| out[i] != 1) {
            batch.dims.insert(0, Dim { size: out[i], step: [step, of(a, i), of(b, i)] });
            step *= out[i] as isize;
        }
        let mut batch = batch.merged();
        // Matrices of a batch that all meet the same b, and lie under each other, are one tall
        // matrix.
        while let Some(d) = batch.dims.last()
            && d.step[2] == 0
            && (m == 1 || d.step[1] == steps_a[0] * m as isize)
        {
            if m == 1 {
                steps_a[0] = d.step[1];
            }
            m *= d.size;
            batch.dims.pop();
        }
        Product { m, n, k, batch, a: steps_a, b: steps_b, as_packed: false }
    }

    /// The sides of a piece that `gemm` multiplies. It works in tiles of 6 rows by 64 columns of a
    /// row-major output (AVX-512, f32), and computes in another order where there is one row or
    /// column, where the output has at most 256 elements, and where neither side is above 64: no
    /// piece may be so unless the whole is.
    fn library_grain(&self) -> [usize; 2] {
        let is_small = self.m.max(self.n) <= 64;
        let side = |grain: usize, other: usize| {
            let least = if other > 64 || is_small { 2 } else { 65 };
            least.max(257usize.div_ceil(other)).next_multiple_of(grain)
        };
        [side(if is_small { 6 } else { 24 }, self.n), side(64, self.m)]
    }

    /// The three matrices at a turn of the batch.
    fn at<T>(&self, turn: usize, a: Shared<T>, b: Shared<T>, out: Shared<T>) -> [Matrix<T>; 3] {
        let [o, i, j] = self.batch.at(turn);
        [
            Matrix { at: Shared::new(out.at(o)), rows: self.n as isize, cols: 1 },
            Matrix { at: Shared::new(a.at(i)), rows: self.a[0], cols: self.a[1] },
            Matrix { at: Shared::new(b.at(j)), rows: self.b[0], cols: self.b[1] },
        ]
    }
}

/// What a small product of floats reaches on one thread, in operations a nanosecond: integers reach
/// a tenth. (AVX-512: 64 x 64 in 5.3 us, so 100.)
pub(crate) fn flops_per_ns() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx512f") {
        return 100;
    }
    50
}

/// Multiply-adds below which a thread that has to wake costs more than it brings (two such parts of
/// a product with a [128, 128] 39.1, 20.7, 36.6 us, with a [256, 256] 64.9, 33.0, 51.4; of one row,
/// by the reads below, 76, 29, 45). A quarter of it is for threads that are awake: with half of
/// that a chain of products of [64, 64] took 9.4 us each on two threads of a Xeon, and 5.7 on one.
const PART: usize = 1 << 20;

/// Multiply-adds in the time in which an element comes from memory.
const READ: usize = 8;

/// The cut of a batch of outputs into pieces: `(matrix, rows, columns)` for each of `parts`.
struct Cut {
    rows: usize,
    cols: usize,
    parts: usize,
    m: usize,
    n: usize,
    grain: [usize; 2],
}

impl Cut {
    /// Pieces of the output for all threads, whose sides are multiples of `grain`, the last ones'
    /// and more.
    fn new(p: &Product, grain: [usize; 2], par: &dyn Parallel) -> Cut {
        let matrices = p.batch.numel();
        // A product with few rows or columns takes the time of reading its operands.
        let each = p.m.saturating_mul(p.n).saturating_mul(p.k.max(1));
        let each = each.saturating_add(READ.saturating_mul((p.m + p.n).saturating_mul(p.k)));
        let all = each.saturating_mul(matrices);
        let wanted = match (all / least_part(all, PART, par)).min(par.threads()) {
            0 | 1 => 1,
            many => many,
        };
        // Whole matrices first; where there are few of them, each is cut along its longer side.
        let pieces = if matrices >= 2 * wanted { 1 } else { wanted.div_ceil(matrices) };
        let most = [(p.m / grain[0]).max(1), (p.n / grain[1]).max(1)];
        let (rows, cols) = if most[1] >= pieces && p.n >= p.m || most[1] >= most[0] {
            (1, pieces.min(most[1]))
        } else {
            (pieces.min(most[0]), 1)
        };
        Cut { rows, cols, parts: matrices * rows * cols, m: p.m, n: p.n, grain }
    }

    fn piece(&self, i: usize) -> (usize, Range<usize>, Range<usize>) {
        let (row, col) = (i / self.cols % self.rows, i % self.cols);
        let side = |size: usize, grain: usize, cuts: usize, at: usize| {
            let blocks = (size / grain).max(1);
            let r = slice_of(blocks, cuts, at);
            r.start * grain..if r.end == blocks { size } else { r.end * grain }
        };
        let rows = side(self.m, self.grain[0], self.rows, row);
        (i / (self.rows * self.cols), rows, side(self.n, self.grain[1], self.cols, col))
    }

    fn run(&self, par: &dyn Parallel, f: &(dyn Fn(usize, Range<usize>, Range<usize>) + Sync)) {
        let call = |i| {
            let (matrix, rows, cols) = self.piece(i);
            f(matrix, rows, cols);
        };
        let work = self.parts > 1 && par.threads() > 1;
        if work { par.run(self.parts, &call) } else { (0..self.parts).for_each(call) }
    }
}

fn float<T: Float>(p: &Product, a: *const u8, b: *const u8, out: *mut u8, par: &dyn Parallel) {
    let (a, b, out) =
        (Shared::<T>::new(a.cast_mut()), Shared::<T>::new(b.cast_mut()), Shared::<T>::new(out));
    let cut = Cut::new(p, p.library_grain(), par);
    cut.run(par, &|matrix, rows, cols| {
        let [o, a, b] = p.at(matrix, a, b, out);
        let o = Matrix { at: Shared::new(o.from(rows.start, cols.start)), ..o };
        // The library's own blocks of k, or those of a packed weight: these it takes as they are.
        let deep = if p.as_packed { panel::depth(p.k) } else { p.k };
        let mut from = 0;
        loop {
            let deep = deep.min(p.k - from);
            let a = Matrix { at: Shared::new(a.from(rows.start, from)), ..a };
            let b = Matrix { at: Shared::new(b.from(from, cols.start)), ..b };
            let sizes = [rows.len(), cols.len(), deep];
            // SAFETY: the piece lies within the output, and no other part writes it; a and b are
            // valid at all their indices.
            let call = |b| unsafe { gemm_piece(o, a, b, sizes, from > 0) };
            let bytes = cols.len() * p.k * size_of::<T>();
            let pays = b.cols != 1 && cols.len() > 1 && rows.len() > 1 && bytes <= TURN_MAX;
            if b.rows == 1 && (pays || p.as_packed && is_few(rows.len(), cols.len())) {
                // SAFETY: b is valid over these rows and columns.
                T::turned(|buffer| call(unsafe { turn(b, buffer, deep, cols.len()) }));
            } else {
                call(b);
            }
            from += deep;
            if from >= p.k {
                break;
            }
        }
    });
}

/// So few results of a transposed right operand `gemm` computes in another order: each as the sum
/// of a register.
fn is_few(rows: usize, cols: usize) -> bool {
    rows * cols <= 256
}

/// Most bytes of a transposed operand that are turned before they are multiplied. `gemm` packs such
/// an operand element by element: one thread took 1.5 times as long for a transposed operand of
/// `[256, 256]` as for a plain one (1.1 times where it is turned first), 1.4 times at `[512, 512]`
/// (1.1), and no longer from `[1000, 1000]` on. A left operand, and a larger right one, is
/// multiplied as it lies.
const TURN_MAX: usize = 4 << 20;

/// Copies a matrix whose columns are contiguous row by row.
///
/// # Safety
/// The matrix is valid over `rows` and `cols`.
unsafe fn turn<T: Float>(from: Matrix<T>, to: &mut Vec<T>, rows: usize, cols: usize) -> Matrix<T> {
    crate::room::at_least(to, rows * cols, T::UNIT);
    vectorize!(|| {
        // Bands of 16 columns: each is read along memory, and whole cache lines are written.
        for band in (0..cols).step_by(16) {
            let wide = 16.min(cols - band);
            let first: [*mut T; 16] = std::array::from_fn(|c| from.from(0, band + c.min(wide - 1)));
            for row in 0..rows {
                let line = &mut to[row * cols + band..][..wide];
                // SAFETY: an element of the matrix.
                line.iter_mut().zip(first).for_each(|(o, column)| *o = unsafe { *column.add(row) });
            }
        }
    });
    Matrix { at: Shared::new(to.as_mut_ptr()), rows: cols as isize, cols: 1 }
}

/// What the library multiplies.
pub(super) trait Float: Copy + Send + Sync + 'static {
    const UNIT: Self;
    /// The library's product for this machine.
    fn product() -> Kernel<Self>;
    /// Lends a thread's buffer for an operand that is turned. It stays as large as it ever was.
    fn turned(f: impl FnOnce(&mut Vec<Self>));
}

/// `(m, n, k, out, out's columns' step, its rows', add, a, a's, a's, b, b's, b's, 1, 1, conjugate
/// three times, threads)`
type Kernel<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    gemm_common::Parallelism,
);

macro_rules! float {
    ($($t:ident $of:path;)*) => {$(
        impl Float for $t {
            const UNIT: $t = 1.0;
            fn product() -> Kernel<$t> {
                $of()
            }
            fn turned(f: impl FnOnce(&mut Vec<$t>)) {
                thread_local! {
                    static BUFFER: RefCell<Vec<$t>> = const { RefCell::new(Vec::new()) };
                }
                BUFFER.with_borrow_mut(f);
            }
        }
    )*};
}
float! {
    f32 gemm_f32::gemm::f32::get_gemm_fn;
    f64 gemm_f64::gemm::f64::get_gemm_fn;
}

/// `out = a b`, or `out += a b`, on this thread.
///
/// # Safety
/// The matrices, of `[m, n, k]`, are valid: `out`, whose steps are not negative, for writes (for
/// reads too if it is added to), the others for reads; `out` meets neither.
pub(super) unsafe fn gemm_piece<T: Float>(
    out: Matrix<T>,
    a: Matrix<T>,
    b: Matrix<T>,
    [m, n, k]: [usize; 3],
    add: bool,
) {
    debug_assert!(out.rows >= 0 && out.cols >= 0);
    // The library writes results column by column: one that lies row by row is the product the
    // other way round.
    let (m, n, out, mut a, mut b) = match out.cols < out.rows {
        true => (n, m, out.t(), b.t(), a.t()),
        false => (m, n, out, a, b),
    };
    // And it walks along k in the direction of memory.
    if a.cols < 0 && k > 0 {
        let last = k as isize - 1;
        a = Matrix { at: Shared::new(a.at.at(last * a.cols)), cols: -a.cols, ..a };
        b = Matrix { at: Shared::new(b.at.at(last * b.rows)), rows: -b.rows, ..b };
    }
    let (to, from, by, no) = (out.at.at(0), a.at.at(0), b.at.at(0), false);
    let (one, alone) = (T::UNIT, gemm_common::Parallelism::None);
    // SAFETY: by the caller's promise.
    unsafe {
        T::product()(
            m, n, k, to, out.cols, out.rows, add, from, a.cols, a.rows, by, b.cols, b.rows, one,
            one, no, no, no, alone,
        );
    }
}
