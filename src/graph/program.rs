//! A fused elementwise step as a straight-line program over one iteration shape.
//!
//! The planner writes the program, and the kernels of each device run it. A register has the number
//! of the instruction that defines it and one element type; implied casts are written out. A
//! program knows neither values nor threads. Every instruction rounds to its own type, so a value
//! is bitwise the same whether its op ran alone or fused.

use crate::dtype::{DType, Scalar};
use crate::op::{Beside, BinaryOp, UnaryOp};
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

/// The operation of an instruction.
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
/// Of halves and a number arithmetic is on float32, in which halves are computed anyway, and gives
/// halves: such an operand is a register of halves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Instr {
    pub code: Code,
    pub on: DType,
    pub dtype: DType,
}

/// The type in which a number, or a 0-d value, beside halves is taken. Arithmetic takes it in
/// float32: `1000 / 1e5` is 0.01. An op that compares, limits or divides with a remainder rounds it
/// to the type first, as PyTorch does, so that `x == 0.1` is true of a `0.1` of that type.
pub(crate) fn number_beside(op: BinaryOp, on: DType) -> DType {
    match op.number() {
        Beside::wide => on.wide(),
        Beside::rounded | Beside::limit => on,
    }
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

    /// The input of floats whose square, in float32 if they are halves, a register is.
    #[allow(dead_code)] // Only the host asks for it.
    pub fn squared_input(&self, reg: Reg) -> Option<usize> {
        let of = |reg: Reg| (&self.instrs[reg as usize].code, self.instrs[reg as usize].dtype);
        let (&Code::Unary(UnaryOp::Square, Arg::Reg(x)), wide) = of(reg) else { return None };
        let (input, dtype) = match of(x) {
            (&Code::Input(k), dtype) => (k, dtype),
            (&Code::Cast(Arg::Reg(x)), _) => match of(x) {
                (&Code::Input(k), dtype) => (k, dtype),
                _ => return None,
            },
            _ => return None,
        };
        (dtype.is_float() && dtype.wide() == wide).then_some(input as usize)
    }

    /// The part of the program that these registers need, with them as its outputs. Registers and
    /// inputs are numbered anew. Also the old number of each input that is left.
    pub fn only(&self, outputs: &[Reg]) -> (Program, SmallVec<[u8; 4]>) {
        let mut needed: SmallVec<[bool; INSTRS_MAX]> =
            SmallVec::from_elem(false, self.instrs.len());
        outputs.iter().for_each(|&r| needed[r as usize] = true);
        // Operands stand before their instruction.
        for i in (0..self.instrs.len()).rev() {
            if needed[i] {
                self.instrs[i].code.operands().for_each(|r| needed[r as usize] = true);
            }
        }
        let mut inputs: SmallVec<[u8; 4]> = SmallVec::new();
        let mut renamed: SmallVec<[Reg; INSTRS_MAX]> = SmallVec::from_elem(0, self.instrs.len());
        let mut out = Program::default();
        for (i, instr) in self.instrs.iter().enumerate().filter(|&(i, _)| needed[i]) {
            let code = match instr.code {
                Code::Input(k) => {
                    inputs.push(k);
                    Code::Input((inputs.len() - 1) as u8)
                }
                code => code.renamed(|r| renamed[r as usize]),
            };
            renamed[i] = out.push(code, instr.on, instr.dtype);
        }
        out.outputs = outputs.iter().map(|&r| renamed[r as usize]).collect();
        (out, inputs)
    }
}

impl Code {
    /// What is read: registers and numbers.
    #[inline]
    pub fn args(&self) -> [Option<Arg>; 3] {
        match *self {
            Code::Unary(_, a) | Code::Cast(a) => [Some(a), None, None],
            Code::Binary(_, a, b) => [Some(a), Some(b), None],
            Code::Where(a, b, c) => [Some(a), Some(b), Some(c)],
            Code::Input(_)
            | Code::Fill(_)
            | Code::Arange { .. }
            | Code::Uniform { .. }
            | Code::Normal { .. } => [None; 3],
        }
    }

    /// The registers that are read.
    #[inline]
    pub fn operands(&self) -> impl Iterator<Item = Reg> + use<> {
        self.args().into_iter().filter_map(|arg| match arg {
            Some(Arg::Reg(r)) => Some(r),
            _ => None,
        })
    }

    /// The same on other registers.
    pub fn renamed(self, mut name: impl FnMut(Reg) -> Reg) -> Code {
        let mut arg = |a: Arg| match a {
            Arg::Reg(r) => Arg::Reg(name(r)),
            number => number,
        };
        match self {
            Code::Unary(op, a) => Code::Unary(op, arg(a)),
            Code::Binary(op, a, b) => Code::Binary(op, arg(a), arg(b)),
            Code::Where(c, a, b) => Code::Where(arg(c), arg(a), arg(b)),
            Code::Cast(a) => Code::Cast(arg(a)),
            Code::Input(_)
            | Code::Fill(_)
            | Code::Arange { .. }
            | Code::Uniform { .. }
            | Code::Normal { .. } => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::{Bool, F32};

    #[test]
    fn what_an_output_does_not_need_is_left_out() {
        let mut p = Program::default();
        let _unused = p.push(Code::Input(0), F32, F32);
        let x = p.push(Code::Input(1), F32, F32);
        let c = p.push(Code::Input(2), Bool, Bool);
        let y = p.push(Code::Unary(UnaryOp::Neg, Arg::Reg(x)), F32, F32);
        let z =
            p.push(Code::Where(Arg::Reg(c), Arg::Reg(y), Arg::Scalar(Scalar::Int(1))), F32, F32);
        let (one, inputs) = p.only(&[y]);
        assert_eq!((one.instrs.len(), &one.outputs[..], &inputs[..]), (2, &[1][..], &[1][..]));
        assert_eq!(one.instrs[1].code, Code::Unary(UnaryOp::Neg, Arg::Reg(0)));
        let (both, inputs) = p.only(&[z, y]);
        assert_eq!(
            (both.instrs.len(), &both.outputs[..], &inputs[..]),
            (4, &[3, 2][..], &[1, 2][..])
        );
    }
}
