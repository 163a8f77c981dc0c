//! A weight packed once, and its product with few rows.
//!
//! `gemm` brings its operands into order at every call, which with few rows costs as much as the product.
//! Here the weight is cut into panels of [`WIDTH`] columns, each contiguous along k; a call reads every
//! panel once from memory and each row of `a` as it lies. Sums are blocked over k as elsewhere. Weights of
//! halves are widened as they are packed, so a product of halves takes no longer than one of f32, and is
//! rounded once.

use super::super::super::{Parallel, View, ViewMut};
use super::super::load::Load;
use super::super::nest::{Shared, in_parts};
use super::super::simd::{Level, level};
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Plain};
use crate::dtype::DType;
use ::half::{bf16, f16};
use std::cell::RefCell;

/// Columns of a panel: three 512-bit registers of f32.
const WIDTH: usize = 48;
/// Depth after which a block of sums is put aside, so that errors grow with k / DEPTH.
const DEPTH: usize = 512;
/// Rows that are taken together, at most.
const ROWS_MAX: usize = 8;
/// Multiply-adds below which a second thread does not pay.
const PART: usize = 1 << 18;

/// A `[k, n]` matrix in panels of f32.
pub(crate) struct Packed {
    panels: Vec<Line>,
    k: usize,
    n: usize,
}

/// A cache line, for alignment.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Packs a `[k, n]` view of f32, f16 or bf16.
///
/// # Errors
/// For other element types or ranks.
pub(crate) fn pack(b: View<'_>) -> Result<Packed, String> {
    match (b.shape, b.dtype) {
        (&[k, n], DType::F32) => Ok(pack_as::<f32>(b, k, n)),
        (&[k, n], DType::F16) => Ok(pack_as::<f16>(b, k, n)),
        (&[k, n], DType::BF16) => Ok(pack_as::<bf16>(b, k, n)),
        _ => Err(format!("only matrices of float32 and halves are packed, not {} {:?}", b.dtype, b.shape)),
    }
}

fn pack_as<T: Load<f32>>(b: View<'_>, k: usize, n: usize) -> Packed {
    let mut panels = vec![Line([0.0; 16]); n.div_ceil(WIDTH) * k * (WIDTH / 16)];
    let (from, [rows, cols]) = (Shared::<T>::new(b.ptr.cast_mut()), [b.strides[0], b.strides[1]]);
    for (panel, lines) in panels.chunks_mut((k * (WIDTH / 16)).max(1)).enumerate() {
        let wide = WIDTH.min(n - panel * WIDTH);
        // Columns outside, so that a transposed weight is read along memory; rows of a panel are near.
        for c in 0..wide {
            let column = (panel * WIDTH + c) as isize * cols;
            for p in 0..k {
                // SAFETY: an index of the view.
                lines[p * (WIDTH / 16) + c / 16].0[c % 16] =
                    unsafe { *from.at(p as isize * rows + column) }.load();
            }
        }
    }
    Packed { panels, k, n }
}

/// What is done to finished sums: `(row, first column, sums)`, in place.
pub(crate) type Epilogue<'a> = &'a (dyn Fn(usize, usize, &mut [f32]) + Sync);

/// `out[m, n] = a[m, k] x b`, then the epilogue on every run of finished elements. `a` and `out` are of one type,
/// one that can be packed.
pub(crate) fn matmul_packed(
    a: View<'_>,
    b: &Packed,
    out: &ViewMut<'_>,
    epilogue: Option<Epilogue<'_>>,
    par: &dyn Parallel,
) {
    match a.dtype {
        DType::F16 => packed_as::<f16>(a, b, out, epilogue, par),
        DType::BF16 => packed_as::<bf16>(a, b, out, epilogue, par),
        _ => packed_as::<f32>(a, b, out, epilogue, par),
    }
}

fn packed_as<T: Load<f32>>(
    a: View<'_>,
    b: &Packed,
    out: &ViewMut<'_>,
    epilogue: Option<Epilogue<'_>>,
    par: &dyn Parallel,
) {
    debug_assert_eq!(a.dtype, out.dtype);
    debug_assert_eq!((a.shape[1], out.shape), (b.k, &[a.shape[0], b.n][..]));
    let to = Shared::<T>::new(out.ptr);
    let each = (a.shape[0] * b.k * WIDTH).max(1);
    ROWS.with_borrow_mut(|rows| {
        gather_rows::<T>(&a, rows);
        let rows = &rows[..];
        in_parts(b.n.div_ceil(WIDTH), (PART / each).max(1), par, &|panels| {
            for panel in panels {
                let lines = &b.panels[panel * b.k * (WIDTH / 16)..][..b.k * (WIDTH / 16)];
                Panel { lines, rows, m: a.shape[0], k: b.k, col: panel * WIDTH, n: b.n, to, epilogue }.run();
            }
        });
    });
}

