//! The remainder of two f32, exactly, where the quotient is not too large.
//!
//! An f64 holds the quotient so well that its whole part is right, and the product of that with the
//! divisor, and the difference from the dividend, without a rounding: the same bits at every level,
//! fused or not. Free of branches; a loop mends the rare elements.

/// Quotients from here on are rare. The distance of a quotient that is not whole from the next
/// whole number is at least the last place of the divisor over the divisor, 2^-24; the rounding of
/// this one in f64 is 2^-26.
const FAR: f64 = (1u64 << 27) as f64;

/// True where [`fmod_fast`] does not hold: a finite dividend, more than 2^27 times the divisor.
#[inline(always)]
pub(crate) fn is_far(a: f32, b: f32) -> bool {
    let q = (a as f64 / b as f64).abs();
    (FAR..f64::INFINITY).contains(&q)
}

/// `a % b`, with the sign of `a`.
#[inline(always)]
pub(crate) fn fmod_fast(a: f32, b: f32) -> f32 {
    let (x, y) = (a as f64, b as f64);
    let rest = (x - (x / y).trunc() * y) as f32;
    // Within an infinite divisor too.
    let rest = if a.abs() < b.abs() { a } else { rest };
    rest.copysign(a)
}
