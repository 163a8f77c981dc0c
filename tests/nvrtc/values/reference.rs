//! How far off a float may be.

use crate::dtype::{DType, Element};
use crate::op::Rounds;

/// Distance in units of the last place of `T`, of a number that is `got` and should be `want`.
pub fn ulps<T: Element>(got: f64, want: f64) -> f64 {
    if got == want || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    if got.is_nan() || want.is_nan() {
        return f64::INFINITY;
    }
    let (digits, least) = match T::DTYPE {
        DType::F32 => (23, -149),
        DType::F64 => (52, -1074),
        DType::F16 => (10, -24),
        _ => (7, -133),
    };
    let exponent = if want == 0.0 { -2000 } else { libm::ilogb(want) };
    let unit = libm::ldexp(1.0, (exponent - digits).max(least));
    // An overflow to infinity is off by what the largest number would be.
    let got = if got.is_infinite() && want.is_finite() {
        libm::ldexp(got.signum(), libm::ilogb(want.abs()) + 1)
    } else {
        got
    };
    ((got - want) / unit).abs()
}

/// How far an op may be off, in ulp of what it is computed in.
pub fn bound(name: &str, rounds: Rounds, dtype: DType) -> f64 {
    match name {
        "remainder" | "rsqrt" => 1.5,
        "gelu" | "gelu_tanh" if dtype == DType::F64 => 1e3, // the reference itself in the tail
        // A difference of two terms of some units, in the reference too: few digits near a zero.
        "digamma" if dtype == DType::F64 => 64.0,
        "gelu" => 7.0, // as on the CPU
        "gelu_tanh" | "silu" | "sigmoid" => 4.0,
        _ if matches!(rounds, Rounds::never | Rounds::once) => 0.5,
        _ if dtype == DType::F64 => 4.0,
        "acosh" => 4.0,
        "sinh" | "asinh" | "atanh" => 3.0,
        _ => 2.0,
    }
}
