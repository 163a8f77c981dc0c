//! The types of a file's tensors, with ggml's numbers.

use super::Blocks;
use crate::dtype::DType;
use crate::quant::Format;
use std::fmt;

/// The type of a tensor in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Plain elements.
    Dense(DType),
    /// Blocks of quantised weights.
    Quantized(Format),
    /// Blocks of quantised weights that become another type when they are loaded.
    Converted(Blocks),
}

/// ggml's numbers of the supported types.
const CODES: [(u32, Kind); 15] = [
    (0, Kind::Dense(DType::F32)),
    (1, Kind::Dense(DType::F16)),
    (2, Kind::Quantized(Format::Q4_0)),
    (3, Kind::Quantized(Format::Q4_1)),
    (8, Kind::Quantized(Format::Q8_0)),
    (10, Kind::Quantized(Format::Q2_K)),
    (12, Kind::Quantized(Format::Q4_K)),
    (13, Kind::Quantized(Format::Q5_K)),
    (14, Kind::Quantized(Format::Q6_K)),
    (24, Kind::Dense(DType::I8)),
    (25, Kind::Dense(DType::I16)),
    (26, Kind::Dense(DType::I32)),
    (27, Kind::Dense(DType::I64)),
    (28, Kind::Dense(DType::F64)),
    (30, Kind::Dense(DType::BF16)),
];

/// ggml's other types, so that an error can name them.
const OTHERS: [(u32, &str); 14] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

impl Kind {
    /// # Errors
    /// A message that names the type.
    pub(super) fn of(code: u32) -> Result<Kind, String> {
        let found = CODES.iter().find(|(c, _)| *c == code).map(|(_, kind)| *kind);
        let converted = || Blocks::ALL.into_iter().find(|b| b.code() == code).map(Kind::Converted);
        found.or_else(converted).ok_or_else(|| match OTHERS.iter().find(|(c, _)| *c == code) {
            Some((_, name)) => format!("is {name}, a type that futensor does not have"),
            None => format!("is of type {code}, which this reader does not know"),
        })
    }

    /// ggml's number; `None` for a type that does not exist in files.
    pub(super) fn code(self) -> Option<u32> {
        let own = |format: Format| format.dtype().map(Kind::Dense);
        let kind =
            if let Kind::Quantized(format) = self { own(format).unwrap_or(self) } else { self };
        CODES.iter().find(|(_, k)| *k == kind).map(|(code, _)| *code)
    }

    /// The bytes of a row of elements; `None` if the row is not a whole number of blocks, or too
    /// large.
    pub(super) fn row_bytes(self, elements: u64) -> Option<u64> {
        match self {
            Kind::Dense(dtype) => elements.checked_mul(dtype.size() as u64),
            Kind::Quantized(format) if elements.is_multiple_of(format.block() as u64) => {
                (elements / format.block() as u64).checked_mul(format.block_bytes() as u64)
            }
            Kind::Converted(blocks) if elements.is_multiple_of(blocks.weights() as u64) => {
                (elements / blocks.weights() as u64).checked_mul(blocks.bytes() as u64)
            }
            Kind::Quantized(_) | Kind::Converted(_) => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Dense(dtype) => dtype.fmt(f),
            Kind::Quantized(format) => format.fmt(f),
            Kind::Converted(blocks) => blocks.fmt(f),
        }
    }
}
