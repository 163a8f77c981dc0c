//! The rough cost of each elementwise op, in one table.
//!
//! A node asks for its cost when it is made (is it small, may a poll run it, how long is its step
//! delayed?), and a program when it is cut up among threads. Measured on one machine (Xeon,
//! AVX-512, 2 GHz, arrays of 2048 elements); elsewhere only the proportions hold.

// A new row says what it costs.
#![deny(clippy::wildcard_enum_match_arm)]

use super::program::{Code, Program};
use crate::dtype::DType;
use crate::op::{BinaryOp, UnaryOp};

/// Picoseconds to move a byte in the caches, where it is nearly hidden behind computing, and from
/// memory.
pub(crate) const BYTE_PS: u64 = 10;
const FAR_BYTE_PS: u64 = 100;

/// Picoseconds an element of one instruction on a tile in the first cache.
#[inline(always)]
pub(crate) fn instr_ps(code: Code, on: DType, dtype: DType) -> u64 {
    use BinaryOp as B;
    use UnaryOp as U;
    let bytes = on.size().max(dtype.size()) as u64;
    let simple = 10 * bytes.max(2);
    let function = |ps: u64| if on == DType::F64 { 8_000 } else { ps };
    let half = matches!(dtype, DType::F16 | DType::BF16) as u64 * 150;
    half + match code {
        Code::Input(_) => 0,
        Code::Fill(_) => 0,
        Code::Arange { .. } => 300,
        Code::Uniform { .. } => 400 * (1 + (dtype == DType::F64) as u64),
        Code::Normal { .. } if dtype == DType::F64 => 15_000,
        Code::Normal { .. } => 1_000,
        Code::Where(..) => simple,
        Code::Cast(_) => 2 * simple,
        Code::Unary(op, _) => match op {
            U::Neg
            | U::Abs
            | U::Sign
            | U::Square
            | U::Relu
            | U::Floor
            | U::Ceil
            | U::Round
            | U::Trunc => simple,
            U::IsNan | U::IsInf | U::IsFinite | U::LogicalNot => simple,
            U::Sqrt | U::Rsqrt | U::Recip => 100 * bytes,
            // In double precision inside.
            U::Asin | U::Acos | U::Asinh | U::Acosh => function(3_000),
            U::Atan | U::Sinh | U::Cosh | U::Atanh => function(1_300),
            U::Log2 | U::Log10 | U::Log1p | U::Tan | U::Softplus | U::GeluTanh => function(1_300),
            U::Exp | U::Exp2 | U::Expm1 | U::Log | U::Sin | U::Cos | U::Tanh => function(500),
            U::Sigmoid | U::Silu | U::Gelu | U::Erf => function(500),
        },
        Code::Binary(op, ..) => match op {
            B::Pow | B::Atan2 if on != DType::F64 => 3_000,
            B::Pow | B::Atan2 => 20_000,
            B::Fmod | B::Remainder | B::FloorDivide => 8_000,
            B::TruncDivide if !on.is_float() => 2_000,
            B::TruncDivide | B::Div => 50 * bytes,
            B::Add | B::Sub | B::Mul | B::Maximum | B::Minimum => simple,
            B::Eq | B::Ne | B::Lt | B::Le | B::Gt | B::Ge => simple,
            B::LogicalAnd | B::LogicalOr | B::LogicalXor => simple,
            B::BitwiseAnd | B::BitwiseOr | B::BitwiseXor => simple,
        },
    }
}

/// Nanoseconds that one thread takes for a program over so many elements.
pub(crate) fn program_ns(program: &Program, numel: usize) -> u64 {
    let mut ps = 0;
    let mut bytes = 0;
    for instr in &program.instrs {
        ps += instr_ps(instr.code, instr.on, instr.dtype);
        if matches!(instr.code, Code::Input(_)) {
            bytes += instr.dtype.size() as u64;
        }
    }
    for &r in &program.outputs {
        bytes += program.dtype(r).size() as u64;
    }
    let per_byte = if bytes.saturating_mul(numel as u64) > 2 << 20 { FAR_BYTE_PS } else { BYTE_PS };
    40 + 5 * program.instrs.len() as u64
        + (ps.max(1) + bytes * per_byte).saturating_mul(numel as u64) / 1000
}
