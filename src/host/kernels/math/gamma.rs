//! The logarithm of the gamma function, and its slope, of positive f32; computed in f64 inside.
//!
//! The fast paths are free of branches; a loop runs them over everything and then mends the rare
//! elements, with functions of f64 that reflect what is negative.

use super::double;
use super::log::log64;
use super::poly::{fma64, horner64, reciprocal64};
use crate::host::kernels::simd::Simd;

/// True where the fast path of `lgamma` does not hold.
#[inline(always)]
pub(crate) fn is_rare_lgamma(x: f32) -> bool {
    !(x > 0.0 && x < f32::INFINITY)
}

/// True where the fast path of `digamma` does not hold: also beside its zero, where only what f64
/// has is exact enough.
#[inline(always)]
pub(crate) fn is_rare_digamma(x: f32) -> bool {
    is_rare_lgamma(x) || (x - 1.461_632_1).abs() < 2e-4
}

#[inline(never)]
pub(crate) fn lgamma_rare(x: f32) -> f32 {
    libm::lgamma(x as f64) as f32
}

#[inline(never)]
pub(crate) fn digamma_rare(x: f32) -> f32 {
    double::digamma(x as f64) as f32
}

/// From 8 on Stirling's series, relative error 2^-40. Below, the recurrence leads to y in [1.5,
/// 2.5), and there it is `(y - 1) (y - 2)` times a polynomial in `y - 2`, relative error 2^-35.
#[inline(always)]
pub(crate) fn lgamma_fast<S: Simd>(x: f32) -> f32 {
    const HALF_LOG_TAU: f64 = 0.918_938_533_204_672_8;
    let x = x as f64;
    let (up, is_far) = (x < 1.5, x >= 8.0);
    let mut y = x + if x < 0.5 { 2.0 } else { 0.0 } + if up && x >= 0.5 { 1.0 } else { 0.0 };
    let mut factors = if up { x } else { 1.0 } * if x < 0.5 { x + 1.0 } else { 1.0 };
    for _ in 0..6 {
        let less = y - 1.0;
        let down = y >= 2.5;
        factors *= if down { less } else { 1.0 };
        y = if down { less } else { y };
    }
    let log = log64::<S>(if is_far { x } else { factors });
    let t = y - 2.0;
    let p = horner64::<S, 11>(t, NEAR_TWO);
    let near = fma64::<S>(t * (y - 1.0), p, if up { -log } else { log });
    let z = reciprocal64::<S>(x);
    let tail = horner64::<S, 4>(z * z, [1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0]);
    let far = fma64::<S>(x - 0.5, log, HALF_LOG_TAU - x) + z * tail;
    (if is_far { far } else { near }) as f32
}

/// `lgamma y / (y - 1) / (y - 2)` in powers of `y - 2`.
const NEAR_TWO: [f64; 11] = [
    0.42278433509846713,
    -0.1003173018903039,
    0.03296500072183504,
    -0.012384174964542118,
    0.004998633132553101,
    -0.0021085140532559913,
    0.0009155555689553376,
    -0.00040225296442764004,
    0.00018094248392440206,
    -9.649339339662811e-05,
    4.441220600596784e-05,
];

/// By the recurrence to 8 or more, and the series there. What the recurrence takes off is one
/// quotient.
#[inline(always)]
pub(crate) fn digamma_fast<S: Simd>(x: f32) -> f32 {
    let mut y = x as f64;
    let (mut above, mut below) = (0.0, 1.0);
    for _ in 0..8 {
        let up = y < 8.0;
        above = if up { fma64::<S>(above, y, below) } else { above };
        below *= if up { y } else { 1.0 };
        y += if up { 1.0 } else { 0.0 };
    }
    let z = reciprocal64::<S>(y);
    let s = z * z;
    let p = horner64::<S, 6>(
        s,
        [-1.0 / 12.0, 1.0 / 120.0, -1.0 / 252.0, 1.0 / 240.0, -1.0 / 132.0, 691.0 / 32760.0],
    );
    (fma64::<S>(s, p, fma64::<S>(-0.5, z, log64::<S>(y))) - above / below) as f32
}
