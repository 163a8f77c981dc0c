//! Sine, cosine, tangent and their inverses of f32. Angles are reduced in f64.
//!
//! `x = n pi/2 + r` with |r| <= pi/4: up to 2^28 pi/2 two pieces of pi/2 are enough, the first so
//! short (33 bits) that its products with n are exact (after FreeBSD's msun). Beyond that bound
//! ([`is_rare`]) the standard library's f64 functions reduce with as many bits as it takes. The
//! fast paths are free of branches; a loop runs them over everything and then mends the rare
//! elements.

use super::poly::{fma, fma64, horner, horner64, lost_of_square};
use crate::host::kernels::simd::Simd;
use std::f32::consts::FRAC_PI_2 as FRAC_PI_2_32;
use std::f64::consts::{FRAC_1_PI, FRAC_2_PI, FRAC_PI_2, PI};

const ROUND64: f64 = 6755399441055744.0; // 1.5 * 2^52
const PIO2_HIGH: f64 = 1.5707963109016418;
const PIO2_LOW: f64 = 1.589_325_477_352_819_6e-8;
/// What f32 loses of pi/2.
const PIO2_REST: f32 = -4.371_139e-8;

/// True where the fast paths do not hold: finite, and 2^28 pi/2 or more.
#[inline(always)]
pub(crate) fn is_rare(x: f32) -> bool {
    let t = x.abs();
    (4.2165736e8..f32::INFINITY).contains(&t)
}

#[inline(always)]
fn flip(x: f64, when: bool) -> f64 {
    f64::from_bits(x.to_bits() ^ ((when as u64) << 63))
}

/// `sin r` for |r| up to a little over pi/2, relative error 2^-35.
#[inline(always)]
fn half_wave<S: Simd>(r: f64) -> f64 {
    let z = r * r;
    let p = horner64::<S, 5>(
        z,
        [
            -0.16666666626144003,
            0.00833333110830609,
            -0.00019840868165993956,
            2.7525381980124753e-6,
            -2.388886358591836e-8,
        ],
    );
    r * fma64::<S>(z, p, 1.0)
}

/// `x = n pi + r`: one polynomial over half a wave, where a quarter needs two.
#[inline(always)]
pub(crate) fn sin_fast<S: Simd>(x: f32) -> f32 {
    let x = x as f64;
    let t = fma64::<S>(x, FRAC_1_PI, ROUND64);
    let n = t - ROUND64;
    let r = fma64::<S>(n, -2.0 * PIO2_LOW, fma64::<S>(n, -2.0 * PIO2_HIGH, x));
    flip(half_wave::<S>(r), t.to_bits() & 1 != 0) as f32
}

/// `x = (n + 1/2) pi + r`.
#[inline(always)]
pub(crate) fn cos_fast<S: Simd>(x: f32) -> f32 {
    let x = x as f64;
    let t = fma64::<S>(x, FRAC_1_PI, -0.5) + ROUND64;
    let n = fma64::<S>(t - ROUND64, 2.0, 1.0);
    let r = fma64::<S>(n, -PIO2_LOW, fma64::<S>(n, -PIO2_HIGH, x));
    flip(half_wave::<S>(r), t.to_bits() & 1 == 0) as f32
}

/// `x = n pi/2 + r`, with r in two pieces of f32: the tangent of the first, and of the second what
/// the slope makes of it, about `1 + 1.5 r^2`.
#[inline(always)]
pub(crate) fn tan_fast<S: Simd>(x: f32) -> f32 {
    let x = x as f64;
    let t = fma64::<S>(x, FRAC_2_PI, ROUND64);
    let n = t - ROUND64;
    let r = fma64::<S>(n, -PIO2_LOW, fma64::<S>(n, -PIO2_HIGH, x));
    let high = r as f32;
    let less = (high as f64 - r) as f32;
    let z = high * high;
    let p = horner::<S, 7>(
        z,
        [0.33333348, 0.13332662, 0.054060034, 0.021281555, 0.010837486, 8.73657e-5, 0.0043773695],
    );
    // (Of -0 every term is that.)
    let tan = high + fma::<S>(-less, fma::<S>(z, 1.5, 1.0), high * z * p);
    if t.to_bits() & 1 != 0 { -1.0 / tan } else { tan }
}

#[inline(never)]
pub(crate) fn sin_rare(x: f32) -> f32 {
    (x as f64).sin() as f32
}

#[inline(never)]
pub(crate) fn cos_rare(x: f32) -> f32 {
    (x as f64).cos() as f32
}

#[inline(never)]
pub(crate) fn tan_rare(x: f32) -> f32 {
    (x as f64).tan() as f32
}

