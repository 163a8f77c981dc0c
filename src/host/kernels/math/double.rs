//! Elementary functions of f64: the standard library's, and `libm`'s where it has none or loses
//! digits near an edge.
//!
//! Called through [`Real`] only. Not vectorised: double precision is rarely what a CPU tensor is
//! for.

use super::{Lane, Real};
use crate::host::kernels::simd::Simd;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

fn sigmoid(x: f64) -> f64 {
    // e^-|x| cannot overflow, and keeps the relative precision of the left tail.
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

fn gelu(x: f64) -> f64 {
    // (1 + erf(y)) / 2 = erfc(-y) / 2, which keeps its precision where 1 + erf(y) would cancel.
    x * (0.5 * libm::erfc(-x * FRAC_1_SQRT_2))
}

fn gelu_tanh(x: f64) -> f64 {
    // (1 + tanh(u)) / 2 = sigmoid(2u).
    let u = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (x + 0.044715 * x * x * x);
    x * sigmoid(2.0 * u)
}

fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

fn acosh(x: f64) -> f64 {
    // Below 1 `libm` makes numbers of some.
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

macro_rules! real {
    ($($name:ident $f:path;)*) => {
        impl<S: Simd> Real for Lane<S, f64> {
            #[inline(always)]
            fn one(self) -> Self { Lane::new(1.0) }
            #[inline(always)]
            fn div(self, b: Self) -> Self { Lane::new(self.0 / b.0) }
            #[inline(always)]
            fn atan2(self, x: Self) -> Self { Lane::new(self.0.atan2(x.0)) }
            $(
                #[inline(always)]
                fn $name(self) -> Self { Lane::new($f(self.0)) }
            )*
        }
    };
}
real! {
    sqrt f64::sqrt;
    exp f64::exp;
    exp2 f64::exp2;
    expm1 f64::exp_m1;
    log f64::ln;
    log2 f64::log2;
    log10 f64::log10;
    log1p f64::ln_1p;
    sin f64::sin;
    cos f64::cos;
    tan f64::tan;
    asin f64::asin;
    acos f64::acos;
    atan f64::atan;
    sinh f64::sinh;
    cosh f64::cosh;
    tanh f64::tanh;
    asinh libm::asinh;
    acosh acosh;
    atanh libm::atanh;
    sigmoid sigmoid;
    softplus softplus;
    erf libm::erf;
    gelu gelu;
    gelu_tanh gelu_tanh;
    floor f64::floor;
    ceil f64::ceil;
    round f64::round_ties_even;
    trunc f64::trunc;
}
