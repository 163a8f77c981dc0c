//! The error function of f32 and the activations made of it. Free of branches.

use super::exp::{clamp, exp_of_half_square, exp64, usual_exp};
use super::log::log_of_normal;
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
    let large = 1.0 - usual_exp::<S>(-p);
    if t < 0.92 { small } else { large.copysign(x) }
}

/// In f64, whose squares do not overflow; an infinity is longer than NaN.
#[inline(always)]
pub(super) fn hypot(a: f32, b: f32) -> f32 {
    let (x, y) = (a as f64, b as f64);
    let length = (x * x + y * y).sqrt() as f32;
    if a.abs() == f32::INFINITY || b.abs() == f32::INFINITY { f32::INFINITY } else { length }
}

/// `x p(w)` with `w = -log(1 - x^2)` (after Giles 2010, "Approximating the erfinv function"): one
/// polynomial up to w = 4, where x is 0.9908, and one up to where f32 ends below 1.
#[inline(always)]
pub(super) fn erfinv<S: Simd>(x: f32) -> f32 {
    const NEAR: [f32; 11] = [
        1.3928176,
        0.24950244,
        -0.002280333,
        -0.0016379076,
        2.1801115e-4,
        5.8044975e-6,
        -4.720968e-6,
        3.3629118e-7,
        5.9994136e-8,
        -9.849556e-9,
        0.0,
    ];
    const FAR: [f32; 11] = [
        3.0474422,
        0.15633719,
        -0.0036439807,
        1.6082916e-4,
        -7.863809e-6,
        3.0792953e-7,
        2.499976e-10,
        -2.5296185e-9,
        4.761624e-10,
        -4.1718667e-11,
        1.2220471e-12,
    ];
    let left = (1.0 - x) * (1.0 + x);
    let w = -log_of_normal::<S>(if left > 1e-8 { left } else { 1e-8 });
    let far = w > 4.0;
    // Where the first coefficients are numbers of f32, but for 2^-29.
    let t = w - if far { 10.328125 } else { 2.0625 };
    let mut p = 0.0;
    for (near, beyond) in NEAR.iter().zip(&FAR).rev() {
        p = fma::<S>(p, t, if far { *beyond } else { *near });
    }
    let edge = if x.abs() == 1.0 { f32::INFINITY.copysign(x) } else { f32::NAN };
    if x.abs() < 1.0 { x * p } else { edge }
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
