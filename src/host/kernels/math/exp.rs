//! Exponentials of f32 and the functions made of one: `exp exp2 expm1 tanh sigmoid softplus`.
//!
//! Each is free of branches, so that a loop over it vectorises. The scheme is the usual one: `x = n
//! ln 2 + r` with |r| <= ln 2 / 2, a polynomial for `e^r`, and `2^n` put together from bits
//! (Muller, "Elementary Functions", chapter 11). Polynomials are minimax (Remez). Where f32
//! arithmetic would not keep two units in the last place, f64 is used inside.

use super::poly::{fma, fma64, horner, horner64, lost_of_square, reciprocal64};
use crate::host::kernels::simd::Simd;
use std::f32::consts::LOG2_E;

/// 1.5 * 2^23: adding it rounds to a whole number, which then stands in the low bits.
const ROUND: f32 = 12582912.0;
/// The same for f64.
const ROUND64: f64 = 6755399441055744.0;
const SIGN: u32 = 1 << 31;
/// ln 2 with 15 bits, so that its products with n are exact, and the rest of it.
const LN2_HIGH: f32 = 0.693145751953125;
const LN2_LOW: f32 = 1.428_606_8e-6;

/// `e^r - 1` for |r| <= 0.347, before scaling. The polynomial's own error is 2^-28.3.
#[inline(always)]
fn expm1_core<S: Simd>(r: f32) -> f32 {
    let q = horner::<S, 5>(r, [0.49999994, 0.1666652, 0.04166839, 0.00836878, 0.0013814496]);
    fma::<S>(r * r, q, r)
}

/// `e^r` for the same r.
#[inline(always)]
fn exp_core<S: Simd>(r: f32) -> f32 {
    expm1_core::<S>(r) + 1.0
}

/// `p * 2^n` in two steps, so that results below the normal range, and n = 128, come out right.
#[inline(always)]
fn scale(p: f32, n: i32) -> f32 {
    let half = n >> 1;
    p * power(half) * power(n - half)
}

/// `2^n` for a normal result.
#[inline(always)]
fn power(n: i32) -> f32 {
    f32::from_bits((n + 127).cast_unsigned() << 23)
}

/// `x` kept within bounds; NaN stays.
#[inline(always)]
pub(super) fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > high { high } else { x };
    if x < low { low } else { x }
}

#[inline(always)]
pub(super) fn exp<S: Simd>(x: f32) -> f32 {
    let x = clamp(x, -104.0, 89.0); // beyond: 0 and infinity
    let t = fma::<S>(x, LOG2_E, ROUND);
    let n = t - ROUND;
    let r = fma::<S>(n, -LN2_LOW, fma::<S>(n, -LN2_HIGH, x));
    scale(exp_core::<S>(r), t.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed())
}

/// Whether [`usual_exp`] is the exponential of `x`.
#[inline(always)]
pub(crate) fn has_usual_exp(x: f32) -> bool {
    x.to_bits() & !SIGN <= 87.3f32.to_bits()
}

/// `e^x` where one multiplication scales it: for |x| up to 87.3, and a little beyond.
#[inline(always)]
pub(crate) fn usual_exp<S: Simd>(x: f32) -> f32 {
    let t = fma::<S>(x, LOG2_E, ROUND);
    let n = t - ROUND;
    let r = fma::<S>(n, -LN2_LOW, fma::<S>(n, -LN2_HIGH, x));
    let n = t.to_bits().wrapping_sub(ROUND.to_bits());
    exp_core::<S>(r) * f32::from_bits(n.wrapping_add(127) << 23)
}

/// `e^x` for x <= 0, and 0 where that is below 2^-125, where normal numbers end and two more
/// multiplications would begin. What rows are normalised by: beside the 1 of the largest element
/// such a term is nothing.
#[inline(always)]
pub(crate) fn exp_of_difference<S: Simd>(x: f32) -> f32 {
    let t = fma::<S>(x, LOG2_E, ROUND);
    let n = t - ROUND;
    let r = fma::<S>(n, -LN2_LOW, fma::<S>(n, -LN2_HIGH, x));
    // The low bits of `t` are n, and those of ROUND are zeros: they go where the exponent is.
    let power = f32::from_bits((t.to_bits() << 23).wrapping_add(1f32.to_bits()));
    if x < -86.6 { 0.0 } else { exp_core::<S>(r) * power }
}

/// `(e^r - 1, 2^(n + 64))` with `-t^2 / 2 = n ln 2 + r`, for t up to 14.6. The square is taken with
/// what its rounding loses.
#[inline(always)]
pub(super) fn exp_of_half_square<S: Simd>(t: f32) -> (f32, f32) {
    let square = t * t;
    let lost = lost_of_square::<S>(t, square);
    let k = fma::<S>(square, -0.5 * LOG2_E, ROUND);
    let n = k - ROUND;
    let r = fma::<S>(n, -LN2_LOW, fma::<S>(n, -LN2_HIGH, -0.5 * square));
    let power = f32::from_bits((k.to_bits() << 23).wrapping_add((127 + 64) << 23));
    (expm1_core::<S>(fma::<S>(lost, -0.5, r)), power)
}

