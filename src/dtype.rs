//! Element types: the types of a tensor's elements, scalars, and promotion.
//!
//! Called by every layer. Knows nothing of tensors or devices. The promotion rule is PyTorch's: see
//! [`DType::promote`] and [`DType::promote_scalar`].
//!
//! The types for storage ([`DType::STORAGE`]) cost no kernels of their own: what moves elements
//! goes by their size, and a conversion goes through a type with arithmetic.

use crate::float8::{Float8E4M3, Float8E5M2, narrow_odd};
use half::{bf16, f16};
use std::fmt;

/// Runs an expression with a type alias bound to the Rust type of a [`DType`] that ops compute in.
macro_rules! with_dtype {
    (@ $dtype:expr, $T:ident => $body:expr; $($D:ident $t:ty),*; $($rest:tt)*) => {
        match $dtype {
            $($crate::dtype::DType::$D => {
                type $T = $t;
                $body
            })*
            $($rest)*
        }
    };
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::dtype::with_dtype!(
            @ $dtype, $T => $body;
            F32 f32, F64 f64, F16 half::f16, BF16 half::bf16, I32 i32, I64 i64, U8 u8, Bool bool;
            stored => stored.never_computed()
        )
    };
}
pub(crate) use with_dtype;

/// [`with_dtype`] of every type, for what costs little to compile for each.
macro_rules! with_any_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::dtype::with_dtype!(
            @ $dtype, $T => $body;
            F32 f32, F64 f64, F16 half::f16, BF16 half::bf16, I32 i32, I64 i64, U8 u8, Bool bool,
            I8 i8, I16 i16, U16 u16, U32 u32, U64 u64,
            F8E4M3 $crate::float8::Float8E4M3, F8E5M2 $crate::float8::Float8E5M2;
        )
    };
}
pub(crate) use with_any_dtype;

/// The type of a tensor's elements.
///
/// # Type promotion
///
/// As in PyTorch. An op on two tensors is computed in the type at their row and column (comparisons
/// then return bool):
///
/// | | bool | u8 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// |---|---|---|---|---|---|---|---|---|
/// | **bool** | bool | u8 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// | **u8** | u8 | u8 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// | **i32** | i32 | i32 | i32 | i64 | f16 | bf16 | f32 | f64 |
/// | **i64** | i64 | i64 | i64 | i64 | f16 | bf16 | f32 | f64 |
/// | **f16** | f16 | f16 | f16 | f16 | f16 | f32 | f32 | f64 |
/// | **bf16** | bf16 | bf16 | bf16 | bf16 | f32 | bf16 | f32 | f64 |
/// | **f32** | f32 | f32 | f32 | f32 | f32 | f32 | f32 | f64 |
/// | **f64** | f64 | f64 | f64 | f64 | f64 | f64 | f64 | f64 |
///
/// A number, or a 0-d tensor beside one with dimensions, affects the type only if it is of a higher
/// *category* (bool, then integers, then floats): it turns bool into i64 or f32, and integers into
/// f32. Ops that need floats (`exp`, `div`...) compute integers and bool in f32; `sum`, `prod`,
/// `cumsum` and `cumprod` compute them in i64. `matmul` and ops based on it, convolutions and
/// losses need operands of one type.
///
/// # Types for storage
///
/// These have no arithmetic. They are read from files and written, made (`from_vec`, `full_dtype`),
/// converted by [`to_dtype`](crate::TensorFuture::to_dtype), viewed, copied, joined (`cat`),
/// chosen (`where_cond`), indexed (`narrow`, `index`, `index_select`, `gather`, `embedding`), read
/// back and displayed. Every other op fails with an error that says to convert first.
///
/// | type | PyTorch's name | Rust's type |
/// |---|---|---|
/// | [`I8`](DType::I8) | `int8` | `i8` |
/// | [`I16`](DType::I16) | `int16` | `i16` |
/// | [`U16`](DType::U16) | `uint16` | `u16` |
/// | [`U32`](DType::U32) | `uint32` | `u32` |
/// | [`U64`](DType::U64) | `uint64` | `u64` |
/// | [`F8E4M3`](DType::F8E4M3) | `float8_e4m3fn` | [`Float8E4M3`](crate::float8::Float8E4M3) |
/// | [`F8E5M2`](DType::F8E5M2) | `float8_e5m2` | [`Float8E5M2`](crate::float8::Float8E5M2) |
///
/// ```
/// use futensor::DType;
/// assert_eq!(DType::F32.size(), 4);
/// assert_eq!(DType::F32.to_string(), "float32");
/// assert_eq!(DType::I64.promote(DType::F16), DType::F16);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DType {
    /// IEEE single precision, the default.
    F32,
    /// IEEE double precision.
    F64,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// Signed 32-bit integer; arithmetic wraps.
    I32,
    /// Signed 64-bit integer; arithmetic wraps.
    I64,
    /// Unsigned 8-bit integer; arithmetic wraps.
    U8,
    /// Truth value, stored in one byte.
    Bool,
    /// Signed 8-bit integer, for storage.
    I8,
    /// Signed 16-bit integer, for storage.
    I16,
    /// Unsigned 16-bit integer, for storage.
    U16,
    /// Unsigned 32-bit integer, for storage.
    U32,
    /// Unsigned 64-bit integer, for storage.
    U64,
    /// 8-bit float with three bits of mantissa, for storage.
    F8E4M3,
    /// 8-bit float with two bits of mantissa, for storage.
    F8E5M2,
}

