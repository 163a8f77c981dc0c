//! The rough cost of each elementwise op, in one table.
//!
//! A node asks for its cost when it is made (is it small, may a poll run it, how long is its step
//! delayed?), and a program when it is cut up among threads. Measured on one machine (Xeon,
//! AVX-512, 2 GHz, arrays of 2048 elements); elsewhere only the proportions hold.

// A new row says what it costs.
#![deny(clippy::wildcard_enum_match_arm)]

use super::program::{Code, Program};
use crate::dtype::DType;
use crate::op::Cost;

/// Picoseconds to move a byte in the first cache, where it is nearly hidden behind computing, in
/// the second (`x + 1` of 128 Ki: 33 us; `-x` of 256 Ki: 66), and from memory.
pub(crate) const BYTE_PS: u64 = 10;
const SECOND_BYTE_PS: u64 = 25;
const FAR_BYTE_PS: u64 = 100;

/// Picoseconds to move a byte of so many.
fn byte_ps(bytes: u64) -> u64 {
    match bytes.saturating_sub(1) >> 19 {
        0 => BYTE_PS,
        1..4 => SECOND_BYTE_PS,
        _ => FAR_BYTE_PS,
    }
}

/// Picoseconds an element of an op of this class that is computed on elements of `on`; no operand
/// or result has larger ones than `bytes`.
#[inline(always)]
fn element_ps(cost: Cost, on: DType, bytes: u64) -> u64 {
    let function = |ps: u64| if on == DType::F64 { 8_000 } else { ps };
    match cost {
        Cost::simple => 10 * bytes.max(2),
        Cost::root => 100 * bytes,
        Cost::quotient => 50 * bytes,
        Cost::truncation if on.is_float() => 50 * bytes,
        Cost::truncation => 2_000,
        Cost::remainder => 8_000,
        Cost::function => function(500),
        Cost::long => function(1_300),
        Cost::double => function(3_000),
        Cost::power if on == DType::F64 => 20_000,
        Cost::power => 3_000,
        Cost::fold | Cost::search => FOLD_PS,
    }
}

/// Picoseconds an element of a reduction.
const FOLD_PS: u64 = 500;

/// Nanoseconds of one thread for a reduction of so many elements, at least.
pub(crate) fn fold_ns(cost: Cost, read: u64) -> u64 {
    read.saturating_mul(element_ps(cost, DType::F32, 4)) / 1_000
}

/// Picoseconds an element of one instruction on a tile in the first cache.
#[inline(always)]
pub(crate) fn instr_ps(code: Code, on: DType, dtype: DType) -> u64 {
    let bytes = on.size().max(dtype.size()) as u64;
    let simple = element_ps(Cost::simple, on, bytes);
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
        Code::Unary(op, _) => element_ps(op.cost(), on, bytes),
        Code::Binary(op, ..) => element_ps(op.cost(), on, bytes),
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
    let per_byte = byte_ps(bytes.saturating_mul(numel as u64));
    40 + 5 * program.instrs.len() as u64
        + (ps.max(1) + bytes * per_byte).saturating_mul(numel as u64) / 1000
}
