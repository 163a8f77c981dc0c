//! One row of f32 by a matrix, and a matrix by one column: reading the matrix takes the time.
//!
//! A core has more on its way from memory when it reads at several places at once, so [`BANDS`]
//! rows of the matrix, as it lies, are read side by side. On two cores of a Zen 5, `gemm` before:
//! [1, 4096] by [4096, 4096] 1.9 to 2.1 ms, now 0.57 to 0.61; transposed 0.57 to 0.61, now 0.48 to
//! 0.50. A sum's order depends on k and on how the matrix lies, not on which columns a part has.

use super::super::nest::Shared;
#[cfg(target_arch = "x86_64")]
use super::super::simd::Level;
use super::super::simd::level;
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Plain};
use super::panel::{LINE, depth};
use super::{Cut, Matrix, Product};
use crate::sync::threads::thread_local;
use crate::view::Parallel;
use std::cell::RefCell;
use std::ops::Range;

/// Rows of memory that are read side by side.
const BANDS: usize = 4;
/// Terms of a lane's sum after which it is put aside, where a result's lie side by side: errors
/// grow with the length of a sum.
const DEPTH: usize = 512;
/// Sums that are kept in the first-level cache, where a result's terms lie under each other.
const WIDE: usize = 2048;

thread_local! {
    /// A row whose elements lie apart, brought together.
    static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Whether the product is one row by a matrix that lies without gaps one way or the other.
pub(super) fn takes(p: &Product) -> bool {
    let of = match (p.m, p.n) {
        (1, _) => p.b,
        (_, 1) => [p.a[1], p.a[0]],
        _ => return false,
    };
    of.contains(&1)
}

/// Multiplies what is [taken](takes).
pub(super) fn multiply(p: &Product, a: *const u8, b: *const u8, out: *mut u8, par: &dyn Parallel) {
    let (a, b, out) = (Shared::new(a.cast_mut()), Shared::new(b.cast_mut()), Shared::new(out));
    Cut::new(p, [LINE; 2], par).run(par, &|matrix, rows, cols| {
        let [out, a, b] = p.at(matrix, a, b, out);
        // A matrix by a column is a row by the matrix turned over.
        let (columns, row, matrix) = if p.m == 1 { (cols, a, b) } else { (rows, b.t(), a.t()) };
        let run = |x| Row { x, matrix, out: out.at, k: p.k }.run(columns);
        if row.cols == 1 {
            return run(row.at);
        }
        ROW.with_borrow_mut(|x| {
            x.clear();
            crate::room::reserve(x, p.k);
            // SAFETY: indices of the row.
            x.extend((0..p.k).map(|i| unsafe { *row.from(0, i) }));
            run(Shared::new(x.as_mut_ptr().cast::<u8>()));
        });
    });
}

/// `out[j]` is the sum over `k` of `x[i] * matrix[i, j]`; `x` and `out` lie without gaps. All are
/// valid, and nobody else has the columns of `out` that are asked for.
struct Row {
    x: Shared<f32>,
    matrix: Matrix<f32>,
    out: Shared<f32>,
    k: usize,
}

impl Row {
    fn run(&self, columns: Range<usize>) {
        match level() {
            // SAFETY: a `Level` is only made where the machine has it.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { self.on_avx512(columns) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { self.on_avx2(columns) },
            _ => self.columns::<Plain, 4>(columns),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512dq,avx512bw,avx512vl")]
    fn on_avx512(&self, columns: Range<usize>) {
        self.columns::<Avx512, 1>(columns);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    fn on_avx2(&self, columns: Range<usize>) {
        self.columns::<Avx2, 2>(columns);
    }

    /// `REGS` registers are a line.
    #[inline(always)]
    fn columns<L: Lanes, const REGS: usize>(&self, columns: Range<usize>) {
        if self.matrix.rows != 1 {
            for start in columns.clone().step_by(WIDE) {
                self.under_each_other::<L, REGS>(start..columns.end.min(start + WIDE));
            }
            return;
        }
        let (start, each) = (columns.start, columns.len() / BANDS);
        for i in 0..each {
            self.side_by_side::<L, REGS, BANDS>(std::array::from_fn(|band| {
                start + band * each + i
            }));
        }
        for column in start + BANDS * each..columns.end {
            self.side_by_side::<L, REGS, 1>([column]);
        }
    }

    /// Results whose terms lie side by side: a sum for each lane of a line.
    #[inline(always)]
    fn side_by_side<L: Lanes, const REGS: usize, const N: usize>(&self, columns: [usize; N]) {
        let mut totals = [0.0; N];
        for from in (0..self.k).step_by(DEPTH * LINE) {
            let end = self.k.min(from + DEPTH * LINE);
            let x = self.x.at(from as isize).cast_const();
            let rows = columns.map(|column| self.matrix.from(from, column).cast_const());
            let (whole, rest) = ((end - from) / LINE * LINE, (end - from) % LINE);
            // SAFETY: all addresses are of elements, and of lines that lie on the stack.
            unsafe {
                let mut sums = [[L::splat(0.0); REGS]; N];
                let mut add = |x: *const f32, rows: [*const f32; N]| {
                    for reg in 0..REGS {
                        let x = L::load(x.add(reg * L::WIDTH));
                        for (sums, row) in sums.iter_mut().zip(rows) {
                            sums[reg] = L::fma(L::load(row.add(reg * L::WIDTH)), x, sums[reg]);
                        }
                    }
                };
                for p in (0..whole).step_by(LINE) {
                    add(x.add(p), rows.map(|row| row.add(p)));
                }
                if rest > 0 {
                    let (x, rows) =
                        (line(x.add(whole), rest), rows.map(|row| line(row.add(whole), rest)));
                    add(x.as_ptr(), rows.each_ref().map(|row| row.as_ptr()));
                }
                for (total, mut sums) in totals.iter_mut().zip(sums) {
                    for half in [2, 1].into_iter().filter(|half| 2 * half <= REGS) {
                        for reg in 0..half {
                            sums[reg] = L::add(sums[reg], sums[reg + half]);
                        }
                    }
                    *total += L::sum(sums[0]);
                }
            }
        }
        for (column, total) in columns.into_iter().zip(totals) {
            // SAFETY: an element of `out` that is the caller's.
            unsafe { self.out.at(column as isize).write(total) };
        }
    }

    /// Results whose terms lie under each other, up to [`WIDE`] of them: in blocks of k, as with a
    /// packed weight.
    #[inline(always)]
    fn under_each_other<L: Lanes, const REGS: usize>(&self, columns: Range<usize>) {
        let mut sums = [0.0f32; WIDE];
        let deep = depth(self.k).max(1);
        for from in (0..self.k.max(1)).step_by(deep) {
            let end = self.k.min(from + deep);
            if from > 0 {
                sums[..columns.len()].fill(0.0);
            }
            let mut p = from;
            while p + BANDS <= end {
                self.add_rows::<L, REGS, BANDS>(p, &columns, &mut sums);
                p += BANDS;
            }
            for p in p..end {
                self.add_rows::<L, REGS, 1>(p, &columns, &mut sums);
            }
            let out = self.out.at(columns.start as isize);
            for (i, sum) in sums[..columns.len()].iter().enumerate() {
                // SAFETY: an element of `out` that is the caller's, and written before it is read.
                unsafe { out.add(i).write(if from == 0 { *sum } else { *out.add(i) + sum }) };
            }
        }
    }

    /// Adds `N` rows from `p` on to the sums of some columns.
    #[inline(always)]
    fn add_rows<L: Lanes, const REGS: usize, const N: usize>(
        &self,
        p: usize,
        columns: &Range<usize>,
        sums: &mut [f32; WIDE],
    ) {
        let rows: [*const f32; N] =
            std::array::from_fn(|i| self.matrix.from(p + i, columns.start).cast_const());
        let (whole, rest) = (columns.len() / LINE * LINE, columns.len() % LINE);
        // SAFETY: all addresses are of elements, of sums, and of lines that lie on the stack.
        unsafe {
            let x: [L::Register; N] =
                std::array::from_fn(|i| L::splat(*self.x.at((p + i) as isize)));
            let add = |sums: *mut f32, rows: [*const f32; N]| {
                for at in (0..REGS).map(|reg| reg * L::WIDTH) {
                    let mut sum = L::load(sums.add(at));
                    for (row, x) in rows.into_iter().zip(x) {
                        sum = L::fma(L::load(row.add(at)), x, sum);
                    }
                    L::store(sums.add(at), sum);
                }
            };
            for c in (0..whole).step_by(LINE) {
                add(sums.as_mut_ptr().add(c), rows.map(|row| row.add(c)));
            }
            if rest > 0 {
                let rows = rows.map(|row| line(row.add(whole), rest));
                add(sums.as_mut_ptr().add(whole), rows.each_ref().map(|row| row.as_ptr()));
            }
        }
    }
}

/// The beginning of a line, and zeros.
///
/// # Safety
/// `n` floats at the address are valid for reads; they are fewer than a line.
#[inline(always)]
unsafe fn line(from: *const f32, n: usize) -> [f32; LINE] {
    let mut line = [0.0; LINE];
    // SAFETY: by the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, line.as_mut_ptr(), n) };
    line
}
