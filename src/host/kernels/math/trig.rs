//! Sine, cosine, tangent and their inverses of f32, computed in f64 inside.
//!
//! `x = n pi/2 + r` with |r| <= pi/4: up to 2^28 pi/2 two pieces of pi/2 are enough, the first so
//! short (33 bits) that its products with n are exact (after FreeBSD's msun). Beyond that bound
//! ([`is_rare`]) the standard library's f64 functions reduce with as many bits as it takes. The
//! fast paths are free of branches; a loop runs them over everything and then mends the rare
//! elements.

use super::exp::clamp;
use super::poly::{fma64, horner, horner64, reciprocal64};
use crate::host::kernels::simd::Simd;
use std::f64::consts::{FRAC_1_PI, FRAC_2_PI, FRAC_PI_2, PI};

const ROUND64: f64 = 6755399441055744.0; // 1.5 * 2^52
const PIO2_HIGH: f64 = 1.5707963109016418;
const PIO2_LOW: f64 = 1.589_325_477_352_819_6e-8;

/// True where the fast paths do not hold: finite, and 2^28 pi/2 or more.
#[inline(always)]
pub(crate) fn is_rare(x: f32) -> bool {
    let t = x.abs();
    (4.2165736e8..f32::INFINITY).contains(&t)
}

/// `(sin r, cos r, n)`, errors 2^-37 and 2^-34.
#[inline(always)]
fn parts<S: Simd>(x: f32) -> (f64, f64, u64) {
    let x = x as f64;
    let t = fma64::<S>(x, FRAC_2_PI, ROUND64);
    let n = t - ROUND64;
    let r = fma64::<S>(n, -PIO2_LOW, fma64::<S>(n, -PIO2_HIGH, x));
    let z = r * r;
    let sin = horner64::<S, 4>(
        z,
        [
            -0.16666666641428454,
            0.008333329362486807,
            -0.00019839327198495533,
            2.7182378128295633e-6,
        ],
    );
    let cos = horner64::<S, 4>(
        z,
        [-0.499999997229294, 0.041666623066884574, -0.0013886755391618983, 2.438964005882392e-5],
    );
    (r * fma64::<S>(z, sin, 1.0), fma64::<S>(z, cos, 1.0), t.to_bits())
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

#[inline(always)]
pub(crate) fn tan_fast<S: Simd>(x: f32) -> f32 {
    let (sin, cos, n) = parts::<S>(x);
    let odd = n & 1 != 0;
    (if odd { -cos } else { sin } * reciprocal64::<S>(if odd { sin } else { cos })) as f32
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

#[inline(always)]
pub(super) fn atan<S: Simd>(x: f32) -> f32 {
    // From 1e30 on it is pi/2, and below the reciprocal holds.
    let t = clamp(x.abs(), 0.0, 1e30);
    let steep = t > 1.0;
    let t = t as f64;
    let q = if steep { reciprocal64::<S>(t) } else { t };
    let angle = arc::<S>(q);
    let angle = (if steep { FRAC_PI_2 - angle } else { angle }) as f32;
    if x.is_nan() { x } else { angle.copysign(x) }
}

/// `asin s` for s >= 0 up to 1/2, relative error 2^-31: `s` in f64, the rest of the series, which
/// is a twentieth of it, in f32.
#[inline(always)]
fn arc_of_sine<S: Simd>(s: f64, z: f32) -> f64 {
    let p = horner::<S, 6>(
        z,
        [0.1666666, 0.07500504, 0.044516955, 0.031807708, 0.01443864, 0.037516402],
    );
    fma64::<S>(s, (z * p) as f64, s)
}

/// `(is_far, angle)` for t in [0, 1]: up to 1/2 `asin t`, beyond it half of `acos t`, by
/// `sqrt((1 - t) / 2)`, the sine of half of the angle.
#[inline(always)]
fn half_angle<S: Simd>(t: f32) -> (bool, f64) {
    let far = t > 0.5;
    let z = if far { 0.5 - 0.5 * t } else { t * t }; // the former is exact
    let root = z.sqrt();
    // A step of Newton's: the root to f64's precision, for what a root of f32 takes.
    let (s, lost) = (root as f64, fma64::<S>(-(root as f64), root as f64, z as f64));
    let step = lost * (0.5 / if root > 1e-20 { root } else { 1.0 }) as f64;
    (far, arc_of_sine::<S>(if far { s + step } else { t as f64 }, z))
}

#[inline(always)]
pub(super) fn asin<S: Simd>(x: f32) -> f32 {
    let (far, angle) = half_angle::<S>(x.abs());
    let angle = if far { fma64::<S>(-2.0, angle, FRAC_PI_2) } else { angle } as f32;
    if x.abs() <= 1.0 { angle.copysign(x) } else { f32::NAN }
}

#[inline(always)]
pub(super) fn acos<S: Simd>(x: f32) -> f32 {
    let (far, angle) = half_angle::<S>(x.abs());
    let angle = if far { 2.0 * angle } else { FRAC_PI_2 - angle };
    let angle = if x < 0.0 { PI - angle } else { angle };
    if x.abs() <= 1.0 { angle as f32 } else { f32::NAN }
}
