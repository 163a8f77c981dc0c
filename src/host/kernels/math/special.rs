//! The error function of f32 and the activations made of it. Free of branches.

use super::exp::{clamp, exp_of_half_square, exp_of_negative, exp64};
use super::log::log64;
use super::poly::{fma, fma64, horner, reciprocal64};
use crate::host::kernels::simd::Simd;

/// Up to 0.92 an odd polynomial; beyond it `1 - e^-p` with a polynomial for `-log erfc`, up to 4,
/// where the result is 1.
#[inline(always)]
pub(super) fn erf<S: Simd>(x: f32) -> f32 {
    let t = x.abs();
    let z = x * x;
    let p = horner::<S, 7>(
        z,
        [0.12837917, -0.37612635, 0.11283703, -0.0268598, 0.005201961, -0.00081526308, 8.409921e-5],
    );
    let small = fma::<S>(x, p, x);
    let t4 = clamp(t, 0.0, 4.0);
    let p = horner::<S, 8>(
        t4,
        [
            -0.0001758743,
            1.1295208,
            0.63333463,
            0.10829394,
            -0.025128623,
            0.0041746423,
            -0.00043521877,
            2.116_189_9e-5,
        ],
    );
    let large = 1.0 - exp_of_negative::<S>(-p);
    if t < 0.92 { small } else { large.copysign(x) }
}

/// In f64, whose squares do not overflow; an infinity is longer than NaN.
#[inline(always)]
pub(super) fn hypot(a: f32, b: f32) -> f32 {
    let (x, y) = (a as f64, b as f64);
    let length = (x * x + y * y).sqrt() as f32;
    if a.abs() == f32::INFINITY || b.abs() == f32::INFINITY { f32::INFINITY } else { length }
}

/// `x p(w)` with `w = -log(1 - x^2)` (after Giles 2010, "Approximating the erfinv function"), in
/// f64: one polynomial up to w = 5, where x is 0.9966, and one up to where f32 ends below 1.
#[inline(always)]
pub(super) fn erfinv<S: Simd>(x: f32) -> f32 {
    const NEAR: [f64; 13] = [
        1.5014093516951212,
        0.24664027578269898,
        -0.004177324643040629,
        -0.0012527048666228925,
        0.00021826356249966125,
        -4.998769165549129e-6,
        -3.426013682888442e-6,
        4.79702337002506e-7,
        1.6457450444339056e-8,
        -1.102376981649131e-8,
        4.3701839502015993e-10,
        1.3289079131890833e-10,
        0.0,
    ];
    const FAR: [f64; 13] = [
        2.9957459635898367,
        0.1587815648571065,
        -0.0038074102264345575,
        0.0001715220755050129,
        -8.387650412583512e-6,
        2.9454756371710614e-7,
        9.807654335427725e-9,
        -3.6163133956656316e-9,
        5.145097778040691e-10,
        -5.2367481073111e-11,
        2.813694791471887e-12,
        3.375716072361502e-14,
        -8.09978328838825e-15,
    ];
    let y = x as f64;
    let left = (1.0 - y) * (1.0 + y);
    let w = -log64::<S>(if left > 1e-8 { left } else { 1e-8 });
    let far = w > 5.0;
    let t = w - if far { 10.0 } else { 2.5 };
    let mut p = 0.0;
    for (near, beyond) in NEAR.iter().zip(&FAR).rev() {
        p = fma64::<S>(p, t, if far { *beyond } else { *near });
    }
    let inner = (y * p) as f32;
    let edge = if x.abs() == 1.0 { f32::INFINITY.copysign(x) } else { f32::NAN };
    if x.abs() < 1.0 { inner } else { edge }
}

/// `x Phi(x)` with the normal distribution `Phi(-t) = e^(-t^2/2) g(t)`, g a quotient of polynomials
/// with relative error 2^-27.3 up to 14.5, whose terms are all positive. The left tail keeps its
/// relative precision, but for what the roundings of f32 take: 7 units, 3 to the right of -1.
#[inline(always)]
pub(super) fn gelu<S: Simd>(x: f32) -> f32 {
    let t = x.abs();
    let t = if t > 14.5 { 14.5 } else { t }; // there x Phi(x) is below half the smallest f32
    let above = horner::<S, 5>(t, [0.5, 0.43829459, 0.18323487, 0.040633135, 0.004116295]);
    let below = horner::<S, 6>(t, [1.0, 1.6744741, 1.202502, 0.4694699, 0.10185861, 0.010317902]);
    let (p, power) = exp_of_half_square::<S>(t);
    let g = above / below;
    let tail = scaled_down(t * fma::<S>(g, p, g) * power);
    // Of -inf NaN, as in the formula.
    let left = if x == f32::NEG_INFINITY { f32::NAN } else { tail.copysign(x) };
    if x > 0.0 { x - tail } else { left }
}

/// `2^-64 x` for x >= 0, rounded once. A product that ends below the normal range takes processors
/// a hundred times as long as another, so none does: there the bits are how many of the smallest
/// number it is.
#[inline(always)]
fn scaled_down(x: f32) -> f32 {
    const NORMAL: f32 = f32::from_bits((127 - 62) << 23);
    let below = (x + NORMAL).to_bits().wrapping_sub(NORMAL.to_bits());
    let normal = if x < NORMAL { NORMAL } else { x } * 2f32.powi(-64);
    // The same question in whole numbers: asked of floats, it would let the compiler leave out the
    // first.
    if below < f32::MIN_POSITIVE.to_bits() { f32::from_bits(below) } else { normal }
}

/// `x (1 + tanh u) / 2 = x / (1 + e^-2u)` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`; in f64, since
/// the tail takes its relative precision from the absolute one of u.
#[inline(always)]
pub(super) fn gelu_tanh<S: Simd>(x: f32) -> f32 {
    let y = x as f64;
    let u = y * fma64::<S>(
        y * y,
        2.0 * 0.797_884_560_802_865_4 * 0.044715,
        2.0 * 0.797_884_560_802_865_4,
    );
    let t = u.abs();
    let e = exp64::<S>(-t);
    let e = if t > 110.0 { 0.0 } else { e };
    (y * (if x > 0.0 { 1.0 } else { e } * reciprocal64::<S>(1.0 + e))) as f32
}

/// The factor is exactly 1 from 3 on, so large numbers stay as they are.
#[inline(always)]
pub(super) fn hardswish(x: f32) -> f32 {
    x * (clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0))
}