impl DType {
    /// Every element type, for tests and tables: those of [`ARITHMETIC`](Self::ARITHMETIC), then
    /// those of [`STORAGE`](Self::STORAGE).
    pub const ALL: [DType; 15] = {
        let (mut all, mut i) = ([DType::F32; 15], 0);
        while i < all.len() {
            all[i] = if i < 8 { DType::ARITHMETIC[i] } else { DType::STORAGE[i - 8] };
            i += 1;
        }
        all
    };

    /// The types that ops compute in.
    pub const ARITHMETIC: [DType; 8] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::Bool,
    ];

    /// The types that values are stored in, but not computed in.
    pub const STORAGE: [DType; 7] =
        [DType::I8, DType::I16, DType::U16, DType::U32, DType::U64, DType::F8E4M3, DType::F8E5M2];

    /// Bytes of one element.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::U8 | DType::Bool | DType::I8 | DType::F8E4M3 | DType::F8E5M2 => 1,
        }
    }

    /// PyTorch's name: `float32`, `int64`, `bool`...
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::U8 => "uint8",
            DType::Bool => "bool",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::U16 => "uint16",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::F8E4M3 => "float8_e4m3fn",
            DType::F8E5M2 => "float8_e5m2",
        }
    }

    /// The type of this name. Only what reads names calls it.
    #[cfg(feature = "serde")]
    fn named(name: &str) -> Result<DType, String> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
            let all = DType::ALL.map(DType::name).join(", ");
            format!("there is no type {name:?}; these are: {all}")
        })
    }

    /// True for the types that values are stored in, but not computed in.
    ///
    /// ```
    /// use futensor::DType;
    /// assert!(DType::I8.is_storage() && !DType::U8.is_storage());
    /// ```
    #[inline]
    pub const fn is_storage(self) -> bool {
        match self {
            DType::F32 | DType::F64 | DType::F16 | DType::BF16 => false,
            DType::I32 | DType::I64 | DType::U8 | DType::Bool => false,
            DType::I8 | DType::I16 | DType::U16 | DType::U32 | DType::U64 => true,
            DType::F8E4M3 | DType::F8E5M2 => true,
        }
    }

    /// True for the 8-bit floats.
    #[inline]
    pub(crate) const fn is_float8(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::F8E5M2)
    }

    /// For a kernel that is not compiled for this type.
    #[cold]
    pub(crate) fn never_computed(self) -> ! {
        unreachable!("{self} has no arithmetic, so the shape rule refuses it")
    }

    /// True for values that the tape records: floats, those of 8 bits among them.
    #[inline]
    pub(crate) const fn is_differentiable(self) -> bool {
        self.is_float() || self.is_float8()
    }

    /// True for the four floating point types that ops compute in.
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// True for the integers that ops compute in; `bool` is not one.
    pub const fn is_int(self) -> bool {
        matches!(self, DType::I32 | DType::I64 | DType::U8)
    }

    /// True for the two of 16 bits.
    pub(crate) const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// The type that a float is computed in: halves in float32.
    pub(crate) const fn wide(self) -> DType {
        if self.is_half() { DType::F32 } else { self }
    }

    /// The type in which an op on two tensors is computed: PyTorch's `promote_types`.
    ///
    /// ```
    /// use futensor::DType::{self, *};
    /// assert_eq!(DType::promote(F16, BF16), F32);
    /// assert_eq!(DType::promote(U8, I32), I32);
    /// assert_eq!(DType::promote(Bool, U8), U8);
    /// ```
    ///
    /// A type for storage is promoted to nothing: it is the result, whatever the other type is, and
    /// an op that computes refuses it.
    pub const fn promote(self, other: DType) -> DType {
        use DType::*;
        match (self, other) {
            _ if self.is_storage() => self,
            _ if other.is_storage() => other,
            (F64, _) | (_, F64) => F64,
            (F32, _) | (_, F32) => F32,
            (F16, BF16) | (BF16, F16) => F32,
            (F16, _) | (_, F16) => F16,
            (BF16, _) | (_, BF16) => BF16,
            (I64, _) | (_, I64) => I64,
            (I32, _) | (_, I32) => I32,
            (U8, _) | (_, U8) => U8,
            _ => Bool,
        }
    }

    /// Bool, integer or float: a 0-d tensor or a scalar changes the other operand's type only if
    /// its category is higher.
    const fn category(self) -> u8 {
        match self {
            DType::Bool => 0,
            DType::I32 | DType::I64 | DType::U8 => 1,
            _ => 2,
        }
    }

    /// As [`promote`](Self::promote), for operands of which one may be 0-d: a 0-d operand counts
    /// only if its category is higher, as in PyTorch.
    pub(crate) const fn promote_ranked(
        self,
        rank: usize,
        other: DType,
        other_rank: usize,
    ) -> DType {
        if self.is_storage() || other.is_storage() {
            return self.promote(other);
        }
        if rank > 0 && other_rank == 0 && other.category() <= self.category() {
            return self;
        }
        if rank == 0 && other_rank > 0 && self.category() <= other.category() {
            return other;
        }
        self.promote(other)
    }

    /// The type in which an op on a tensor and a scalar is computed. Scalars are weakly typed: only
    /// a scalar of a higher *category* (bool, integer, float) changes the tensor's type.
    ///
    /// ```
    /// use futensor::{DType, Scalar};
    /// assert_eq!(DType::F16.promote_scalar(Scalar::Float(2.0)), DType::F16);
    /// assert_eq!(DType::I32.promote_scalar(Scalar::Float(2.0)), DType::F32);
    /// assert_eq!(DType::Bool.promote_scalar(Scalar::Int(2)), DType::I64);
    /// ```
    #[inline]
    pub const fn promote_scalar(self, scalar: Scalar) -> DType {
        match scalar {
            _ if self.is_storage() => self,
            Scalar::Float(_) if !self.is_float() => DType::F32,
            Scalar::Int(_) if matches!(self, DType::Bool) => DType::I64,
            _ => self,
        }
    }
}

