//! Conversions between f32 and its 16-bit relatives, without branches so that they vectorise.
//!
//! Called by the loops that load, store and round 16-bit elements. The `half` crate asks the
//! processor for its features at every element; inside a loop that is compiled for a level this is
//! faster. So are the instructions of F16C for several elements at once. The bits are the same.

#![allow(unsafe_code)]

use crate::host::kernels::simd::Simd;

/// The value of an IEEE half.
#[inline(always)]
pub(crate) fn widen_f16(bits: u16) -> f32 {
    let sign = ((bits & 0x8000) as u32) << 16;
    let magnitude = ((bits & 0x7fff) as u32) << 13;
    // Exponent and fraction in place, the exponent too small by 112; a power of two sets it right,
    // also for subnormal halves. What was infinite or NaN has the largest exponent before: it stays
    // so, and a NaN becomes quiet, as the instruction has it.
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    let wide = f32::from_bits(magnitude | special) * 5.192296858534828e33/* 2^112 */;
    f32::from_bits(sign | wide.to_bits())
}

/// The nearest half, ties to even.
#[inline(always)]
pub(crate) fn narrow_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // A normal result: rebias and round by adding just under half a unit, plus one where the last
    // kept bit is odd. The carry may run into the exponent, up to infinity.
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_add(0xc800_0fff).wrapping_add(odd) >> 13;
    // A subnormal result: beside 0.5 the last place is 2^-24, so the addition itself rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let rounded = if magnitude < 0x3880_0000 { subnormal } else { normal };
    (sign | if magnitude >= 0x4780_0000 { special } else { rounded }) as u16
}

/// [`widen_f16`] of halves that lie side by side.
///
/// # Safety
/// There are `N`, and the machine has what the level says.
#[inline(always)]
pub(crate) unsafe fn widen_f16s<S: Simd, const N: usize>(from: *const u16) -> [f32; N] {
    let mut wide = [0.0; N];
    // SAFETY: by the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if S::F16C && N.is_multiple_of(8) {
            use std::arch::x86_64::*;
            for at in (0..N).step_by(8) {
                let eight = _mm256_cvtph_ps(_mm_loadu_si128(from.add(at).cast()));
                _mm256_storeu_ps(wide.as_mut_ptr().add(at), eight);
            }
            return wide;
        }
        for i in 0..N {
            wide[i] = widen_f16(*from.add(i));
        }
    }
    wide
}

/// [`narrow_f16`] of floats, written side by side.
///
/// # Safety
/// There is room for `N`, and the machine has what the level says.
#[inline(always)]
pub(crate) unsafe fn narrow_f16s<S: Simd, const N: usize>(wide: [f32; N], to: *mut u16) {
    // SAFETY: by the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if S::F16C && N.is_multiple_of(8) {
            use std::arch::x86_64::*;
            for at in (0..N).step_by(8) {
                let x = _mm256_loadu_ps(wide.as_ptr().add(at));
                // The instruction would keep more of a NaN than its sign.
                let sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0));
                let nan = _mm256_or_ps(sign, _mm256_set1_ps(f32::from_bits(0x7fc0_0000)));
                let x = _mm256_blendv_ps(x, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
                let eight = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
                _mm_storeu_si128(to.add(at).cast(), eight);
            }
            return;
        }
        for i in 0..N {
            to.add(i).write(narrow_f16(wide[i]));
        }
    }
}

