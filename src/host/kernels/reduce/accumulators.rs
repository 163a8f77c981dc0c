//! What reductions compute in: the types, and their words.

/// What fits a word, so that walks need not know it.
pub(in super::super) trait Bits: Copy {
    fn into_bits(self) -> u64;
    fn of_bits(bits: u64) -> Self;
}
macro_rules! bits {
    ($($t:ident |$x:ident| $into:expr, |$b:ident| $of:expr;)*) => {$(
        impl Bits for $t {
            #[inline(always)] fn into_bits(self) -> u64 { let $x = self; $into }
            #[inline(always)] fn of_bits($b: u64) -> $t { $of }
        }
    )*};
}
bits! {
    f32 |x| x.to_bits() as u64, |b| f32::from_bits(b as u32);
    f64 |x| x.to_bits(), |b| f64::from_bits(b);
    i64 |x| x as u64, |b| b as i64;
    i32 |x| x as u64, |b| b as i32;
    u8 |x| x as u64, |b| b as u8;
    u16 |x| x as u64, |b| b as u16;
    u32 |x| x as u64, |b| b as u32;
    u64 |x| x, |b| b;
}

/// A type that numbers are computed in.
pub(in super::super) trait Wide:
    Bits + Send + Sync + PartialOrd + 'static
{
    const WHOLE: bool;
    const ZERO: Self;
    /// What a sum is the same with: `-0.0`, to which any number can be added, itself among them.
    const NOTHING: Self;
    const ONE: Self;
    const LEAST: Self;
    const MOST: Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Its bits without the sign, of which NaN has more than infinity has; nothing for a whole
    /// number. Lanes that look for the largest number of all, and for the largest of these, take
    /// two instructions an element that wait for none of the other; asking each for NaN takes four,
    /// one behind the other (`max` of 16 MiB, two cores of a Zen 4: 115 us and 210).
    type Size: Copy + PartialOrd + Send + Sync + 'static;
    const NO_SIZE: Self::Size;
    const INFINITE: Self::Size;
    /// NaN, where there is one.
    const NAN: Self;
    fn size(self) -> Self::Size;
    fn over(self, count: usize) -> Self;
    fn is_nan(self) -> bool;
    /// The larger, or NaN.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        // Two choices: one with two conditions is slower.
        let larger = if self > other { self } else { other };
        if self.is_nan() { self } else { larger }
    }
    /// The smaller, or NaN.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        let smaller = if self < other { self } else { other };
        if self.is_nan() { self } else { smaller }
    }
}

macro_rules! wide {
    ($(
        $t:ident, $least:expr, $most:expr, $one:expr, $add:expr, $mul:expr, $nan:expr,
        $Size:ty, $none:expr, $infinite:expr, $not:expr, $size:expr;
    )*) => {$(
        impl Wide for $t {
            type Size = $Size;
            const NO_SIZE: $Size = $none;
            const INFINITE: $Size = $infinite;
            const NAN: $t = $not;
            #[inline(always)] fn size(self) -> $Size { ($size)(self) }
            const WHOLE: bool = 0.5 as $t == 0 as $t;
            const ZERO: $t = 0 as $t;
            const NOTHING: $t = -0.0 as $t;
            const ONE: $t = $one;
            const LEAST: $t = $least;
            const MOST: $t = $most;
            #[inline(always)] fn add(self, other: $t) -> $t { ($add)(self, other) }
            #[inline(always)] fn mul(self, other: $t) -> $t { ($mul)(self, other) }
            #[inline(always)] fn over(self, count: usize) -> $t { self / count as $t }
            #[inline(always)] fn is_nan(self) -> bool { ($nan)(self) }
        }
    )*};
}
wide! {
    f32, f32::NEG_INFINITY, f32::INFINITY, 1.0, |a, b| a + b, |a, b| a * b, f32::is_nan,
        u32, 0, f32::INFINITY.to_bits(), f32::NAN, |x: f32| x.to_bits() & !SIGN_32;
    f64, f64::NEG_INFINITY, f64::INFINITY, 1.0, |a, b| a + b, |a, b| a * b, f64::is_nan,
        u64, 0, f64::INFINITY.to_bits(), f64::NAN, |x: f64| x.to_bits() & !SIGN_64;
    i64, i64::MIN, i64::MAX, 1, i64::wrapping_add, i64::wrapping_mul, |_| false,
        (), (), (), 0, |_| ();
    i32, i32::MIN, i32::MAX, 1, i32::wrapping_add, i32::wrapping_mul, |_| false,
        (), (), (), 0, |_| ();
    u8, 0, 255, 1, u8::wrapping_add, u8::wrapping_mul, |_| false, (), (), (), 0, |_| ();
}

const SIGN_32: u32 = 1 << 31;
const SIGN_64: u64 = 1 << 63;
