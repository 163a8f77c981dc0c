//! Elements and the types that they are computed in: halves in f32, small integers in wider ones.
//!
//! Called by kernels that accumulate. Conversions are free of branches, so loops over them
//! vectorise.

use super::math::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};
use half::{bf16, f16};

/// An element that is computed in `W`. `bool` is read as the byte that it is.
pub(super) trait Load<W>: Copy + Send + Sync + 'static {
    /// Whether it is that type itself.
    const IS_WIDE: bool = std::mem::size_of::<Self>() == std::mem::size_of::<W>();
    fn load(self) -> W;
    fn store(wide: W) -> Self;
}
macro_rules! load {
    ($($t:ident in $w:ident: $load:expr, $store:expr;)*) => {$(
        impl Load<$w> for $t {
            #[inline(always)] fn load(self) -> $w { ($load)(self) }
            #[inline(always)] fn store(wide: $w) -> $t { ($store)(wide) }
        }
    )*};
}
load! {
    f32 in f32: |x| x, |x| x;
    f64 in f64: |x| x, |x| x;
    f16 in f32: |x: f16| widen_f16(x.to_bits()), |x| f16::from_bits(narrow_f16(x));
    bf16 in f32: |x: bf16| widen_bf16(x.to_bits()), |x| bf16::from_bits(narrow_bf16(x));
    i64 in i64: |x| x, |x| x;
    i32 in i64: |x| x as i64, |x| x as i32;
    u8 in i64: |x| x as i64, |x| x as u8;
    i32 in i32: |x| x, |x| x;
    u8 in u8: |x| x, |x| x;
}

/// Calls a kernel that is generic over an element and what it is computed in, for a float type.
macro_rules! by_float {
    ($dtype:expr, $($f:ident)::+($($arg:expr),*)) => {
        match $dtype {
            $crate::dtype::DType::F32 => $($f)::+::<f32, f32>($($arg),*),
            $crate::dtype::DType::F64 => $($f)::+::<f64, f64>($($arg),*),
            $crate::dtype::DType::F16 => $($f)::+::<::half::f16, f32>($($arg),*),
            $crate::dtype::DType::BF16 => $($f)::+::<::half::bf16, f32>($($arg),*),
            other => {
                unreachable!("{} of {other}, which the shape rule refuses", stringify!($($f)::+))
            }
        }
    };
}
pub(super) use by_float;
