//! The error function of f32 and the activations made of it. Free of branches.

use super::exp::{clamp, exp_of_negative, exp64};
use super::poly::{fma, fma64, horner, horner64, reciprocal64};
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

/// `x Phi(x)` with the normal distribution `Phi(-t) = e^(-t^2/2) g(t)`, g a polynomial in `4 / (t +
/// 4)` with relative error 2^-29.7; in f64, so that the left tail keeps its relative precision.
#[inline(always)]
pub(super) fn gelu<S: Simd>(x: f32) -> f32 {
    let y = x as f64;
    let t = y.abs();
    let v = 4.0 * reciprocal64::<S>(if t > 15.0 { 15.0 } else { t } + 4.0);
    let g = v * horner64::<S, 11>(
        v,
        [
            0.09972696051992787,
            0.0999454853056362,
            0.09124974734563135,
            0.09504885648240798,
            0.007486683414676765,
            0.19352791750187745,
            -0.2500047670263599,
            0.3375295554739715,
            -0.250364761327696,
            0.08771203053504292,
            -0.01185770764092479,
        ],
    );
    let tail = exp64::<S>(-0.5 * t * t) * g;
    let tail = if t > 14.5 { 0.0 } else { tail }; // x Phi(x) is below half the smallest f32
    (y * if x > 0.0 { 1.0 - tail } else { tail }) as f32
}

/// `x (1 + tanh u) / 2 = x / (1 + e^-2u)` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`; in f64, since
/// the tail takes its relative precision from the absolute one of u.
#[inline(always)]
pub(super) fn gelu_tanh<S: Simd>(x: f32) -> f32 {
    let y = x as f64;
    let u = y * fma64::<S>(y * y, 2.0 * 0.797_884_560_802_865_4 * 0.044715, 2.0 * 0.797_884_560_802_865_4);
    let t = u.abs();
    let e = exp64::<S>(-t);
    let e = if t > 110.0 { 0.0 } else { e };
    (y * (if x > 0.0 { 1.0 } else { e } * reciprocal64::<S>(1.0 + e))) as f32
}