/// The value of a bfloat16.
#[inline(always)]
pub(crate) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The nearest bfloat16, ties to even.
#[inline(always)]
pub(crate) fn narrow_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff).wrapping_add(odd) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if x.is_nan() { nan } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float8::narrow_odd;
    use crate::host::kernels::isa::{Levelled, at_level};
    use crate::host::kernels::simd::{FORCED, Level};
    use half::{bf16, f16};

    #[test]
    fn every_half_widens_as_the_half_crate_has_it() {
        for bits in 0..=u16::MAX {
            let (a, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            let same = |x: f32, y: f32| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
            assert!(same(widen_f16(bits), a.to_f32()), "{bits:#x}");
            assert!(!a.is_nan() || widen_f16(bits).to_bits() & 0x0040_0000 != 0, "{bits:#x}");
            assert!(same(widen_bf16(bits), b.to_f32()), "{bits:#x}");
            if !a.is_nan() {
                assert_eq!(narrow_f16(a.to_f32()), bits);
            }
            if !b.is_nan() {
                assert_eq!(narrow_bf16(b.to_f32()), bits);
            }
        }
    }

    struct Halves<'a>(&'a [u16; 16], &'a [f32; 16]);
    impl Levelled for Halves<'_> {
        type Out = ([f32; 16], [u16; 16]);
        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Out {
            let mut narrow = [0; 16];
            // SAFETY: sixteen each, at a level that the machine has.
            unsafe {
                narrow_f16s::<S, 16>(*self.1, narrow.as_mut_ptr());
                (widen_f16s::<S, 16>(self.0.as_ptr()), narrow)
            }
        }
    }

    #[test]
    fn several_at_once_have_the_bits_of_each_at_every_level() {
        for level in Level::available() {
            FORCED.set(Some(level));
            for first in (0..=u16::MAX).step_by(16) {
                let halves: [u16; 16] = std::array::from_fn(|i| first + i as u16);
                // Floats beside each half, ties among them, and NaNs of every kind.
                let by = [0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000];
                for by in by {
                    let floats = halves.map(|h| f32::from_bits(widen_f16(h).to_bits() ^ by));
                    let (wide, narrow) = at_level(Halves(&halves, &floats));
                    assert_eq!(wide.map(f32::to_bits), halves.map(|h| widen_f16(h).to_bits()));
                    assert_eq!(narrow, floats.map(narrow_f16), "{floats:?}");
                }
            }
        }
        FORCED.set(None);
    }

    #[test]
    fn floats_narrow_to_the_nearest_half_ties_to_even() {
        for bits in (0..=u32::MAX).step_by(9973) {
            for bits in [bits, bits & 0xffff_f000, bits & 0xffff_f000 | 1, bits & 0xffff_8000] {
                let x = f32::from_bits(bits);
                let (a, b) = (f16::from_bits(narrow_f16(x)), bf16::from_bits(narrow_bf16(x)));
                assert!(
                    a.to_bits() == f16::from_f32(x).to_bits() || (x.is_nan() && a.is_nan()),
                    "{bits:#x}"
                );
                assert!(
                    b.to_bits() == bf16::from_f32(x).to_bits() || (x.is_nan() && b.is_nan()),
                    "{bits:#x}"
                );
            }
        }
    }

    #[test]
    fn doubles_narrow_to_halves_with_one_rounding() {
        let mut state = 1u64;
        for i in 0..200_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // A value near a tie of the 16-bit types, or any.
            let x = if i % 2 == 0 {
                let tie = f32::from_bits((state >> 32) as u32 & 0xffff_f000) as f64;
                tie * (1.0 + f64::EPSILON * (state % 5) as f64)
            } else {
                f64::from_bits((state >> 2) & 0x8fff_ffff_ffff_ffff | 0x3000_0000_0000_0000)
            };
            if x.is_nan() {
                continue;
            }
            // `half` itself rounds twice here on some machines, so the neighbours decide.
            let check = |bits: u16, value: &dyn Fn(u16) -> f64, top: u16| {
                let distance = |bits: u16| (value(bits) - x).abs();
                if bits & 0x7fff == top {
                    let largest = value((bits & 0x8000) | (top - 1));
                    assert!(x / largest > 1.0, "{x:e}");
                    return;
                }
                for other in [bits.wrapping_sub(1), bits + 1] {
                    if other & 0x7fff < top && bits & 0x7fff != 0 {
                        let (near, far) = (distance(bits), distance(other));
                        assert!(near < far || (near == far && bits & 1 == 0), "{x:e} {bits:#x}");
                    }
                }
            };
            check(narrow_f16(narrow_odd(x)), &|b| f16::from_bits(b).to_f32() as f64, 0x7c00);
            check(narrow_bf16(narrow_odd(x)), &|b| bf16::from_bits(b).to_f32() as f64, 0x7f80);
        }
        assert!(narrow_odd(f64::NAN).is_nan());
    }
}
