//! Logarithms of f32, and `pow`, which is made of one.
//!
//! `x = 2^k m` with m in [sqrt(1/2), sqrt 2), then a series in `m - 1` (after Moshier's Cephes; in
//! f32) or in `s = (m - 1) / (m + 1)` with `log m = 2 atanh s` (in f64). Free of branches.

use super::exp::exp2_64;
use super::poly::{fma, fma64, horner, horner64, reciprocal64};
use crate::host::kernels::simd::Simd;
use std::f32::consts::{LOG2_E, LOG10_E};

const LN2_HIGH: f32 = 0.693145751953125;
const LN2_LOW: f32 = 1.428_606_8e-6;
/// The decimal logarithm of 2 in the same way.
const LOG10_2_HIGH: f32 = 0.301025390625;
const LOG10_2_LOW: f32 = 4.605_039e-6;
/// What [`LOG2_E`] and [`LOG10_E`] lose of log2 e and log10 e.
const LOG2_E_LOW: f32 = 1.925_963e-8;
const LOG10_E_LOW: f32 = -1.010_305e-8;
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

/// `log x = k ln 2 + f + s` of a positive, normal x: f is exact, and s is at most a fifth of it.
#[derive(Clone, Copy)]
struct Series {
    k: i32,
    f: f32,
    s: f32,
}

#[inline(always)]
fn series<S: Simd>(x: f32) -> Series {
    let k = x.to_bits().wrapping_sub(CUT).cast_signed() >> 23;
    let f = f32::from_bits(x.to_bits().wrapping_sub(k.cast_unsigned() << 23)) - 1.0;
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
    let z = f * f;
    Series { k, f, s: fma::<S>(-0.5, z, f * z * p) }
}

/// The same where x may be below the normal range.
#[inline(always)]
fn series_of_any<S: Simd>(x: f32) -> Series {
    let subnormal = x < f32::MIN_POSITIVE;
    let of = series::<S>(if subnormal { x * 8388608.0 } else { x });
    Series { k: of.k - if subnormal { 23 } else { 0 }, ..of }
}

impl Series {
    /// The natural logarithm: small terms first, and `k LN2_HIGH`, which is exact, at the end.
    #[inline(always)]
    fn log<S: Simd>(self) -> f32 {
        let n = self.k as f32;
        fma::<S>(n, LN2_HIGH, self.f + fma::<S>(n, LN2_LOW, self.s))
    }

    #[inline(always)]
    fn log2<S: Simd>(self) -> f32 {
        self.k as f32 + self.scaled::<S>(LOG2_E, LOG2_E_LOW, 0.0)
    }

    #[inline(always)]
    fn log10<S: Simd>(self) -> f32 {
        let n = self.k as f32;
        let rest = self.scaled::<S>(LOG10_E, LOG10_E_LOW, n * LOG10_2_LOW);
        fma::<S>(n, LOG10_2_HIGH, rest)
    }

    /// `(f + s) (scale + rest) + more`, rounded once at the size of the first product where
    /// multiply-adds are fused.
    #[inline(always)]
    fn scaled<S: Simd>(self, scale: f32, rest: f32, more: f32) -> f32 {
        fma::<S>(self.f, scale, fma::<S>(self.s, scale, fma::<S>(self.f, rest, more)))
    }
}

#[inline(always)]
pub(super) fn log<S: Simd>(x: f32) -> f32 {
    edges(x, series_of_any::<S>(x).log::<S>())
}

/// `log x` of a positive, normal number.
#[inline(always)]
pub(crate) fn log_of_normal<S: Simd>(x: f32) -> f32 {
    series::<S>(x).log::<S>()
}

/// Whether `x` is a positive, normal number.
#[inline(always)]
pub(crate) fn is_normal(x: f32) -> bool {
    let least = f32::MIN_POSITIVE.to_bits();
    x.to_bits().wrapping_sub(least) < f32::INFINITY.to_bits() - least
}

#[inline(always)]
pub(super) fn log2<S: Simd>(x: f32) -> f32 {
    edges(x, series_of_any::<S>(x).log2::<S>())
}

/// `log2 x` of a positive, normal number.
#[inline(always)]
pub(crate) fn log2_of_normal<S: Simd>(x: f32) -> f32 {
    series::<S>(x).log2::<S>()
}

#[inline(always)]
pub(super) fn log10<S: Simd>(x: f32) -> f32 {
    edges(x, series_of_any::<S>(x).log10::<S>())
}

/// `log10 x` of a positive, normal number.
#[inline(always)]
pub(crate) fn log10_of_normal<S: Simd>(x: f32) -> f32 {
    series::<S>(x).log10::<S>()
}

/// `log u + lost / u` of the rounded sum `u = 1 + x` and what its rounding has lost.
#[inline(always)]
pub(super) fn log1p<S: Simd>(x: f32) -> f32 {
    let (high, low) = if x.abs() > 1.0 { (x, 1.0) } else { (1.0, x) };
    let u = high + low;
    let lost = low - (u - high);
    let of = series::<S>(u);
    // `1 / u` is `2^-k (1 - f + f^2)`, but for f^3, whose product with what is lost is nothing; and
    // beside the logarithm of the largest numbers all of it is nothing.
    let power = f32::from_bits((127 - if of.k > 127 { 127 } else { of.k }).cast_unsigned() << 23);
    let s = of.s + lost * power * fma::<S>(of.f, of.f - 1.0, 1.0);
    edges(u, Series { s, ..of }.log::<S>()).copysign(x) // of -0, too
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
