//! A weight packed once, and its product with few rows.
//!
//! `gemm` brings its operands into order at every call, which with few rows costs as much as the product.
//! Here the weight is cut into panels of [`WIDTH`] columns, each contiguous along k; a call reads every
//! panel once from memory and each row of `a` as it lies. Sums are blocked over k as elsewhere.

use super::super::super::{Parallel, View, ViewMut};
use super::super::isa::{Levelled, at_level};
use super::super::nest::{Shared, in_parts};
use super::super::simd::Simd;
use crate::dtype::DType;

/// Columns of a panel: three 512-bit registers of f32.
const WIDTH: usize = 48;
/// Depth after which a block of sums is put aside, so that errors grow with k / DEPTH.
const DEPTH: usize = 512;
/// Multiply-adds below which a second thread does not pay.
const PART: usize = 1 << 18;

/// A `[k, n]` matrix of f32 in panels.
pub(crate) struct Packed {
    panels: Vec<Line>,
    k: usize,
    n: usize,
}

/// A cache line, for alignment.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Packs a `[k, n]` view of f32.
///
/// # Errors
/// For other element types or ranks.
pub(crate) fn pack(b: View<'_>) -> Result<Packed, String> {
    let (&[k, n], DType::F32) = (b.shape, b.dtype) else {
        return Err(format!("only matrices of float32 are packed, not {} {:?}", b.dtype, b.shape));
    };
    let mut panels = vec![Line([0.0; 16]); n.div_ceil(WIDTH) * k * (WIDTH / 16)];
    let (from, [rows, cols]) = (Shared::<f32>::new(b.ptr.cast_mut()), [b.strides[0], b.strides[1]]);
    for (panel, lines) in panels.chunks_mut((k * (WIDTH / 16)).max(1)).enumerate() {
        let wide = WIDTH.min(n - panel * WIDTH);
        // Columns outside, so that a transposed weight is read along memory; rows of a panel are near.
        for c in 0..wide {
            let column = (panel * WIDTH + c) as isize * cols;
            for p in 0..k {
                // SAFETY: an index of the view.
                lines[p * (WIDTH / 16) + c / 16].0[c % 16] = unsafe { *from.at(p as isize * rows + column) };
            }
        }
    }
    Ok(Packed { panels, k, n })
}

impl Packed {
    /// Sizes `[k, n]` of what was packed.
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.k, self.n]
    }
}

/// What is done to finished sums: `(row, first column, sums)`, in place.
pub(crate) type Epilogue<'a> = &'a (dyn Fn(usize, usize, &mut [f32]) + Sync);

/// `out[m, n] = a[m, k] x b`, then the epilogue on every run of finished elements.
pub(crate) fn matmul_packed(
    a: View<'_>,
    b: &Packed,
    out: &ViewMut<'_>,
    epilogue: Option<Epilogue<'_>>,
    par: &dyn Parallel,
) {
    debug_assert_eq!((a.dtype, out.dtype), (DType::F32, DType::F32));
    let (m, steps) = (a.shape[0], [a.strides[0], a.strides[1]]);
    debug_assert_eq!((a.shape[1], out.shape), (b.k, &[m, b.n][..]));
    let (a, to) = (Shared::<f32>::new(a.ptr.cast_mut()), Shared::<f32>::new(out.ptr));
    let each = (m * b.k * WIDTH).max(1);
    in_parts(b.n.div_ceil(WIDTH), (PART / each).max(1), par, &|panels| {
        for panel in panels {
            let lines = &b.panels[panel * b.k * (WIDTH / 16)..][..b.k * (WIDTH / 16)];
            at_level(Panel { lines, a, steps, m, k: b.k, col: panel * WIDTH, n: b.n, to, epilogue });
        }
    });
}

/// All rows by one panel.
struct Panel<'a> {
    lines: &'a [Line],
    a: Shared<f32>,
    steps: [isize; 2],
    m: usize,
    k: usize,
    col: usize,
    n: usize,
    to: Shared<f32>,
    epilogue: Option<Epilogue<'a>>,
}

impl Levelled for Panel<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut row = 0;
        while row < self.m {
            // Rows as even as can be: 9 are 5 and 4, not 8 and 1.
            let left = self.m - row;
            let high = left.div_ceil(left.div_ceil(8));
            match high {
                1 => self.rows::<S, 1>(row),
                2 => self.rows::<S, 2>(row),
                3 => self.rows::<S, 3>(row),
                4 => self.rows::<S, 4>(row),
                5 => self.rows::<S, 5>(row),
                6 => self.rows::<S, 6>(row),
                7 => self.rows::<S, 7>(row),
                _ => self.rows::<S, 8>(row),
            }
            row += high;
        }
    }
}

impl Panel<'_> {
    #[inline(always)]
    fn rows<S: Simd, const M: usize>(&self, row: usize) {
        let mut sums = [[0f32; WIDTH]; M];
        let mut depth = 0;
        while depth < self.k {
            let deep = DEPTH.min(self.k - depth);
            // Groups of 16 columns by rows: M x 3 registers of sums with AVX-512.
            let mut acc = [[[0f32; 16]; 3]; M];
            let lines = self.lines[depth * 3..(depth + deep) * 3].as_chunks::<3>().0;
            for (p, [x, y, z]) in lines.iter().enumerate() {
                for (r, acc) in acc.iter_mut().enumerate() {
                    let at = (row + r) as isize * self.steps[0] + (depth + p) as isize * self.steps[1];
                    // SAFETY: an index of `a`.
                    let a = unsafe { *self.a.at(at) };
                    for i in 0..16 {
                        acc[0][i] = fma::<S>(a, x.0[i], acc[0][i]);
                    }
                    for i in 0..16 {
                        acc[1][i] = fma::<S>(a, y.0[i], acc[1][i]);
                    }
                    for i in 0..16 {
                        acc[2][i] = fma::<S>(a, z.0[i], acc[2][i]);
                    }
                }
            }
            for (sums, acc) in sums.iter_mut().zip(&acc) {
                sums.iter_mut().zip(acc.as_flattened()).for_each(|(s, a)| *s += a);
            }
            depth += deep;
        }
        let wide = WIDTH.min(self.n - self.col);
        for (r, sums) in sums.iter_mut().enumerate() {
            if let Some(epilogue) = self.epilogue {
                epilogue(row + r, self.col, &mut sums[..wide]);
            }
            let to = self.to.at(((row + r) * self.n + self.col) as isize);
            // SAFETY: `wide` elements of the output's row, which belong to this panel.
            unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), to, wide) };
        }
    }
}

#[inline(always)]
fn fma<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::FMA { a.mul_add(b, c) } else { a * b + c }
}