thread_local! {
    /// The rows of `a` in the order in which they are used. As large as the largest `a` was.
    static ROWS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// How many of `left` rows are taken together: as even as can be, so 9 are 5 and 4, not 8 and 1.
#[inline(always)]
fn group(left: usize) -> usize {
    left.div_ceil(left.div_ceil(ROWS_MAX))
}

/// Writes each group of rows column by column.
fn gather_rows<T: Load<f32>>(a: &View<'_>, rows: &mut Vec<f32>) {
    let (from, [m, k]) = (Shared::<T>::new(a.ptr.cast_mut()), [a.shape[0], a.shape[1]]);
    rows.clear();
    rows.resize(m * k, 0.0);
    let (mut row, mut rest) = (0, &mut rows[..]);
    while row < m {
        let high = group(m - row);
        let (block, more) = rest.split_at_mut(high * k);
        for r in 0..high {
            let line = (row + r) as isize * a.strides[0];
            for (p, column) in block.chunks_mut(high).enumerate() {
                // SAFETY: an index of the view.
                column[r] = unsafe { *from.at(line + p as isize * a.strides[1]) }.load();
            }
        }
        (row, rest) = (row + high, more);
    }
}

/// All rows by one panel.
struct Panel<'a, T> {
    lines: &'a [Line],
    rows: &'a [f32],
    m: usize,
    k: usize,
    col: usize,
    n: usize,
    to: Shared<T>,
    epilogue: Option<Epilogue<'a>>,
}

impl<T: Load<f32>> Panel<'_, T> {
    fn run(self) {
        match level() {
            // SAFETY: a `Level` is only made where the machine has it.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { self.on_avx512() },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { self.on_avx2() },
            _ => self.all_rows::<Plain, 1>(),
        }
    }

    // 8 rows by 3 registers are 24 sums of the 32 registers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512dq,avx512bw,avx512vl")]
    fn on_avx512(&self) {
        self.all_rows::<Avx512, 1>();
    }

    // 4 rows by 3 registers are 12 sums of 16: each group of rows in two halves, each panel in two.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    fn on_avx2(&self) {
        self.all_rows::<Avx2, 2>();
    }

    #[inline(always)]
    fn all_rows<L: Lanes, const CUTS: usize>(&self) {
        let (mut row, mut rows) = (0, self.rows);
        while row < self.m {
            let high = group(self.m - row);
            let (block, more) = rows.split_at(high * self.k);
            let mut first = 0;
            while first < high {
                let some = (high - first).div_ceil(CUTS - (CUTS > 1 && first > 0) as usize);
                match some {
                    1 => self.group::<L, 1>(block, high, first, row),
                    2 => self.group::<L, 2>(block, high, first, row),
                    3 => self.group::<L, 3>(block, high, first, row),
                    4 => self.group::<L, 4>(block, high, first, row),
                    5 if CUTS == 1 => self.group::<L, 5>(block, high, first, row),
                    6 if CUTS == 1 => self.group::<L, 6>(block, high, first, row),
                    7 if CUTS == 1 => self.group::<L, 7>(block, high, first, row),
                    _ => self.group::<L, ROWS_MAX>(block, high, first, row),
                }
                first += some;
            }
            (row, rows) = (row + high, more);
        }
    }

    /// `M` rows of a block of `high`, from `first` on, by the whole panel.
    #[inline(always)]
    fn group<L: Lanes, const M: usize>(&self, block: &[f32], high: usize, first: usize, row: usize) {
        let mut sums = [[0f32; WIDTH]; M];
        let mut depth = 0;
        while depth < self.k {
            let deep = DEPTH.min(self.k - depth);
            for third in (0..WIDTH).step_by(3 * L::WIDTH) {
                // SAFETY: the features of `L` are enabled where this is inlined, and all addresses lie
                // within the block, the panel and the sums.
                unsafe {
                    let mut acc = [[L::splat(0.0); 3]; M];
                    let mut a = block.as_ptr().add(depth * high + first);
                    let mut b = self.lines.as_ptr().add(depth * (WIDTH / 16)).cast::<f32>().add(third);
                    for _ in 0..deep {
                        let line = [L::load(b), L::load(b.add(L::WIDTH)), L::load(b.add(2 * L::WIDTH))];
                        for r in 0..M {
                            let x = L::splat(*a.add(r));
                            for c in 0..3 {
                                acc[r][c] = L::fma(x, line[c], acc[r][c]);
                            }
                        }
                        a = a.add(high);
                        b = b.add(WIDTH);
                    }
                    for r in 0..M {
                        for c in 0..3 {
                            let to = sums[r].as_mut_ptr().add(third + c * L::WIDTH);
                            L::store(to, L::add(L::load(to), acc[r][c]));
                        }
                    }
                }
            }
            depth += deep;
        }
        let wide = WIDTH.min(self.n - self.col);
        for (r, sums) in sums.iter_mut().enumerate() {
            let row = row + first + r;
            if let Some(epilogue) = self.epilogue {
                epilogue(row, self.col, &mut sums[..wide]);
            }
            let to = self.to.at((row * self.n + self.col) as isize);
            for (c, &sum) in sums[..wide].iter().enumerate() {
                // SAFETY: `wide` elements of the output's row, which belong to this panel.
                unsafe { to.add(c).write(T::store(sum)) };
            }
        }
    }
}
