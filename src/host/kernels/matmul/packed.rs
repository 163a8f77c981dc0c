//! A weight packed once, and its products.
//!
//! `gemm` brings its operands into order at every call, which with few rows costs as much as the
//! product, and with a transposed weight more. Here the weight is cut into panels
//! ([`panel`](super::panel)), which all rows meet, block by block. A model's weights do not fit
//! into the second-level cache, so while one panel is multiplied the next is fetched: on two cores
//! with AVX-512 a `[16, 384]` by twelve `[384, 1536]` in turn took 330 us on one thread without,
//! 230 with, `gemm` 650; with 64 to 256 rows it is a tenth ahead of `gemm`, and with thousands
//! level (on a Zen 5 ahead with these too: [1000, 1000] by [1000, 1000] 3.69 and 3.86 ms, with 4096
//! 259 and 274). Sums are blocked over k as elsewhere, so that a product does not change when its
//! weight is packed: a product that the library would compute in an order of its own is not packed,
//! or [`matmul`](super::matmul()) asks the library for this order. (One row of f32 is
//! [`row`](super::row)'s, which reads the weight as it lies.) Weights of halves stay halves, which
//! are widened on their way into a register: half the memory and half the reading, the same sums;
//! results are rounded once.

use super::super::copy::{TILE, tile};
use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Shared, in_parts, slice_of};
#[cfg(target_arch = "x86_64")]
use super::super::simd::{Level, level};
use super::pairs::{self, pack_pairs};
use super::panel::{
    BLOCK, BUNDLE, LINE, LINES_MAX, Line, Panels, ROWS_MAX, Rows, Stored, columns_of, depth,
    panels_of,
};
use super::{Matrix, PART};
use crate::dtype::DType;
use crate::graph::value::Buffer;
use crate::sync::threads::thread_local;
use crate::view::{Parallel, View, ViewMut};
use ::half::{bf16, f16};
use std::cell::RefCell;
use std::sync::Arc;

/// Whether a product of `m` rows by a `[k, n]` weight of this type and steps is the same to the bit
/// with the weight packed and not. It depends on nothing else, so all products of two values are in
/// one order.
pub(crate) fn can_be_packed(dtype: DType, [m, k, n]: [usize; 3], steps: [isize; 2]) -> bool {
    match dtype {
        // They are put into panels either way.
        DType::F16 | DType::BF16 => return n > 1,
        DType::F32 => {}
        _ => return false,
    }
    // Our sums and the library's round alike: both fused, or neither.
    #[cfg(target_arch = "x86_64")]
    if level() == Level::Baseline
        && !cfg!(target_feature = "fma")
        && std::is_x86_feature_detected!("fma")
    {
        return false;
    }
    // A single row or column is added in ways of its own, and one or two along k by the library; a
    // weight whose rows lie in reverse it reads from its end.
    m > 1 && steps[0] >= 0 && n > 1 && k > 2 && (k - 1) % depth(k) > 1
}

/// A `[k, n]` matrix in panels, of its own type.
pub(crate) struct Packed {
    memory: Arc<dyn Buffer>,
    dtype: DType,
    k: usize,
    n: usize,
    /// Whether two elements along k lie side by side (see [`pairs`](super::pairs)).
    pairs: bool,
}

impl Packed {
    /// Bytes of a `[k, n]` matrix of a type in panels.
    pub fn bytes(dtype: DType, k: usize, n: usize) -> Option<usize> {
        // Of bfloat16 two along k may lie side by side.
        let k = if dtype == DType::BF16 { k.checked_next_multiple_of(2)? } else { k };
        k.checked_mul(n.div_ceil(LINE))?.checked_mul(LINE * dtype.size())
    }

    /// Bytes that these panels take.
    #[cfg(all(test, not(futensor_loom)))]
    pub fn bytes_kept(&self) -> usize {
        Packed::bytes(self.dtype, self.k, self.n).unwrap_or(usize::MAX)
    }

