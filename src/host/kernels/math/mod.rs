//! The meaning of the op table's expressions on the CPU: the methods that they call, for each type.
//!
//! The loops of `elementwise` wrap an element in a [`Lane`] and evaluate the table's expression on
//! it. A lane carries the [`Simd`] level for which its loop is compiled, so that the elementary
//! functions know whether a fused multiply-add is cheap. Nothing here knows arrays.
//!
//! Semantics are PyTorch's: `maximum`, `minimum` and `relu` hand NaN on, integers wrap, the
//! remainder of an integer by zero is zero.

mod double;
mod exp;
mod fmod;
mod gamma;
mod half;
mod log;
mod poly;
mod single;
mod special;
#[cfg(test)]
mod tests;
mod trig;

pub(crate) use exp::{exp_of_difference, has_usual_exp, has_usual_exp2, usual_exp, usual_exp2};
pub(crate) use fmod::{fmod_fast, is_far};
pub(crate) use gamma::{digamma_fast, digamma_rare, is_rare_digamma};
pub(crate) use gamma::{is_rare_lgamma, lgamma_fast, lgamma_rare};
pub(crate) use half::{narrow_bf16, narrow_f16, narrow_f16s, widen_bf16, widen_f16, widen_f16s};
pub(crate) use log::{is_normal, log_of_normal, log2_of_normal, log10_of_normal};
pub(crate) use trig::{cos_fast, cos_rare, is_rare, sin_fast, sin_rare, tan_fast, tan_rare};

use crate::host::kernels::simd::Simd;
use std::marker::PhantomData;
use std::ops::{BitAnd, BitOr, BitXor};

/// One element, inside a loop compiled for the level `S`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Lane<S, T>(pub T, PhantomData<S>);

impl<S: Simd, T> Lane<S, T> {
    /// Wraps an element.
    #[inline(always)]
    pub fn new(x: T) -> Self {
        Lane(x, PhantomData)
    }
}

