//! The arithmetic that the elementary functions share: fused products, polynomials, a reciprocal.

use crate::host::kernels::simd::Simd;

/// `a * b + c`, fused where that is one instruction.
#[inline(always)]
pub(super) fn fma<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `a * b + c` in f64, fused where that is one instruction.
#[inline(always)]
pub(super) fn fma64<S: Simd>(a: f64, b: f64, c: f64) -> f64 {
    if S::FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `c[0] + c[1] x + c[2] x^2 + ...`
#[inline(always)]
pub(super) fn horner<S: Simd, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[N - 1];
    for i in (0..N - 1).rev() {
        y = fma::<S>(y, x, c[i]);
    }
    y
}

/// `c[0] + c[1] x + c[2] x^2 + ...` in f64.
#[inline(always)]
pub(super) fn horner64<S: Simd, const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut y = c[N - 1];
    for i in (0..N - 1).rev() {
        y = fma64::<S>(y, x, c[i]);
    }
    y
}

/// What `square`, the rounded `x * x`, has lost.
#[inline(always)]
pub(super) fn lost_of_square<S: Simd>(x: f32, square: f32) -> f32 {
    if S::FMA {
        x.mul_add(x, -square)
    } else {
        // Half of the bits of x have an exact square.
        let high = f32::from_bits(x.to_bits() & 0xffff_f000);
        (high * high - square) + (x - high) * (x + high)
    }
}

/// `1 / x` in f64 with a relative error of 2^-47, for 2^-120 < |x| < 2^120: a division of f32 and a
/// step of Newton's, which take a third of the time of a division of f64.
#[inline(always)]
pub(super) fn reciprocal64<S: Simd>(x: f64) -> f64 {
    let near = (1.0 / x as f32) as f64;
    fma64::<S>(near, fma64::<S>(-x, near, 1.0), near)
}
