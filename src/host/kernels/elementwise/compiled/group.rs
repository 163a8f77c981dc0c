//! What a group computes, without the values: the key by which its code is found again.

use crate::dtype::DType;
use crate::host::kernels::simd::Level;
use smallvec::SmallVec;

/// What an operation computes of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    Add,
    Sub,
    Mul,
    Div,
    /// As the instruction has it: the second where one is NaN, or both are zero.
    Larger,
    Smaller,
    /// Of the bits.
    And,
    Xor,
    /// Of the bits as integers.
    AddBits,
    /// The upper half of the bits, as an integer.
    Upper,
    /// The operand as it is.
    Same,
    /// Rounded to a 16-bit float.
    ToF16,
    Sqrt,
    /// Towards -inf, inf, zero, or to the nearest, by the number in the instruction.
    Round(u8),
    /// A truth, by the number in the instruction.
    Compare(u8),
    /// Truths.
    Both,
    Either,
    OneOf,
    /// The second where the first, a truth, is true; else the third.
    Where,
}

/// The numbers of comparisons: false where one is NaN, but for `UNEQUAL` and `UNORDERED`.
pub(super) const EQUAL: u8 = 0x00;
pub(super) const UNORDERED: u8 = 0x03;
pub(super) const UNEQUAL: u8 = 0x04;
pub(super) const LESS: u8 = 0x11;
pub(super) const LESS_OR_EQUAL: u8 = 0x12;
pub(super) const GREATER_OR_EQUAL: u8 = 0x1d;
pub(super) const GREATER: u8 = 0x1e;

/// The numbers of roundings, none of which sets a flag.
pub(super) const TO_EVEN: u8 = 8;
pub(super) const DOWN: u8 = 9;
pub(super) const UP: u8 = 10;
pub(super) const TO_ZERO: u8 = 11;

impl How {
    /// Whether the result is a truth.
    pub fn is_truth(self) -> bool {
        matches!(self, How::Compare(_) | How::Both | How::Either | How::OneOf)
    }
}

/// What an operation takes: the result of an operation before it, or what is in a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum From {
    Value(u8),
    Place(u8),
}

/// What is in a place: an element for each position, or a number that is the same everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    F32,
    /// The same, written around the caches.
    Streamed,
    F16,
    Bf16,
    Truths,
    One,
}

impl Held {
    /// What a row of this type is.
    pub fn row(dtype: DType) -> Held {
        match dtype {
            DType::F16 => Held::F16,
            DType::BF16 => Held::Bf16,
            DType::Bool => Held::Truths,
            _ => Held::F32,
        }
    }

    /// Bytes of an element of a row.
    pub fn size(self) -> Option<usize> {
        match self {
            Held::F32 | Held::Streamed => Some(size_of::<f32>()),
            Held::F16 | Held::Bf16 => Some(size_of::<u16>()),
            Held::Truths => Some(size_of::<bool>()),
            Held::One => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Operation {
    pub how: How,
    pub from: [Option<From>; 3],
    /// The place to which the result is written, if it is.
    pub stored: Option<u8>,
}

impl Operation {
    pub fn operands(&self) -> impl Iterator<Item = From> + use<> {
        self.from.into_iter().flatten()
    }
}

/// A group. Places that are written come after those that are read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub level: Level,
    pub places: SmallVec<[Held; 16]>,
    pub operations: SmallVec<[Operation; 16]>,
}