#[cfg(feature = "serde")]
crate::configuration::by_name! {
    DType,
    |dtype| Ok(dtype.name()),
    DType::named,
    "the name of a type"
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A number beside a tensor: `&x + 2.0`, `full([2], 7)`. Weakly typed, as in PyTorch.
///
/// ```
/// use futensor::Scalar;
/// assert_eq!(Scalar::from(2), Scalar::Int(2));
/// assert_eq!(Scalar::from(2.5).as_f64(), 2.5);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating point number.
    Float(f64),
}

impl Scalar {
    /// The number rounded to a half type; unchanged for other types.
    pub(crate) fn rounded_to(self, dtype: DType) -> Scalar {
        match dtype {
            DType::F16 => Scalar::Float(f16::from_scalar(self).to_f64()),
            DType::BF16 => Scalar::Float(bf16::from_scalar(self).to_f64()),
            _ => self,
        }
    }

    /// The value as a double; `true` is 1.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => b as u8 as f64,
            Scalar::Int(i) => i as f64,
            Scalar::Float(x) => x,
        }
    }

    /// The value as an integer, truncated towards zero; `true` is 1.
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => b as i64,
            Scalar::Int(i) => i,
            Scalar::Float(x) => x as i64,
        }
    }

    /// The nearest number in the range of a type. Floats hold any number, after rounding.
    pub(crate) fn limited_to(self, dtype: DType) -> Scalar {
        match (self, dtype) {
            (Scalar::Int(i), DType::U8) => Scalar::Int(i.clamp(0, u8::MAX as i64)),
            (Scalar::Int(i), DType::I32) => Scalar::Int(i.clamp(i32::MIN as i64, i32::MAX as i64)),
            _ => self,
        }
    }

    /// The bits of the number as an element of a type.
    pub(crate) fn bits(self, dtype: DType) -> u64 {
        use sealed::Sealed;
        with_any_dtype!(dtype, T => T::from_scalar(self).bits())
    }

    /// The number as an element of a type, as it lies in memory: the first bytes of this word.
    pub(crate) fn word(self, dtype: DType) -> u64 {
        let bits = self.bits(dtype);
        if cfg!(target_endian = "big") { bits << (64 - 8 * dtype.size()) } else { bits }
    }

    /// The type of a tensor that is made from this scalar alone: `bool`, `int64` or `float32`.
    pub fn default_dtype(self) -> DType {
        match self {
            Scalar::Bool(_) => DType::Bool,
            Scalar::Int(_) => DType::I64,
            Scalar::Float(_) => DType::F32,
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(b) => b.fmt(f),
            Scalar::Int(i) => i.fmt(f),
            Scalar::Float(x) => fmt::Debug::fmt(x, f),
        }
    }
}

