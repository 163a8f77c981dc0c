//! Scans along a dimension: the rows of `op/scan`. Floats are computed in the next wider type and
//! rounded at each element; integers and bool in int64.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::{Nest, Shared, in_parts, slice_of};
use super::{PICKED, SUMMED};
use crate::dtype::DType;
use crate::op::{Scan, for_each_scan};
use crate::view::{Parallel, View, ViewMut};
use half::{bf16, f16};

/// A type that scans are computed in.
trait Running: Copy + Sync {
    const ZERO: Self;
    const ONE: Self;
    const LOWEST: Self;
    fn plus(self, b: Self) -> Self;
    fn times(self, b: Self) -> Self;
    /// The larger; NaN if either is NaN.
    fn larger(self, b: Self) -> Self;
}

macro_rules! floats {
    ($($F:ty),*) => {$(
        impl Running for $F {
            const ZERO: $F = 0.0;
            const ONE: $F = 1.0;
            const LOWEST: $F = <$F>::NEG_INFINITY;
            #[inline(always)]
            fn plus(self, b: $F) -> $F {
                self + b
            }
            #[inline(always)]
            fn times(self, b: $F) -> $F {
                self * b
            }
            #[inline(always)]
            fn larger(self, b: $F) -> $F {
                if self.is_nan() || self > b { self } else { b }
            }
        }
    )*};
}
floats!(f32, f64);

impl Running for i64 {
    const ZERO: i64 = 0;
    const ONE: i64 = 1;
    const LOWEST: i64 = i64::MIN;
    #[inline(always)]
    fn plus(self, b: i64) -> i64 {
        self.wrapping_add(b)
    }
    #[inline(always)]
    fn times(self, b: i64) -> i64 {
        self.wrapping_mul(b)
    }
    #[inline(always)]
    fn larger(self, b: i64) -> i64 {
        Ord::max(self, b)
    }
}

macro_rules! scans {
    ($($name:ident: $Variant:ident {
        gradient: $gradient:ident,
        nothing: $nothing:ident, cpu: |$a:ident, $b:ident| $e:expr,
        $($columns:tt)*
    })*) => {
        /// `out[.., i, ..] = input[.., 0, ..]` joined with all up to `input[.., i, ..]`; the
        /// output's type is that of a sum.
        pub(crate) fn scan(
            scan: Scan,
            x: View<'_>,
            dim: usize,
            out: &ViewMut<'_>,
            par: &dyn Parallel,
        ) {
            match scan {$(
                Scan::$Variant => {
                    macro_rules! run {
                        ($T:ty as $W:ty, $O:ty, $wide:expr, $end:expr) => {{
                            let start = <$W as Running>::$nothing;
                            let wide = $wide;
                            let join = |$a: $W, $b: $W| -> $W { $e };
                            let step = |s, x| join(s, wide(x));
                            fold::<$T, $W, $O>(x, dim, out, par, start, step, $end)
                        }};
                    }
                    match x.dtype {
                        DType::F32 => run!(f32 as f64, f32, |x: f32| x as f64, |s| s as f32),
                        DType::F64 => run!(f64 as f64, f64, |x: f64| x, |s| s),
                        DType::F16 => run!(f16 as f32, f16, Load::<f32>::load, Load::<f32>::store),
                        DType::BF16 => {
                            run!(bf16 as f32, bf16, Load::<f32>::load, Load::<f32>::store)
                        }
                        DType::I32 => run!(i32 as i64, i64, |x: i32| x as i64, |s| s),
                        DType::I64 => run!(i64 as i64, i64, |x: i64| x, |s| s),
                        DType::U8 | DType::Bool => run!(u8 as i64, i64, |x: u8| x as i64, |s| s),
                    }
                }
            )*}
        }
    };
}
for_each_scan!(scans);

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