    fn panels<T: Stored>(&self) -> Panels<'_, T> {
        let (pairs, n) = (self.pairs, self.n);
        let dtype = if pairs { DType::F32 } else { self.dtype };
        assert_eq!(dtype, T::DTYPE, "panels are read as what was packed");
        let k = if pairs { self.k.div_ceil(2) } else { self.k };
        let lines = n.div_ceil(LINE) * k;
        let lines = match self.memory.host() {
            // SAFETY: `pack` has seen to it that they are there, aligned, of this type, and has
            // written all of them; nobody writes them after.
            Some(at) if lines > 0 => unsafe {
                std::slice::from_raw_parts(at.cast::<Line<T>>(), lines)
            },
            _ => &[],
        };
        Panels { lines, k, n, pairs }
    }
}

/// Packs a `[k, n]` view of f32, f16 or bf16 into memory of [`Packed::bytes`], aligned to cache
/// lines, that nobody else has.
///
/// # Errors
/// For other element types or ranks, and memory that is none of this.
pub(crate) fn pack(b: View<'_>, memory: Arc<dyn Buffer>) -> Result<Packed, String> {
    let &[k, n] = b.shape else {
        return Err(format!("only matrices are packed, not {:?}", b.shape));
    };
    let to = memory.host().filter(|at| (*at as usize).is_multiple_of(64));
    let fits = Packed::bytes(b.dtype, k, n).is_some_and(|bytes| bytes <= memory.bytes());
    let (Some(to), true) = (to, fits) else {
        return Err("there is no place for the panels".into());
    };
    let pairs = b.dtype == DType::BF16 && pairs::are_multiplied();
    match b.dtype {
        DType::F32 => pack_as::<f32>(b, to),
        DType::F16 => pack_as::<f16>(b, to),
        DType::BF16 if pairs => {
            let from = matrix(&b);
            // SAFETY: a view is valid for reads, and there is room.
            unsafe { pack_pairs(from, [k, n], to.cast()) };
        }
        DType::BF16 => pack_as::<bf16>(b, to),
        other => return Err(format!("only float32 and halves are packed, not {other}")),
    }
    Ok(Packed { memory, dtype: b.dtype, k, n, pairs })
}

fn pack_as<T: Stored>(b: View<'_>, to: *mut u8) {
    // SAFETY: a view is valid for reads, and `pack` has seen to it that there is room.
    unsafe { pack_matrix::<T>(matrix(&b), [b.shape[0], b.shape[1]], to.cast()) };
}

fn matrix<T>(b: &View<'_>) -> Matrix<T> {
    Matrix { at: Shared::new(b.ptr.cast_mut()), rows: b.strides[0], cols: b.strides[1] }
}

/// Writes a `[k, n]` matrix in panels; what is near in memory is read one after the other.
///
/// # Safety
/// The matrix is valid for reads, and there is room for its panels.
pub(super) unsafe fn pack_matrix<T: Stored>(from: Matrix<T>, [k, n]: [usize; 2], to: *mut T) {
    for panel in 0..panels_of(n) {
        let columns = columns_of(n, panel);
        let (to, first) = (to.wrapping_add(columns.start * LINE * k), columns.start * LINE);
        let wide = columns.len() * LINE;
        let there = wide.min(n - first);
        // SAFETY: elements of the matrix, by the caller's promise, and of the panel, which has k
        // rows.
        unsafe {
            if from.cols == 1 {
                for p in 0..k {
                    std::ptr::copy_nonoverlapping(from.from(p, first), to.add(p * wide), there);
                }
            } else if from.rows == 1 {
                vectorize!(move || for c in (0..there).step_by(TILE) {
                    for p in (0..k).step_by(TILE) {
                        let (to, at) = (to.add(p * wide + c), from.from(p, first + c));
                        let sizes = [TILE.min(k - p), TILE.min(there - c)];
                        tile(to, at.cast_const(), wide as isize, from.cols, sizes[0], sizes[1]);
                    }
                });
            } else {
                for c in 0..there {
                    for p in 0..k {
                        to.add(p * wide + c).write(*from.from(p, first + c));
                    }
                }
            }
            for p in 0..k {
                for c in there..wide {
                    to.add(p * wide + c).write(T::from_f64(0.0));
                }
            }
        }
    }
}