/// The arc tangent of q in [0, 1].
#[inline(always)]
fn arc<S: Simd>(q: f64) -> f64 {
    let z = q * q;
    let p = horner64::<S, 10>(
        z,
        [
            -0.33333326900696775,
            0.1999967116348973,
            -0.14279833519834784,
            0.11058226316698617,
            -0.08811099859306704,
            0.0674161391061757,
            -0.044690149267039854,
            0.022540024007507917,
            -0.007318022948429952,
            0.001113800810603888,
        ],
    );
    fma64::<S>(q * z, p, q)
}

/// The angle of the point `(b, a)` in the first quadrant: the arc tangent of the smaller over the
/// larger, turned into its octant. Neither is NaN.
#[inline(always)]
fn angle<S: Simd>(a: f64, b: f64) -> f64 {
    let steep = a > b;
    let (low, high) = if steep { (b, a) } else { (a, b) };
    let q = low / high;
    let q = if low == f64::INFINITY { 1.0 } else { q };
    let q = if high == 0.0 { 0.0 } else { q };
    let angle = arc::<S>(q);
    if steep { FRAC_PI_2 - angle } else { angle }
}

#[inline(always)]
pub(super) fn atan2<S: Simd>(y: f32, x: f32) -> f32 {
    let angle = angle::<S>(y.abs() as f64, x.abs() as f64);
    let angle = if x.is_sign_negative() { PI - angle } else { angle };
    let angle = (angle as f32).copysign(y);
    if x.is_nan() || y.is_nan() { f32::NAN } else { angle }
}

/// The arc tangent of the number or of its reciprocal, whichever is at most 1, in f32.
#[inline(always)]
pub(super) fn atan<S: Simd>(x: f32) -> f32 {
    let t = x.abs();
    let steep = t > 1.0;
    let q = if steep { 1.0 / t } else { t };
    let z = q * q;
    let p = horner::<S, 9>(
        z,
        [
            -0.333333,
            0.19998549,
            -0.14264242,
            0.10952186,
            -0.08403451,
            0.057957605,
            -0.031177856,
            0.010914612,
            -0.0017936230,
        ],
    );
    let angle = q + fma::<S>(q * z, p, if steep { -PIO2_REST } else { 0.0 });
    (if steep { FRAC_PI_2_32 - angle } else { angle }).copysign(x)
}

/// `asin s - s` for s up to 1/2 with the square z, relative error 2^-27.
#[inline(always)]
fn beyond_sine<S: Simd>(s: f32, z: f32) -> f32 {
    let p = horner::<S, 5>(z, [0.16666752, 0.074952975, 0.045470376, 0.024179515, 0.042166308]);
    s * z * p
}

/// `(is_far, s, rest)` for t in [0, 1], `s + rest` the angle: up to 1/2 `asin t`, beyond it half of
/// `acos t`, by `sqrt((1 - t) / 2)`, the sine of half of the angle. There s is the rounded root.
#[inline(always)]
fn half_angle<S: Simd>(t: f32) -> (bool, f32, f32) {
    let far = t > 0.5;
    let z = if far { 0.5 - 0.5 * t } else { t * t }; // the former is exact
    let root = z.sqrt();
    // What the root has lost is half of what its square has over it. The reciprocal of the root is
    // guessed from its bits, within a sixth: the product is a few hundredths of a unit.
    let near = f32::from_bits(0x7ef3_11c7u32.wrapping_sub(root.to_bits()));
    let lost = -0.5 * near * lost_of_square::<S>(root, z);
    let s = if far { root } else { t };
    (far, s, beyond_sine::<S>(s, z) + if far { lost } else { 0.0 })
}

#[inline(always)]
pub(super) fn asin<S: Simd>(x: f32) -> f32 {
    let (far, s, rest) = half_angle::<S>(x.abs());
    let angle =
        if far { (FRAC_PI_2_32 - 2.0 * s) + fma::<S>(-2.0, rest, PIO2_REST) } else { s + rest };
    if x.abs() <= 1.0 { angle.copysign(x) } else { f32::NAN }
}

#[inline(always)]
pub(super) fn acos<S: Simd>(x: f32) -> f32 {
    let (far, s, rest) = half_angle::<S>(x.abs());
    let (s, rest) = if x < 0.0 { (-s, -rest) } else { (s, rest) };
    // `2 angle` or `pi - 2 angle` of what is far, and `pi/2 - angle` of what is not.
    let (whole, part) = if x < 0.0 { (2.0 * FRAC_PI_2_32, 2.0 * PIO2_REST) } else { (0.0, 0.0) };
    let far_angle = fma::<S>(2.0, s, whole) + fma::<S>(2.0, rest, part);
    let near_angle = FRAC_PI_2_32 - (s + (rest - PIO2_REST));
    let angle = if far { far_angle } else { near_angle };
    if x.abs() <= 1.0 { angle } else { f32::NAN }
}
