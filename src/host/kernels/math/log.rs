//! Logarithms of f32, and `pow`, which is made of one.
//!
//! `x = 2^k m` with m in [sqrt(1/2), sqrt 2), then a series in `m - 1` (after Moshier's Cephes;
//! `log` sums it in f32, `log2`, `log10` and `log1p` in f64) or in `s = (m - 1) / (m + 1)` with
//! `log m = 2 atanh s` (of f64 in the others). Free of branches.

use super::exp::exp2_64;
use super::poly::{fma, fma64, horner, horner64, reciprocal64};
use crate::host::kernels::simd::Simd;

const LN2_HIGH: f32 = 0.693145751953125;
const LN2_LOW: f32 = 1.428_606_8e-6;
/// sqrt(1/2), where the fraction is cut.
const CUT: u32 = 0x3f35_04f3;
const CUT64: u64 = 0x3fe6_a09e_0000_0000;

/// What every logarithm is at the edges: -inf at 0, NaN below, infinity and NaN as they are.
#[inline(always)]
fn edges(x: f32, y: f32) -> f32 {
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    let y = if x < 0.0 { f32::NAN } else { y };
    if x < f32::INFINITY { y } else { x } // NaN is not below infinity
}

#[inline(always)]
pub(super) fn log<S: Simd>(x: f32) -> f32 {
    let (n, f, p) = series::<S>(x);
    let z = f * f;
    // Small terms first: f^3 p + n LN2_LOW - f^2/2, then f, then n LN2_HIGH, which is exact.
    let small = fma::<S>(-0.5, z, fma::<S>(n, LN2_LOW, f * z * p));
    edges(x, fma::<S>(n, LN2_HIGH, f + small))
}

/// `(k, log m)` of a positive, normal f64; the relative error of the latter is 2^-44.
#[inline(always)]
fn split64<S: Simd>(x: f64) -> (f64, f64) {
    // The exponent, biased by 1023 so that only logical shifts are needed: AVX2 has no other.
    let k = x.to_bits().wrapping_sub(CUT64).wrapping_add(1023 << 52) >> 52;
    let m = f64::from_bits(x.to_bits().wrapping_sub(k.wrapping_sub(1023) << 52));
    // As the fraction of 2^52 it becomes a number without a conversion.
    let k = f64::from_bits(k | 4503599627370496f64.to_bits()) - (4503599627370496.0 + 1023.0);
    let s = (m - 1.0) * reciprocal64::<S>(m + 1.0);
    let z = s * s;
    let p = horner64::<S, 5>(
        z,
        [
            0.666666666758459,
            0.39999995604840055,
            0.28572111126961836,
            0.2217609991044253,
            0.1958551787395612,
        ],
    );
    (k, fma64::<S>(s * z, p, 2.0 * s))
}

/// `log x = n ln 2 + f - f^2/2 + f^3 p` of a positive number: `(n, f, p)`, p to f32's precision,
/// which is enough of it where the rest is summed in f64.
#[inline(always)]
fn series<S: Simd>(x: f32) -> (f32, f32, f32) {
    let subnormal = x < f32::MIN_POSITIVE;
    let bits = (if subnormal { x * 8388608.0 } else { x }).to_bits();
    let k = bits.wrapping_sub(CUT).cast_signed() >> 23;
    let f = f32::from_bits(bits.wrapping_sub(k.cast_unsigned() << 23)) - 1.0;
    let n = (k - if subnormal { 23 } else { 0 }) as f32;
    let p = horner::<S, 9>(
        f,
        [
            0.33333313,
            -0.25000009,
            0.20002134,
            -0.16668007,
            0.14219226,
            -0.12405136,
            0.118903145,
            -0.116796345,
            0.06746585,
        ],
    );
    (n, f, p)
}

/// `(n, log m)` in f64 of a positive `x = 2^n m`: what is rounded in f32 is a twentieth of it.
#[inline(always)]
fn split<S: Simd>(x: f32) -> (f64, f64) {
    let (n, f, p) = series::<S>(x);
    let (f, p) = (f as f64, p as f64);
    let z = f * f;
    (n as f64, fma64::<S>(z, fma64::<S>(f, p, -0.5), f))
}

#[inline(always)]
pub(super) fn log2<S: Simd>(x: f32) -> f32 {
    let (n, log) = split::<S>(x);
    edges(x, fma64::<S>(log, std::f64::consts::LOG2_E, n) as f32)
}

