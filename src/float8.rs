//! The two 8-bit floats, which values are stored in: their bits, and how a float32 is rounded to
//! them.
//!
//! Called by `dtype` and by the loops that convert. Both roundings are PyTorch's: to nearest, ties
//! to even, and what is too large for the type becomes its largest number in e4m3fn and infinity in
//! e5m2.

use std::fmt;

/// The value of the bits of an e4m3fn: a sign, four bits of exponent, three of mantissa. All ones
/// are NaN, and there is no infinity.
#[inline(always)]
pub(crate) fn widen_e4m3(bits: u8) -> f32 {
    let magnitude = bits & 0x7f;
    // The bits of a float32 that is too small by 2^120; a product with a power of two is exact,
    // also of one without a leading bit.
    let scaled = f32::from_bits((magnitude as u32) << 20) * f32::from_bits((127 + 120) << 23);
    let x = if magnitude == 0x7f { f32::NAN } else { scaled };
    f32::from_bits(x.to_bits() | ((bits & 0x80) as u32) << 24)
}

/// The value of the bits of an e5m2, which are the upper half of a float16's.
#[inline(always)]
pub(crate) fn widen_e5m2(bits: u8) -> f32 {
    let magnitude = bits & 0x7f;
    let scaled = f32::from_bits((magnitude as u32) << 21) * f32::from_bits((127 + 112) << 23);
    let x = match magnitude {
        0x7c => f32::INFINITY,
        0x7d.. => f32::NAN,
        _ => scaled,
    };
    f32::from_bits(x.to_bits() | ((bits & 0x80) as u32) << 24)
}

/// The bits of the nearest e4m3fn: of all that is larger than 448, infinity among it, 448.
#[inline(always)]
pub(crate) fn narrow_e4m3(x: f32) -> u8 {
    let rounded = rounded::<3, 7>(x.to_bits() & 0x7fff_ffff).min(0x7e);
    sign(x) | if x.is_nan() { 0x7f } else { rounded as u8 }
}

/// The bits of the nearest e5m2: infinity from 61440 on.
#[inline(always)]
pub(crate) fn narrow_e5m2(x: f32) -> u8 {
    let rounded = rounded::<2, 15>(x.to_bits() & 0x7fff_ffff).min(0x7c);
    sign(x) | if x.is_nan() { 0x7f } else { rounded as u8 }
}

#[inline(always)]
fn sign(x: f32) -> u8 {
    (x.to_bits() >> 24) as u8 & 0x80
}

/// A magnitude, by its bits in float32, rounded to a float with so many bits of mantissa and this
/// bias. What is too large gives more than the type's bits hold.
#[inline(always)]
fn rounded<const MANTISSA: u32, const BIAS: u32>(magnitude: u32) -> u32 {
    let cut = 23 - MANTISSA;
    // Below the least number with a leading bit the adder rounds: the last place of this number is
    // that of the type there.
    let place = (127 + 1 - BIAS + cut) << 23;
    let small = (f32::from_bits(magnitude) + f32::from_bits(place)).to_bits().wrapping_sub(place);
    let up = (1 << (cut - 1)) - 1 + ((magnitude >> cut) & 1);
    let large = magnitude.wrapping_sub((127 - BIAS) << 23).wrapping_add(up) >> cut;
    if magnitude < (127 + 1 - BIAS) << 23 { small } else { large }
}

/// An f64 as f32, rounded to odd: cut off, and the last bit set if anything was lost. Rounding the
/// result to a still shorter type is then the same as rounding the f64 at once (Boldo and
/// Melquiond, "When double rounding is odd", 2005).
#[inline(always)]
pub(crate) fn narrow_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = near as f64;
    let bits = near.to_bits();
    let cut = if back.abs() > x.abs() { bits.wrapping_sub(1) } else { bits };
    f32::from_bits(if back == x { bits } else { cut | 1 })
}

macro_rules! float8 {
    ($(#[$doc:meta])* $name:ident, $widen:ident, $narrow:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The number with these bits.
            pub const fn from_bits(bits: u8) -> $name {
                $name(bits)
            }

            /// The bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// The nearest number; of two, the one whose last bit is 0.
            pub fn from_f32(x: f32) -> $name {
                $name($narrow(x))
            }

            /// The value, exactly.
            pub fn to_f32(self) -> f32 {
                $widen(self.0)
            }
        }

        impl PartialEq for $name {
            /// As floats: NaN equals nothing, and -0 equals 0.
            fn eq(&self, other: &$name) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    };
}

float8! {
    /// An 8-bit float with four bits of exponent and three of mantissa, PyTorch's `float8_e4m3fn`:
    /// up to 448, with NaN and without infinities.
    ///
    /// ```
    /// use futensor::float8::Float8E4M3;
    /// assert_eq!(Float8E4M3::from_f32(0.3).to_f32(), 0.3125);
    /// assert_eq!(Float8E4M3::from_f32(1e5).to_f32(), 448.0);
    /// assert!(Float8E4M3::from_f32(f32::NAN).to_f32().is_nan());
    /// ```
    Float8E4M3, widen_e4m3, narrow_e4m3
}
float8! {
    /// An 8-bit float with five bits of exponent and two of mantissa, PyTorch's `float8_e5m2`: up
    /// to 57344, with infinities and NaN.
    ///
    /// ```
    /// use futensor::float8::Float8E5M2;
    /// assert_eq!(Float8E5M2::from_f32(0.3).to_f32(), 0.3125);
    /// assert_eq!(Float8E5M2::from_f32(1e5).to_f32(), f32::INFINITY);
    /// ```
    Float8E5M2, widen_e5m2, narrow_e5m2
}
