//! Half-precision numbers in loops that vectorise: branch-free conversions, bitwise those of `half`.
//!
//! `half`'s own ask the processor for its features at every call, which keeps loops scalar. Knows
//! single numbers only.

use half::{bf16, f16};

/// The value of a half. After F. Giesen's `half_to_float` (public domain, "Float<->half conversion"):
/// the bits are shifted into place and a multiplication by 2^112 sets the exponent, subnormals included.
#[inline(always)]
pub(super) fn from_f16(x: f16) -> f32 {
    let bits = x.to_bits() as u32;
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((254 - 15) << 23);
    let special = if bits & 0x7c00 == 0x7c00 { 0xff << 23 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
}

/// The nearest half, ties to even; a NaN is quiet. After the same author's `float_to_half_fast3_rtne`.
#[inline(always)]
pub(super) fn to_f16(x: f32) -> f16 {
    let bits = x.to_bits();
    let (sign, bits) = ((bits >> 16) & 0x8000, bits & 0x7fff_ffff);
    // Below 2^-14 the result is subnormal: adding 0.5 lets the adder round at the right place.
    let small = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let normal = bits.wrapping_sub(112 << 23).wrapping_add(0xfff + ((bits >> 13) & 1)) >> 13;
    let large = if bits > 0x7f80_0000 { 0x7e00 | (bits >> 13) & 0x3ff } else { 0x7c00 };
    let out = if bits >= 0x4780_0000 {
        large
    } else if bits < 0x3880_0000 {
        small
    } else {
        normal
    };
    f16::from_bits((out | sign) as u16)
}

/// The value of a bfloat16.
#[inline(always)]
pub(super) fn from_bf16(x: bf16) -> f32 {
    f32::from_bits((x.to_bits() as u32) << 16)
}

/// The nearest bfloat16, ties to even; a NaN is quiet.
#[inline(always)]
pub(super) fn to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded } as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_and_a_sweep_of_floats_convert_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (f, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(from_f16(f).to_bits() == f.to_f32().to_bits() || f.is_nan() && from_f16(f).is_nan());
            assert!(from_bf16(b).to_bits() == b.to_f32().to_bits() || b.is_nan() && from_bf16(b).is_nan());
        }
        // 2^32 / 4099 bit patterns, all exponents and many ties' neighbours; and every tie of f16.
        let ties = (0..=u16::MAX).flat_map(|h| {
            let low = f16::from_bits(h).to_f32().to_bits();
            [low, low ^ 0x1000, (low ^ 0x1000).wrapping_add(1), (low ^ 0x1000).wrapping_sub(1), low ^ 0x8000]
        });
        for bits in (0..=u32::MAX).step_by(4099).chain(ties) {
            let x = f32::from_bits(bits);
            if x.is_nan() {
                assert!(to_f16(x).is_nan() && to_bf16(x).is_nan());
            } else {
                assert_eq!(to_f16(x).to_bits(), f16::from_f32(x).to_bits(), "{bits:#x}");
                assert_eq!(to_bf16(x).to_bits(), bf16::from_f32(x).to_bits(), "{bits:#x}");
            }
        }
    }
}