#[inline(always)]
pub(super) fn log10<S: Simd>(x: f32) -> f32 {
    let (n, log) = split::<S>(x);
    edges(x, fma64::<S>(n, std::f64::consts::LOG10_2, log * std::f64::consts::LOG10_E) as f32)
}

/// `log u + lost / u` of the rounded sum `u = 1 + x` and what its rounding has lost.
#[inline(always)]
pub(super) fn log1p<S: Simd>(x: f32) -> f32 {
    let (high, low) = if x.abs() > 1.0 { (x, 1.0) } else { (1.0, x) };
    let u = high + low;
    let lost = low - (u - high);
    let (n, log) = split::<S>(u);
    let large = fma64::<S>(n, std::f64::consts::LN_2, log) + (lost / u) as f64;
    // Where the quotient is much of it, two terms of the series are enough.
    let y = x as f64;
    let small = fma64::<S>(-0.5 * y, y, y);
    let y = (if x.abs() < 1e-6 { small } else { large }) as f32;
    let y = if x == -1.0 { f32::NEG_INFINITY } else { y };
    let y = if x < -1.0 { f32::NAN } else { y };
    if x < f32::INFINITY && x != 0.0 { y } else { x }
}

/// `log x` in f64 of a positive, normal number.
#[inline(always)]
pub(super) fn log64<S: Simd>(x: f64) -> f64 {
    let (k, log) = split64::<S>(x);
    fma64::<S>(k, std::f64::consts::LN_2, log)
}

/// `log(t + sqrt(t^2 + 1))` with the sign of `x`, and two terms of the series near 0.
#[inline(always)]
pub(super) fn asinh<S: Simd>(x: f32) -> f32 {
    let t = x.abs() as f64;
    let z = t * t;
    let large = log64::<S>(t + (z + 1.0).sqrt());
    let small = fma64::<S>(t * z, -1.0 / 6.0, t);
    let y = (if t < 1e-3 { small } else { large }) as f32;
    if x.abs() < f32::INFINITY { y.copysign(x) } else { x }
}

#[inline(always)]
pub(super) fn acosh<S: Simd>(x: f32) -> f32 {
    let y = x as f64;
    let y = log64::<S>(y + ((y - 1.0) * (y + 1.0)).sqrt()) as f32;
    let y = if x < 1.0 { f32::NAN } else { y };
    if x < f32::INFINITY { y } else { x }
}

/// `log((1 + t) / (1 - t)) / 2` with the sign of `x`, and two terms of the series near 0.
#[inline(always)]
pub(super) fn atanh<S: Simd>(x: f32) -> f32 {
    let t = x.abs() as f64;
    let large = 0.5 * log64::<S>((1.0 + t) * reciprocal64::<S>(1.0 - t));
    let small = fma64::<S>(t * (t * t), 1.0 / 3.0, t);
    let y = if t < 1e-3 { small } else { large };
    let y = if t == 1.0 { f64::INFINITY } else { y };
    let y = if t <= 1.0 { y } else { f64::NAN };
    (y as f32).copysign(x)
}

/// `2^(y log2 |x|)`, with the sign of an odd power and C's rules for zeros, ones and infinities.
#[inline(always)]
pub(super) fn pow<S: Simd>(x: f32, y: f32) -> f32 {
    let t = x.abs();
    let (k, log) = split64::<S>(t as f64);
    let log2 = fma64::<S>(log, std::f64::consts::LOG2_E, k);
    let log2 = if t == 0.0 { f64::NEG_INFINITY } else { log2 };
    let log2 = if t < f32::INFINITY { log2 } else { t as f64 };
    let e = y as f64 * log2;
    let e = if e > 130.0 { 130.0 } else { e };
    let e = if e < -160.0 { -160.0 } else { e };
    let power = exp2_64::<S>(e) as f32;
    // From 2^24 on every f32 is even; below, halving is exact.
    let whole = y.trunc() == y;
    let odd = whole && t_below(y) && (y * 0.5).trunc() != y * 0.5;
    let signed = if odd && x.is_sign_negative() { -power } else { power };
    let signed = if x < 0.0 && !whole && t < f32::INFINITY { f32::NAN } else { signed };
    let one = y == 0.0 || x == 1.0 || (x == -1.0 && y.abs() == f32::INFINITY);
    if one { 1.0 } else { signed }
}

#[inline(always)]
fn t_below(y: f32) -> bool {
    y.abs() < 16777216.0
}
