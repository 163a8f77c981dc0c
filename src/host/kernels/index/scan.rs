//! Running sums and products along a dimension. Floats are computed in the next wider type and
//! rounded at each element; integers and bool in int64.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Nest, Shared, in_parts, slice_of};
use super::{PICKED, SUMMED};
use crate::dtype::DType;
use crate::view::{Parallel, View, ViewMut};
use half::{bf16, f16};

macro_rules! running {
    ($input:ident, $dim:ident, $out:ident, $par:ident, $one:expr, $op:tt, $int:ident) => {{
        use Load as L;
        let (x, d, o, p) = ($input, $dim, $out, $par);
        match x.dtype {
            DType::F32 => {
                fold::<f32, f64, f32>(x, d, o, p, $one as f64, |s, x| s $op x as f64, |s| s as f32)
            }
            DType::F64 => fold::<f64, f64, f64>(x, d, o, p, $one as f64, |s, x| s $op x, |s| s),
            DType::F16 => {
                fold::<f16, f32, f16>(
                    x, d, o, p, $one as f32, |s, x| s $op L::<f32>::load(x), L::store
                )
            }
            DType::BF16 => {
                fold::<bf16, f32, bf16>(
                    x, d, o, p, $one as f32, |s, x| s $op L::<f32>::load(x), L::store
                )
            }
            DType::I32 => fold::<i32, i64, i64>(x, d, o, p, $one, |s, x| s.$int(x as i64), |s| s),
            DType::I64 => fold::<i64, i64, i64>(x, d, o, p, $one, i64::$int, |s| s),
            DType::U8 | DType::Bool => {
                fold::<u8, i64, i64>(x, d, o, p, $one, |s, x| s.$int(x as i64), |s| s)
            }
        }
    }};
}

/// `out[.., i, ..] = input[.., 0, ..] + ... + input[.., i, ..]`; the output's type is the sum's.
pub(crate) fn cumsum(input: View<'_>, dim: usize, out: &ViewMut<'_>, par: &dyn Parallel) {
    running!(input, dim, out, par, 0, +, wrapping_add);
}

/// `out[.., i, ..] = input[.., 0, ..] * ... * input[.., i, ..]`; the output's type is the
/// product's.
pub(crate) fn cumprod(input: View<'_>, dim: usize, out: &ViewMut<'_>, par: &dyn Parallel) {
    running!(input, dim, out, par, 1, *, wrapping_mul);
}

/// Columns that are worked on side by side.
const COLUMNS: usize = 64;

fn fold<T: Copy, W: Copy + Sync, O>(
    x: View<'_>,
    dim: usize,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
    nothing: W,
    add: impl Fn(W, T) -> W + Sync,
    end: impl Fn(W) -> O + Sync,
) {
    if out.numel() == 0 {
        return;
    }
    let (n, step) = (x.shape[dim], x.strides[dim]);
    let inner = crate::shape::numel(&x.shape[dim + 1..]);
    let outer = Nest::new(&x.shape[..dim], [&x.strides[..dim]]).merged();
    let columns = Nest::new(&x.shape[dim + 1..], [&x.strides[dim + 1..]]).merged();
    let (from, to) = (Shared::<T>::new(x.ptr.cast_mut()), Shared::<O>::new(out.ptr));
    let cuts = inner.div_ceil(COLUMNS);
    let least = if inner == 1 { PICKED } else { SUMMED };
    in_parts(outer.numel() * cuts, (least * cuts / (n * inner)).max(1), par, &|units| {
        for unit in units {
            let (cut, [offset]) = (slice_of(inner, cuts, unit % cuts), outer.at(unit / cuts));
            let first = unit / cuts * n * inner + cut.start;
            let mut at = [0isize; COLUMNS];
            if inner == 1 {
                at[0] = offset;
            } else {
                for (c, [o]) in columns.turns(cut.clone()) {
                    at[c - cut.start] = offset + o;
                }
            }
            let at = &at[..cut.len()];
            let together = at.windows(2).all(|w| w[1] == w[0] + 1);
            vectorize!(|| {
                let mut sum = [nothing; COLUMNS];
                for r in 0..n {
                    let row = r as isize * step;
                    let out = to.at((first + r * inner) as isize);
                    let mut next = |c: usize, at: isize| {
                        // SAFETY: an element of the input, and the same index of the output.
                        unsafe {
                            sum[c] = add(sum[c], *from.at(at + row));
                            out.add(c).write(end(sum[c]));
                        }
                    };
                    match together {
                        true => (0..at.len()).for_each(|c| next(c, at[0] + c as isize)),
                        false => (0..at.len()).for_each(|c| next(c, at[c])),
                    }
                }
            });
        }
    });
}
