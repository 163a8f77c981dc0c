//! One row of f32 by a matrix, a matrix by one column, and one row by one column: reading takes the
//! time.
//!
//! A core has more on its way from memory when it reads at several places at once, so [`BANDS`]
//! rows of the matrix, as it lies, are read side by side. On two cores of a Zen 5, `gemm` before:
//! [1, 4096] by [4096, 4096] 1.9 to 2.1 ms, now 0.57 to 0.61; transposed 0.57 to 0.61, now 0.48 to
//! 0.50. A sum's order depends on k and on how the matrix lies, not on which columns a part has.

use super::super::nest::{Shared, in_parts};
#[cfg(target_arch = "x86_64")]
use super::super::simd::Level;
use super::super::simd::level;
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Plain};
use super::panel::{LINE, depth};
use super::{Cut, Matrix, PART, Product, READ};
use crate::sync::threads::thread_local;
use crate::view::Parallel;
use std::cell::RefCell;
use std::ops::Range;

/// Rows of memory that are read side by side.
const BANDS: usize = 4;
/// Terms of a lane's sum after which it is put aside, where a result's lie side by side: errors
/// grow with the length of a sum.
const DEPTH: usize = 512;
/// So many terms.
const BLOCK: usize = DEPTH * LINE;
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
    let blocks = p.k.div_ceil(BLOCK);
    if [p.m, p.n, p.batch.numel()] == [1; 3] && [p.a[1], p.b[0]] == [1; 2] && blocks > 1 {
        // Threads have blocks of terms, whose sums are added up in order, as one thread adds them.
        let [out, x, matrix] = p.at::<f32>(0, a, b, out);
        let row = Row { x: x.at, matrix, out: out.at, k: p.k };
        let mut sums = crate::room::filled(blocks, 0.0f32);
        let to = Shared::<f32>::new(sums.as_mut_ptr());
        in_parts(blocks, PART / (2 * READ * BLOCK), par, &|part| row.run(Part::Blocks(part, to)));
        // SAFETY: the result.
        return unsafe { row.out.at(0).write(sums.iter().fold(0.0, |a, b| a + b)) };
    }
    Cut::new(p, [LINE; 2], par).run(par, &|matrix, rows, cols| {
        let [out, a, b] = p.at(matrix, a, b, out);
        // A matrix by a column is a row by the matrix turned over.
        let (columns, row, matrix) = if p.m == 1 { (cols, a, b) } else { (rows, b.t(), a.t()) };
        let run = |x| Row { x, matrix, out: out.at, k: p.k }.run(Part::Columns(columns));
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

/// What a thread does of it: some results, or the sums of some blocks of terms of the only one, to
/// where these lie.
enum Part {
    Columns(Range<usize>),
    Blocks(Range<usize>, Shared<f32>),
}

impl Row {
    fn run(&self, part: Part) {
        match level() {
            // SAFETY: a `Level` is only made where the machine has it.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { self.on_avx512(part) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { self.on_avx2(part) },
            _ => self.part::<Plain, 4>(part),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512dq,avx512bw,avx512vl")]
    fn on_avx512(&self, part: Part) {
        self.part::<Avx512, 1>(part);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    fn on_avx2(&self, part: Part) {
        self.part::<Avx2, 2>(part);
    }

    #[inline(always)]
    fn part<L: Lanes, const REGS: usize>(&self, part: Part) {
        match part {
            Part::Columns(columns) => self.columns::<L, REGS>(columns),
            Part::Blocks(blocks, to) => self.blocks::<L, REGS>(blocks, to),
        }
    }

    /// The sums of blocks of terms of the first result.
    #[inline(always)]
    fn blocks<L: Lanes, const REGS: usize>(&self, blocks: Range<usize>, to: Shared<f32>) {
        let mut next = blocks.start;
        while next < blocks.end {
            let len = BLOCK.min(self.k - next * BLOCK);
            let at = |block: usize| {
                let from = block * BLOCK;
                (self.x.at(from as isize).cast_const(), self.matrix.from(from, 0).cast_const())
            };
            // SAFETY: terms of the result, and a place for each sum.
            unsafe {
                if (next + BANDS) * BLOCK <= self.k && next + BANDS <= blocks.end {
                    let bands: [_; BANDS] = std::array::from_fn(|band| at(next + band));
                    let sums = sums_of::<L, REGS, BANDS>(bands, BLOCK);
                    to.at(next as isize).cast::<[f32; BANDS]>().write_unaligned(sums);
                    next += BANDS;
                } else {
                    let [sum] = sums_of::<L, REGS, 1>([at(next)], len);
                    to.at(next as isize).write(sum);
                    next += 1;
                }
            }
        }
    }

    /// `REGS` registers are a line.
    #[inline(always)]
    fn columns<L: Lanes, const REGS: usize>(&self, columns: Range<usize>) {
        if self.matrix.rows != 1 {
            for start in columns.clone().step_by(WIDE) {
                self.under_each_other::<L>(start..columns.end.min(start + WIDE));
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
        for from in (0..self.k).step_by(BLOCK) {
            let x = self.x.at(from as isize).cast_const();
            let rows = columns.map(|column| (x, self.matrix.from(from, column).cast_const()));
            // SAFETY: all addresses are of elements.
            let sums = unsafe { sums_of::<L, REGS, N>(rows, BLOCK.min(self.k - from)) };
            totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
        for (column, total) in columns.into_iter().zip(totals) {
            // SAFETY: an element of `out` that is the caller's.
            unsafe { self.out.at(column as isize).write(total) };
        }
    }

    /// Results whose terms lie under each other, up to [`WIDE`] of them: in blocks of k, as with a
    /// packed weight.
    #[inline(always)]
    fn under_each_other<L: Lanes>(&self, columns: Range<usize>) {
        let mut sums = [0.0f32; WIDE];
        let deep = depth(self.k).max(1);
        for from in (0..self.k.max(1)).step_by(deep) {
            let end = self.k.min(from + deep);
            if from > 0 {
                sums[..columns.len()].fill(0.0);
            }
            let mut p = from;
            while p + BANDS <= end {
                self.add_rows::<L, BANDS>(p, &columns, &mut sums);
                p += BANDS;
            }
            for p in p..end {
                self.add_rows::<L, 1>(p, &columns, &mut sums);
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
    fn add_rows<L: Lanes, const N: usize>(
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
            let mut x = [L::splat(0.0); N];
            for i in 0..N {
                x[i] = L::splat(*self.x.at((p + i) as isize));
            }
            let sums = sums.as_mut_ptr();
            for at in (0..whole).step_by(L::WIDTH) {
                let mut sum = L::load(sums.add(at));
                for i in 0..N {
                    sum = L::fma(L::load(rows[i].add(at)), x[i], sum);
                }
                L::store(sums.add(at), sum);
            }
            if rest > 0 {
                let rows = rows.map(|row| line(row.add(whole), rest));
                for at in (0..LINE).step_by(L::WIDTH) {
                    let mut sum = L::load(sums.add(whole + at));
                    for i in 0..N {
                        sum = L::fma(L::load(rows[i].as_ptr().add(at)), x[i], sum);
                    }
                    L::store(sums.add(whole + at), sum);
                }
            }
        }
    }
}

/// The sums of the products of `n` elements of each of some pairs of rows, which are read side by
/// side: a sum for each lane of a line. (Without closures: one that the compiler does not take into
/// the function is compiled without the function's instructions, and calls each of them: a million
/// elements took 961 us on a Zen 3, and take 71.)
///
/// # Safety
/// The rows have so many elements; see [`Lanes`] for the rest.
#[inline(always)]
unsafe fn sums_of<L: Lanes, const REGS: usize, const N: usize>(
    rows: [(*const f32, *const f32); N],
    n: usize,
) -> [f32; N] {
    // SAFETY: by the caller's promise; all addresses are of elements, and of lines that lie on the
    // stack.
    unsafe {
        let mut sums = [[L::splat(0.0); REGS]; N];
        let (whole, rest) = (n / LINE * LINE, n % LINE);
        for p in (0..whole).step_by(LINE) {
            for reg in 0..REGS {
                let at = p + reg * L::WIDTH;
                for r in 0..N {
                    let (x, row) = (L::load(rows[r].0.add(at)), L::load(rows[r].1.add(at)));
                    sums[r][reg] = L::fma(row, x, sums[r][reg]);
                }
            }
        }
        if rest > 0 {
            for r in 0..N {
                let (x, row) = (line(rows[r].0.add(whole), rest), line(rows[r].1.add(whole), rest));
                for reg in 0..REGS {
                    let at = reg * L::WIDTH;
                    let (x, row) = (L::load(x.as_ptr().add(at)), L::load(row.as_ptr().add(at)));
                    sums[r][reg] = L::fma(row, x, sums[r][reg]);
                }
            }
        }
        let mut totals = [0.0; N];
        for r in 0..N {
            let mut half = REGS / 2;
            while half > 0 {
                for reg in 0..half {
                    sums[r][reg] = L::add(sums[r][reg], sums[r][reg + half]);
                }
                half /= 2;
            }
            totals[r] = L::sum(sums[r][0]);
        }
        totals
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