/// `out[m, n] = a[m, k] x b`. `a` is of a type that can be packed, `out` of that type or in
/// float32; the rows of `a` are contiguous.
pub(crate) fn matmul_packed(a: View<'_>, b: &Packed, out: &ViewMut<'_>, par: &dyn Parallel) {
    debug_assert_eq!((a.shape[1], out.shape), (b.k, &[a.shape[0], b.n][..]));
    debug_assert!(a.strides[1] == 1 || b.k <= 1);
    let m = a.shape[0];
    use DType::{BF16, F16};
    match (a.dtype, out.dtype) {
        (F16, F16) => widened::<f16>(&a, |rows, step| all::<f16, f16>(rows, step, m, b, out, par)),
        (F16, _) => widened::<f16>(&a, |rows, step| all::<f16, f32>(rows, step, m, b, out, par)),
        (BF16, to) if b.pairs => ROWS.with_borrow_mut(|rows| {
            // SAFETY: a view is valid for reads.
            let (rows, step) = unsafe { pairs::rows(matrix(&a), [m, a.shape[1]], rows) };
            match to {
                BF16 => all::<f32, bf16>(rows, step, m, b, out, par),
                _ => all::<f32, f32>(rows, step, m, b, out, par),
            }
        }),
        (BF16, BF16) => {
            widened::<bf16>(&a, |rows, step| all::<bf16, bf16>(rows, step, m, b, out, par))
        }
        (BF16, _) => widened::<bf16>(&a, |rows, step| all::<bf16, f32>(rows, step, m, b, out, par)),
        _ => all::<f32, f32>(Shared::new(a.ptr.cast_mut()), a.strides[0], m, b, out, par),
    }
}

thread_local! {
    /// Rows of halves, widened. As large as the largest were.
    static ROWS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Lends the rows of `a` in f32, and the step from one to the next.
fn widened<T: Load<f32>>(a: &View<'_>, f: impl FnOnce(Shared<f32>, isize)) {
    let (from, [m, k]) = (Shared::<T>::new(a.ptr.cast_mut()), [a.shape[0], a.shape[1]]);
    ROWS.with_borrow_mut(|rows| {
        rows.clear();
        crate::room::reserve(rows, m * k);
        for row in 0..m as isize {
            // SAFETY: indices of the view.
            rows.extend(
                (0..k as isize).map(|p| unsafe { *from.at(row * a.strides[0] + p) }.load()),
            );
        }
        f(Shared::new(rows.as_mut_ptr().cast::<u8>()), k as isize);
    });
}

/// Every row by every panel: blocks of rows outside, panels within.
fn all<T: Stored, O: Load<f32>>(
    rows: Shared<f32>,
    step: isize,
    m: usize,
    b: &Packed,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let (panels, blocks) = (panels_of(b.n), m.div_ceil(BLOCK));
    let (by, to) = (b.panels::<T>(), Shared::<O>::new(out.ptr));
    let each = (m.div_ceil(blocks.max(1)) * by.k * LINES_MAX * LINE).max(1);
    in_parts(panels * blocks, PART.div_ceil(each), par, &|mut part| {
        while !part.is_empty() {
            let (block, panel) =
                (slice_of(m.div_ceil(ROWS_MAX), blocks, part.start / panels), part.start % panels);
            let from = block.start * ROWS_MAX;
            let rows = Rows {
                from: Shared::new(rows.at(from as isize * step)),
                step,
                high: (block.end * ROWS_MAX).min(m) - from,
                to: Shared::new(to.at((from * b.n) as isize)),
                apart: b.n,
            };
            let some = panel..panels.min(panel + BUNDLE.min(part.len()));
            part.start += some.len();
            let then = (!part.is_empty()).then_some(part.start % panels);
            // SAFETY: `matmul_packed`'s views promise rows and results; the columns of a block are
            // this part's own.
            unsafe { by.multiply::<O>(&rows, some, then) };
        }
    });
}