macro_rules! scalar_from {
    ($($t:ty => $variant:ident as $as:ty),*) => {$(
        impl From<$t> for Scalar {
            fn from(x: $t) -> Scalar { Scalar::$variant(x as $as) }
        }
    )*};
}

impl From<usize> for Scalar {
    /// The nearest 64-bit integer: `usize::MAX` does not become -1.
    fn from(x: usize) -> Scalar {
        Scalar::Int(i64::try_from(x).unwrap_or(i64::MAX))
    }
}

scalar_from!(f32 => Float as f64, f64 => Float as f64, i32 => Int as i64, i64 => Int as i64,
             u8 => Int as i64, u32 => Int as i64, bool => Bool as bool);

mod sealed {
    pub trait Sealed {
        /// The bits of an element; what is above them is of no meaning.
        fn bits(self) -> u64;
    }
}

/// A Rust type that a tensor can hold: `f32 f64 f16 bf16 i32 i64 u8 bool`, and those of
/// [storage](DType#types-for-storage). Sealed.
pub trait Element:
    sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static
{
    /// The element type that this Rust type stands for.
    const DTYPE: DType;
    /// The nearest value to a double; `i32` and `i64` truncate towards zero and saturate, other
    /// integers keep the low bits of the int64 result (`u64` has positive numbers beyond int64,
    /// too), `bool` is `x != 0`.
    fn from_f64(x: f64) -> Self;
    /// The value of an integer; narrower integers wrap, `bool` is `x != 0`.
    fn from_i64(x: i64) -> Self;
    /// The value as a double.
    fn to_f64(self) -> f64;
    /// The value as an integer, truncated towards zero.
    fn to_i64(self) -> i64;
    /// The value of a scalar.
    fn from_scalar(x: Scalar) -> Self {
        match x {
            Scalar::Bool(b) => Self::from_i64(b as i64),
            Scalar::Int(i) => Self::from_i64(i),
            Scalar::Float(x) => Self::from_f64(x),
        }
    }
}

