//! The elementary functions of f32, gathered into [`Real`], and the arithmetic that they share.
//!
//! Every function is within 2 units of the correctly rounded result over all floats, most within 1; `tests.rs` holds
//! them to it.

use super::{Lane, Real, exp, log, special, trig};
use crate::host::kernels::simd::Simd;

/// `a * b + c`, fused where that is one instruction.
#[inline(always)]
pub(super) fn fma<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `a * b + c` in f64, fused where that is one instruction.
#[inline(always)]
pub(super) fn fma64<S: Simd>(a: f64, b: f64, c: f64) -> f64 {
    if S::FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `c[0] + c[1] x + c[2] x^2 + ...`
#[inline(always)]
pub(super) fn horner<S: Simd, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[N - 1];
    for i in (0..N - 1).rev() {
        y = fma::<S>(y, x, c[i]);
    }
    y
}

/// `c[0] + c[1] x + c[2] x^2 + ...` in f64.
#[inline(always)]
pub(super) fn horner64<S: Simd, const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut y = c[N - 1];
    for i in (0..N - 1).rev() {
        y = fma64::<S>(y, x, c[i]);
    }
    y
}

/// `1 / x` in f64 with a relative error of 2^-47, for 2^-120 < |x| < 2^120: a division of f32 and a step of
/// Newton's, which take a third of the time of a division of f64.
#[inline(always)]
pub(super) fn reciprocal64<S: Simd>(x: f64) -> f64 {
    let near = (1.0 / x as f32) as f64;
    fma64::<S>(near, fma64::<S>(-x, near, 1.0), near)
}

macro_rules! real {
    (plain { $($name:ident $f:path;)* } rare { $($trig:ident $fast:path, $rare:path;)* }) => {
        impl<S: Simd> Real for Lane<S, f32> {
            #[inline(always)]
            fn one(self) -> Self { Lane::new(1.0) }
            #[inline(always)]
            fn div(self, b: Self) -> Self { Lane::new(self.0 / b.0) }
            #[inline(always)]
            fn atan2(self, x: Self) -> Self { Lane::new(trig::atan2::<S>(self.0, x.0)) }
            $(
                #[inline(always)]
                fn $name(self) -> Self { Lane::new($f(self.0)) }
            )*
            $(
                #[inline(always)]
                fn $trig(self) -> Self {
                    Lane::new(if trig::is_rare(self.0) { $rare(self.0) } else { $fast(self.0) })
                }
            )*
        }
    };
}
real! {
    plain {
    sqrt f32::sqrt;
    exp exp::exp::<S>;
    exp2 exp::exp2::<S>;
    expm1 exp::expm1::<S>;
    log log::log::<S>;
    log2 log::log2::<S>;
    log10 log::log10::<S>;
    log1p log::log1p::<S>;
    asin trig::asin::<S>;
    acos trig::acos::<S>;
    atan trig::atan::<S>;
    sinh exp::sinh::<S>;
    cosh exp::cosh::<S>;
    tanh exp::tanh::<S>;
    asinh log::asinh::<S>;
    acosh log::acosh::<S>;
    atanh log::atanh::<S>;
    sigmoid exp::sigmoid::<S>;
    softplus exp::softplus::<S>;
    erf special::erf::<S>;
    gelu special::gelu::<S>;
    gelu_tanh special::gelu_tanh::<S>;
    floor f32::floor;
    ceil f32::ceil;
    round f32::round_ties_even;
    trunc f32::trunc;
    }
    rare {
    sin trig::sin_fast::<S>, trig::sin_rare;
    cos trig::cos_fast::<S>, trig::cos_rare;
    tan trig::tan_fast::<S>, trig::tan_rare;
    }
}