/// Whether [`usual_exp2`] is `2^x`.
#[inline(always)]
pub(crate) fn has_usual_exp2(x: f32) -> bool {
    x.to_bits() & !SIGN <= 126f32.to_bits()
}

/// `2^x` where one multiplication scales it.
#[inline(always)]
pub(crate) fn usual_exp2<S: Simd>(x: f32) -> f32 {
    let t = x + ROUND;
    let r = (x - (t - ROUND)) * std::f32::consts::LN_2; // the difference is exact
    let n = t.to_bits().wrapping_sub(ROUND.to_bits());
    exp_core::<S>(r) * f32::from_bits(n.wrapping_add(127) << 23)
}

#[inline(always)]
pub(super) fn exp2<S: Simd>(x: f32) -> f32 {
    let x = clamp(x, -151.0, 129.0);
    let t = x + ROUND;
    let r = (x - (t - ROUND)) * std::f32::consts::LN_2; // the difference is exact
    scale(exp_core::<S>(r), t.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed())
}

/// `(e^r - 1, 2^n)` for `x = n ln 2 + r` in f64, relative error 2^-33; |x| < 700.
#[inline(always)]
fn split64<S: Simd>(x: f64) -> (f64, f64) {
    let t = fma64::<S>(x, std::f64::consts::LOG2_E, ROUND64);
    let n = t - ROUND64;
    let r = fma64::<S>(n, -std::f64::consts::LN_2, x);
    let q = horner64::<S, 6>(
        r,
        [
            0.5000000068030582,
            0.16666665864173466,
            0.041666293644212996,
            0.008333497740271914,
            0.001394475828165357,
            0.0001979021820147565,
        ],
    );
    let power = f64::from_bits((t.to_bits() << 52).wrapping_add(1f64.to_bits()));
    (fma64::<S>(r * r, q, r), power)
}

/// `e^x` in f64 with a relative error of 2^-33; |x| < 700.
#[inline(always)]
pub(super) fn exp64<S: Simd>(x: f64) -> f64 {
    let (p, power) = split64::<S>(x);
    fma64::<S>(p, power, power)
}

/// `2^x` in f64 with a relative error of 2^-33; |x| < 1000.
#[inline(always)]
pub(super) fn exp2_64<S: Simd>(x: f64) -> f64 {
    exp64::<S>(x * std::f64::consts::LN_2)
}

#[inline(always)]
pub(super) fn expm1<S: Simd>(x: f32) -> f32 {
    let y = clamp(x, -18.0, 89.0);
    let (p, power) = split64::<S>(y as f64);
    // For n = 0 this is p itself, with p's relative precision.
    let y = fma64::<S>(p, power, power - 1.0) as f32;
    if x == 0.0 { x } else { y } // keeps the sign of zero
}

/// `m / (m + 2)` with `m = e^2|x| - 1`, which keeps the digits of a small `x`.
#[inline(always)]
pub(super) fn tanh<S: Simd>(x: f32) -> f32 {
    let y = 2.0 * clamp(x.abs(), 0.0, 10.0);
    let t = fma::<S>(y, LOG2_E, ROUND);
    let n = t - ROUND;
    let r = fma::<S>(n, -LN2_LOW, fma::<S>(n, -LN2_HIGH, y));
    let power = f32::from_bits((t.to_bits() << 23).wrapping_add(1f32.to_bits()));
    let m = fma::<S>(expm1_core::<S>(r), power, power - 1.0);
    (m / (m + 2.0)).copysign(x)
}

/// `(m + m / (m + 1)) / 2` with `m = e^|x| - 1`, which keeps the digits of a small `x`.
#[inline(always)]
pub(super) fn sinh<S: Simd>(x: f32) -> f32 {
    let (p, power) = split64::<S>(clamp(x.abs(), 0.0, 90.0) as f64);
    let m = fma64::<S>(p, power, power - 1.0);
    let y = 0.5 * fma64::<S>(m, reciprocal64::<S>(m + 1.0), m);
    (y as f32).copysign(x)
}

#[inline(always)]
pub(super) fn cosh<S: Simd>(x: f32) -> f32 {
    let e = exp64::<S>(clamp(x.abs(), 0.0, 90.0) as f64);
    (0.5 * (e + reciprocal64::<S>(e))) as f32
}

#[inline(always)]
pub(super) fn sigmoid<S: Simd>(x: f32) -> f32 {
    // e^-|x| cannot overflow, and keeps the relative precision of the left tail.
    let e = exp::<S>(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// `max(x, 0) + log(1 + e^-|x|)`; the logarithm is `2 atanh(e / (2 + e))`.
#[inline(always)]
pub(super) fn softplus<S: Simd>(x: f32) -> f32 {
    let e = exp64::<S>(-clamp(x.abs(), 0.0, 110.0) as f64);
    let s = e * reciprocal64::<S>(2.0 + e);
    let z = s * s;
    let p = horner64::<S, 6>(
        z,
        [
            0.6666666635716421,
            0.4000005328593526,
            0.28568382819615434,
            0.22301766027907988,
            0.17145456902947828,
            0.21800348364759523,
        ],
    );
    let log1p = fma64::<S>(s * z, p, 2.0 * s);
    let y = (log1p + (if x > 0.0 { x } else { 0.0 }) as f64) as f32;
    if x.is_nan() || x > 20.0 { x } else { y }
}