macro_rules! element {
    ($($t:ty, $d:ident, $bits:expr, $from_f:expr, $from_i:expr, $to_f:expr, $to_i:expr;)*) => {$(
        impl sealed::Sealed for $t {
            #[inline] fn bits(self) -> u64 { ($bits)(self) }
        }
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            #[inline] fn from_f64(x: f64) -> Self { ($from_f)(x) }
            #[inline] fn from_i64(x: i64) -> Self { ($from_i)(x) }
            #[inline] fn to_f64(self) -> f64 { ($to_f)(self) }
            #[inline] fn to_i64(self) -> i64 { ($to_i)(self) }
        }
    )*};
}
element! {
    f32, F32, |x: f32| x.to_bits() as u64, |x| x as f32, |x| x as f32,
        |x: f32| x as f64, |x: f32| x as i64;
    f64, F64, |x: f64| x.to_bits(), |x| x, |x| x as f64, |x: f64| x, |x: f64| x as i64;
    i32, I32, |x| x as u64, |x| x as i32, |x| x as i32, |x: i32| x as f64, |x: i32| x as i64;
    i64, I64, |x| x as u64, |x| x as i64, |x| x, |x: i64| x as f64, |x: i64| x;
    u64, U64, |x| x, float_to_u64, |x| x as u64, |x: u64| x as f64, |x: u64| x as i64;
    bool, Bool, |x| x as u64, |x| x != 0.0, |x| x != 0,
        |x: bool| x as u8 as f64, |x: bool| x as i64;
}

/// Integers that are made of numbers by way of int64.
macro_rules! short_integers {
    ($($t:ty, $d:ident;)*) => {
        element! { $(
            $t, $d, |x| x as u64, |x| x as i64 as $t, |x| x as $t,
                |x: $t| x as f64, |x: $t| x as i64;
        )* }
    };
}
short_integers! { u8, U8; i8, I8; i16, I16; u16, U16; u32, U32; }

/// Floats with methods of their own; which makes one of a double.
macro_rules! short_floats {
    ($($t:ty, $d:ident, $from:expr;)*) => {
        element! { $(
            $t, $d, |x: $t| x.to_bits() as u64, $from, |x| ($from)(x as f64),
                |x: $t| x.to_f32() as f64, |x: $t| x.to_f32() as i64;
        )* }
    };
}
short_floats! {
    f16, F16, f16::from_f64;
    bf16, BF16, bf16::from_f64;
    Float8E4M3, F8E4M3, |x| Float8E4M3::from_f32(narrow_odd(x));
    Float8E5M2, F8E5M2, |x| Float8E5M2::from_f32(narrow_odd(x));
}

/// A double as a u64: a negative one wraps, as it does on its way through i64.
#[inline(always)]
pub(crate) fn float_to_u64(x: f64) -> u64 {
    if x < 0.0 { x as i64 as u64 } else { x as u64 }
}

#[cfg(test)]
mod tests {
    use super::DType;

    /// The code follows the documented table, and the table is symmetric.
    #[test]
    fn the_documented_promotions_are_those_of_the_code() {
        let short = |name: &str| match name {
            "f32" => DType::F32,
            "f64" => DType::F64,
            "f16" => DType::F16,
            "bf16" => DType::BF16,
            "i32" => DType::I32,
            "i64" => DType::I64,
            "u8" => DType::U8,
            "bool" => DType::Bool,
            other => panic!("no type is called {other}"),
        };
        let text = include_str!("dtype.rs");
        let cells =
            |line: &'static str| -> Vec<&'static str> { line.split('|').map(str::trim).collect() };
        let columns =
            text.lines().find(|l| l.starts_with("/// | | bool")).map(cells).expect("the head");
        let columns = columns[2..10].iter().map(|c| short(c));
        let rows: Vec<_> = text.lines().filter(|l| l.starts_with("/// | **")).map(cells).collect();
        assert_eq!(rows.len(), DType::ARITHMETIC.len());
        for row in &rows {
            let a = short(row[1].trim_matches('*'));
            for (b, want) in columns.clone().zip(&row[2..10]) {
                assert_eq!(a.promote(b), short(want), "{a} and {b}");
                assert_eq!(a.promote(b), b.promote(a));
            }
        }
    }
}
