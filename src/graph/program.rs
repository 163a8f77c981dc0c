//! A fused elementwise step as a straight-line program over one iteration shape.
//!
//! The planner writes it, the kernels of each device run it: registers are numbered by the
//! instruction that defines them, each has one element type, and implied casts are written out. A
//! program knows neither values nor threads. Every instruction rounds to its own type, so a value is
//! bitwise the same whether its op ran alone or fused.

use crate::dtype::{DType, Scalar};
use crate::op::{BinaryOp, UnaryOp};
use smallvec::SmallVec;

/// Number of an instruction, and so of the register that it defines.
pub(crate) type Reg = u8;

/// Most instructions that a program may have.
pub(crate) const INSTRS_MAX: usize = 48;
/// Most inputs that a program may read.
pub(crate) const INPUTS_MAX: usize = 16;
/// Most outputs that a program may write.
pub(crate) const OUTPUTS_MAX: usize = 8;

/// An operand: a register or an immediate, which is taken in the instruction's `on` type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Arg {
    Reg(Reg),
    Scalar(Scalar),
}

/// What an instruction does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Code {
    /// Reads input `i`, broadcast to the iteration shape.
    Input(u8),
    /// The same number everywhere.
    Fill(Scalar),
    /// `start + i * step` at linear position `i`, computed in f64 (floats) or i64 (integers).
    Arange { start: Scalar, step: Scalar },
    /// Uniform numbers in [0, 1); `offset` is the position in the generator's sequence of words.
    Uniform { seed: u64, offset: u64 },
    /// Standard normal numbers, as `Uniform`.
    Normal { seed: u64, offset: u64 },
    /// An elementwise op of the table.
    Unary(UnaryOp, Arg),
    /// An elementwise op of the table. At most one operand is an immediate.
    Binary(BinaryOp, Arg, Arg),
    /// `if condition { a } else { b }`; the condition is bool.
    Where(Arg, Arg, Arg),
    /// The operand (of type `on`) converted to the result's type, as Rust's `as`; to bool, `!= 0`.
    Cast(Arg),
}

/// One instruction: operands of type `on` (a `Where`'s condition apart), a result of type `dtype`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Instr {
    pub code: Code,
    pub on: DType,
    pub dtype: DType,
}

/// A straight-line program; outputs name the registers that are written out.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Program {
    pub instrs: SmallVec<[Instr; 4]>,
    pub outputs: SmallVec<[Reg; 2]>,
}

impl Program {
    /// Adds an instruction and names its register.
    pub fn push(&mut self, code: Code, on: DType, dtype: DType) -> Reg {
        self.instrs.push(Instr { code, on, dtype });
        (self.instrs.len() - 1) as Reg
    }

    /// Element type of a register.
    pub fn dtype(&self, reg: Reg) -> DType {
        self.instrs[reg as usize].dtype
    }
}