/// What every element type can do. On bool `add` is or, `mul` is and.
pub(crate) trait Value: Copy {
    fn add(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn maximum(self, b: Self) -> Self;
    fn minimum(self, b: Self) -> Self;
    fn eq(self, b: Self) -> bool;
    fn ne(self, b: Self) -> bool;
    fn lt(self, b: Self) -> bool;
    fn le(self, b: Self) -> bool;
    fn gt(self, b: Self) -> bool;
    fn ge(self, b: Self) -> bool;
    fn is_zero(self) -> bool;
    fn is_nan(self) -> bool;
    fn is_inf(self) -> bool;
    fn is_finite(self) -> bool;
}

/// What numbers can do; bool is not one.
pub(crate) trait Number: Value {
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    fn relu(self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn pow(self, b: Self) -> Self;
    fn fmod(self, b: Self) -> Self;
    fn remainder(self, b: Self) -> Self;
    fn floor_divide(self, b: Self) -> Self;
    fn trunc_divide(self, b: Self) -> Self;
}

/// What floating point numbers can do.
pub(crate) trait Real: Number {
    fn one(self) -> Self;
    fn div(self, b: Self) -> Self;
    fn sqrt(self) -> Self;
    fn exp(self) -> Self;
    fn exp2(self) -> Self;
    fn expm1(self) -> Self;
    fn log(self) -> Self;
    fn log2(self) -> Self;
    fn log10(self) -> Self;
    fn log1p(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tan(self) -> Self;
    fn asin(self) -> Self;
    fn acos(self) -> Self;
    fn atan(self) -> Self;
    fn sinh(self) -> Self;
    fn cosh(self) -> Self;
    fn asinh(self) -> Self;
    fn acosh(self) -> Self;
    fn atanh(self) -> Self;
    fn tanh(self) -> Self;
    fn sigmoid(self) -> Self;
    fn softplus(self) -> Self;
    fn erf(self) -> Self;
    fn erfinv(self) -> Self;
    fn lgamma(self) -> Self;
    fn digamma(self) -> Self;
    fn gelu(self) -> Self;
    fn gelu_tanh(self) -> Self;
    fn hardswish(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round(self) -> Self;
    fn trunc(self) -> Self;
    fn atan2(self, x: Self) -> Self;
    fn hypot(self, b: Self) -> Self;
}

macro_rules! compare {
    ($($name:ident $op:tt),*) => {$(
        #[inline(always)]
        fn $name(self, b: Self) -> bool { self.0 $op b.0 }
    )*};
}

macro_rules! int {
    ($($t:ty, $sign:expr;)*) => {$(
        impl<S: Simd> Value for Lane<S, $t> {
            #[inline(always)]
            fn add(self, b: Self) -> Self { Lane::new(self.0.wrapping_add(b.0)) }
            #[inline(always)]
            fn mul(self, b: Self) -> Self { Lane::new(self.0.wrapping_mul(b.0)) }
            #[inline(always)]
            fn maximum(self, b: Self) -> Self { Lane::new(if self.0 > b.0 { self.0 } else { b.0 }) }
            #[inline(always)]
            fn minimum(self, b: Self) -> Self { Lane::new(if self.0 < b.0 { self.0 } else { b.0 }) }
            compare!(eq ==, ne !=, lt <, le <=, gt >, ge >=);
            #[inline(always)]
            fn is_zero(self) -> bool { self.0 == 0 }
            #[inline(always)]
            fn is_nan(self) -> bool { false }
            #[inline(always)]
            fn is_inf(self) -> bool { false }
            #[inline(always)]
            fn is_finite(self) -> bool { true }
        }
        impl<S: Simd> Number for Lane<S, $t> {
            #[inline(always)]
            fn neg(self) -> Self { Lane::new(self.0.wrapping_neg()) }
            #[inline(always)]
            #[allow(unused_comparisons)] // u8 is never below zero.
            fn abs(self) -> Self {
                Lane::new(if self.0 < 0 { self.0.wrapping_neg() } else { self.0 })
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn sign(self) -> Self { Lane::new($sign(self.0)) }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn relu(self) -> Self { Lane::new(if self.0 < 0 { 0 } else { self.0 }) }
            #[inline(always)]
            fn sub(self, b: Self) -> Self { Lane::new(self.0.wrapping_sub(b.0)) }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn pow(self, b: Self) -> Self {
                let (mut base, mut exponent, mut power) = (self.0, b.0, 1 as $t);
                if exponent < 0 {
                    // The reciprocal, towards zero: only those of 1 and -1 are not 0 (and 1/0
                    // counts as 0).
                    let odd = exponent & 1 == 1;
                    return Lane::new(match base {
                        1 => 1,
                        _ if base == (0 as $t).wrapping_sub(1) => if odd { base } else { 1 },
                        _ => 0,
                    });
                }
                while exponent != 0 {
                    if exponent & 1 == 1 {
                        power = power.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    exponent >>= 1;
                }
                Lane::new(power)
            }
            #[inline(always)]
            fn fmod(self, b: Self) -> Self {
                Lane::new(if b.0 == 0 { 0 } else { self.0.wrapping_rem(b.0) })
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn remainder(self, b: Self) -> Self {
                let r = self.fmod(b).0;
                Lane::new(if r != 0 && ((r < 0) != (b.0 < 0)) { r.wrapping_add(b.0) } else { r })
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn floor_divide(self, b: Self) -> Self {
                let (r, q) = (self.fmod(b).0, self.trunc_divide(b).0);
                Lane::new(if r != 0 && ((r < 0) != (b.0 < 0)) { q.wrapping_sub(1) } else { q })
            }
            #[inline(always)]
            fn trunc_divide(self, b: Self) -> Self {
                Lane::new(if b.0 == 0 { 0 } else { self.0.wrapping_div(b.0) })
            }
        }
        bits!($t);
    )*};
}

macro_rules! bits {
    ($t:ty) => {
        impl<S: Simd> BitAnd for Lane<S, $t> {
            type Output = Self;
            #[inline(always)]
            fn bitand(self, b: Self) -> Self {
                Lane::new(self.0 & b.0)
            }
        }
        impl<S: Simd> BitOr for Lane<S, $t> {
            type Output = Self;
            #[inline(always)]
            fn bitor(self, b: Self) -> Self {
                Lane::new(self.0 | b.0)
            }
        }
        impl<S: Simd> BitXor for Lane<S, $t> {
            type Output = Self;
            #[inline(always)]
            fn bitxor(self, b: Self) -> Self {
                Lane::new(self.0 ^ b.0)
            }
        }
    };
}

int! {
    i32, i32::signum;
    i64, i64::signum;
    u8, |x| (x != 0) as u8;
}
bits!(bool);

impl<S: Simd> Value for Lane<S, bool> {
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Lane::new(self.0 | b.0)
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        Lane::new(self.0 & b.0)
    }
    #[inline(always)]
    fn maximum(self, b: Self) -> Self {
        Lane::new(self.0 | b.0)
    }
    #[inline(always)]
    fn minimum(self, b: Self) -> Self {
        Lane::new(self.0 & b.0)
    }
    compare!(eq ==, ne !=, lt <, le <=, gt >, ge >=);
    #[inline(always)]
    fn is_zero(self) -> bool {
        !self.0
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
    #[inline(always)]
    fn is_inf(self) -> bool {
        false
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        true
    }
}

/// What f32 and f64 share: everything that IEEE arithmetic gives directly.
macro_rules! float {
    ($($t:ty, $pow:path;)*) => {$(
        impl<S: Simd> Value for Lane<S, $t> {
            #[inline(always)]
            fn add(self, b: Self) -> Self { Lane::new(self.0 + b.0) }
            #[inline(always)]
            fn mul(self, b: Self) -> Self { Lane::new(self.0 * b.0) }
            #[inline(always)]
            fn maximum(self, b: Self) -> Self {
                let larger = if self.0 > b.0 { self.0 } else { b.0 }; // b where b is NaN
                Lane::new(if self.0.is_nan() { self.0 } else { larger })
            }
            #[inline(always)]
            fn minimum(self, b: Self) -> Self {
                let smaller = if self.0 < b.0 { self.0 } else { b.0 };
                Lane::new(if self.0.is_nan() { self.0 } else { smaller })
            }
            compare!(eq ==, ne !=, lt <, le <=, gt >, ge >=);
            #[inline(always)]
            fn is_zero(self) -> bool { self.0 == 0.0 }
            #[inline(always)]
            fn is_nan(self) -> bool { self.0.is_nan() }
            #[inline(always)]
            fn is_inf(self) -> bool { self.0.abs() == <$t>::INFINITY }
            #[inline(always)]
            fn is_finite(self) -> bool { self.0.abs() < <$t>::INFINITY }
        }
        impl<S: Simd> Number for Lane<S, $t> {
            #[inline(always)]
            fn neg(self) -> Self { Lane::new(-self.0) }
            #[inline(always)]
            fn abs(self) -> Self { Lane::new(self.0.abs()) }
            #[inline(always)]
            fn sign(self) -> Self {
                Lane::new(if self.0 > 0.0 { 1.0 } else if self.0 < 0.0 { -1.0 } else { 0.0 })
            }
            #[inline(always)]
            fn relu(self) -> Self { Lane::new(if self.0 <= 0.0 { 0.0 } else { self.0 }) }
            #[inline(always)]
            fn sub(self, b: Self) -> Self { Lane::new(self.0 - b.0) }
            #[inline(always)]
            fn pow(self, b: Self) -> Self { Lane::new($pow(self.0, b.0)) }
            #[inline(always)]
            fn fmod(self, b: Self) -> Self { Lane::new(self.0 % b.0) }
            #[inline(always)]
            fn remainder(self, b: Self) -> Self { self.fmod(b).towards(b) }
            #[inline(always)]
            fn floor_divide(self, b: Self) -> Self { self.whole(self.fmod(b), b) }
            #[inline(always)]
            fn trunc_divide(self, b: Self) -> Self { Lane::new((self.0 / b.0).trunc()) }
        }
        impl<S: Simd> Lane<S, $t> {
            /// The remainder with the sign of the divisor, of that with the dividend's.
            #[inline(always)]
            pub fn towards(self, b: Self) -> Self {
                let r = self.0;
                Lane::new(if r != 0.0 && ((r < 0.0) != (b.0 < 0.0)) { r + b.0 } else { r })
            }
            /// The quotient, rounded down, where `r` is what `fmod` leaves. As Python: what is left
            /// without the remainder divides nearly exactly, where the rounded quotient of 1 and
            /// 0.1 would be 10.
            #[inline(always)]
            pub fn whole(self, r: Self, b: Self) -> Self {
                let (r, q) = (r.0, self.0 / b.0);
                let whole = (self.0 - r) / b.0;
                let is_above = r != 0.0 && ((r < 0.0) != (b.0 < 0.0));
                let whole = if is_above { whole - 1.0 } else { whole };
                let below = whole.floor();
                let near = if whole - below > 0.5 { below + 1.0 } else { below };
                let near = if whole == 0.0 { (0.0 as $t).copysign(q) } else { near };
                Lane::new(if b.0 == 0.0 { q } else { near })
            }
        }
    )*};
}
float! {
    f32, log::pow::<S>;
    f64, f64::powf;
}
