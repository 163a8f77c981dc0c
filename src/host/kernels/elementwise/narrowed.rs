//! A program that widens 16-bit floats to f32 and rounds its results, done on those halves.
//!
//! Rules of gradients read halves as f32, and what they give is rounded: three loops and more where
//! one does, for an op on halves is just that, read as f32, computed and rounded once. The bits are
//! the same. Asked by the executor before a long program is planned; knows no memory.

use super::plan::is_half;
use crate::dtype::{DType, Element, Scalar};
use crate::graph::program::{Arg, Code, INSTRS_MAX, Instr, Program, Reg};
use half::{bf16, f16};
use smallvec::SmallVec;

/// The program with what it computes between conversions of halves done on halves, and the numbers
/// of the inputs that it still reads; `None` where that is nothing.
pub(super) fn narrowed(program: &Program) -> Option<(Program, SmallVec<[u8; 4]>)> {
    let widens = |instr: &Instr| is_half(instr.on) && instr.dtype == DType::F32;
    if !program.instrs.iter().any(widens) {
        return None;
    }
    let mut reads = [0u8; INSTRS_MAX];
    let read = program.instrs.iter().flat_map(|instr| instr.code.operands());
    for r in read.chain(program.outputs.iter().copied()) {
        reads[r as usize] += 1;
    }
    let mut out = None;
    for (i, instr) in program.instrs.iter().enumerate() {
        let on_halves = match instr.code {
            // What is rounded next and read by nobody else.
            Code::Cast(Arg::Reg(r)) if instr.on == DType::F32 && is_half(instr.dtype) => {
                let inner = &program.instrs[r as usize];
                let is_own =
                    reads[r as usize] == 1 && (inner.on, inner.dtype) == (DType::F32, DType::F32);
                let found = if is_own { of_halves(program, inner.code) } else { None };
                found.filter(|&(_, on)| on == instr.dtype)
            }
            // A truth is not rounded.
            Code::Unary(..) | Code::Binary(..)
                if (instr.on, instr.dtype) == (DType::F32, DType::Bool) =>
            {
                of_halves(program, instr.code)
            }
            _ => None,
        };
        if let Some((code, on)) = on_halves {
            let out = out.get_or_insert_with(|| program.clone());
            out.instrs[i] = Instr { code, on, ..*instr };
        }
    }
    out.map(|out| out.only(&out.outputs))
}

/// An instruction on f32 whose operands are halves, all of one type, or numbers that this type has:
/// the same on those halves.
fn of_halves(program: &Program, code: Code) -> Option<(Code, DType)> {
    let half_of = |r: Reg| match &program.instrs[r as usize] {
        &Instr { code: Code::Cast(Arg::Reg(half)), on, dtype: DType::F32 } if is_half(on) => {
            Some((half, on))
        }
        _ => None,
    };
    // A number may stand in a register of its own.
    let number = |arg: Arg| match arg {
        Arg::Reg(r) => match program.instrs[r as usize] {
            Instr { code: Code::Fill(x), dtype: DType::F32, .. } => Arg::Scalar(x),
            _ => arg,
        },
        Arg::Scalar(_) => arg,
    };
    // The condition of a choice is no half.
    let values = match code {
        Code::Unary(_, a) => [Some(number(a)), None],
        Code::Binary(_, a, b) | Code::Where(_, a, b) => [Some(number(a)), Some(number(b))],
        _ => return None,
    };
    let regs = values.iter().flatten().filter_map(|&arg| match arg {
        Arg::Reg(r) => Some(r),
        Arg::Scalar(_) => None,
    });
    let (mut on, mut all) = (None, true);
    for r in regs {
        let own = half_of(r).map(|(_, on)| on);
        all &= own.is_some() && (on.is_none() || on == own);
        on = own;
    }
    let on = on.filter(|_| all)?;
    let has = |x: Scalar| {
        let x = f32::from_scalar(x);
        let rounded = match on {
            DType::F16 => f16::from_f32(x).to_f32(),
            _ => bf16::from_f32(x).to_f32(),
        };
        rounded.to_bits() == x.to_bits()
    };
    let fits = |arg: &Arg| match *arg {
        Arg::Scalar(x) => has(x),
        Arg::Reg(_) => true,
    };
    let narrow = |arg: Arg| match number(arg) {
        Arg::Reg(r) => Arg::Reg(half_of(r).map_or(r, |(half, _)| half)),
        number @ Arg::Scalar(_) => number,
    };
    let code = match code {
        Code::Unary(op, a) => Code::Unary(op, narrow(a)),
        Code::Binary(op, a, b) => Code::Binary(op, narrow(a), narrow(b)),
        Code::Where(c, a, b) => Code::Where(c, narrow(a), narrow(b)),
        other => other,
    };
    values.iter().flatten().all(fits).then_some((code, on))
}
