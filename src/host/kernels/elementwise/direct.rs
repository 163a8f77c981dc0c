//! One op over inputs that lie row by row, or are one number: a single loop straight from memory to
//! memory.
//!
//! Tried by the executor before a plan is made, for small eager ops are mostly this and a plan
//! would take longer than they do. Knows no tiles.

#![allow(unsafe_code)]

use super::forms::LANES;
use super::gather::Lie;
use super::loops;
use super::plan::{Call, is_half, write_immediate};
use super::planner::how;
use super::rep::Rep;
use super::{halves, moves};
use crate::dtype::{DType, Scalar};
use crate::graph::program::{Arg, Code};
use crate::host::kernels::simd::Loop;
use crate::host::kernels::stream::{LINE, fence};
use crate::op::{BinaryOp, Class, UnaryOp};
use std::ops::Range;

/// An operand: where its first element is, and whether that is the only one.
type Operand = (*const u8, bool);

/// Computes the range if the program is simple enough; returns whether it was.
///
/// # Safety
/// Inputs may be read, and outputs written, at every position of the range.
#[inline]
pub(super) unsafe fn run(call: &Call<'_>, range: &Range<usize>) -> bool {
    let instrs = &call.program.instrs[..];
    let [output] = call.program.outputs[..] else { return false };
    let last = instrs.len() - 1;
    if output as usize != last || last > 2 || !call.lookups.is_empty() {
        return false;
    }
    let instr = &instrs[last];
    // Beside a number halves are computed on f32: their loops take the number as f32 anyway.
    let of = match instr.code {
        Code::Cast(_) => instr.on,
        _ if is_half(instr.dtype) => instr.dtype,
        _ => instr.on,
    };
    let half = is_half(of);
    let dst = call.outputs[0].wrapping_add(range.start * instr.dtype.size());
    let mut cells = [0u64; 2];
    let mut operand = |arg: Arg, cell: usize| -> Option<Operand> {
        match arg {
            Arg::Scalar(x) => {
                let cell = (&raw mut cells[cell]).cast();
                // SAFETY: a u64 has room for any element.
                unsafe { write_immediate(x, instr.on, cell) };
                Some((cell, true))
            }
            Arg::Reg(r) => {
                let Code::Input(k) = instrs[r as usize].code else { return None };
                let view = &call.inputs[k as usize];
                match how(view) {
                    Lie::Contiguous if view.dtype != of => None,
                    // A long loop over its own operand would not be vectorised.
                    Lie::Contiguous if view.ptr != call.outputs[0] || range.len() <= 16 => {
                        Some((view.ptr.wrapping_add(range.start * view.dtype.size()), false))
                    }
                    Lie::Uniform if is_half(view.dtype) => {
                        let cell = (&raw mut cells[cell]).cast();
                        let widen = moves::widen(call.level, view.dtype);
                        // SAFETY: one element of the input, and a cell.
                        unsafe { widen(cell, view.ptr, std::ptr::null(), std::ptr::null(), 1) };
                        Some((cell, true))
                    }
                    Lie::Uniform => Some((view.ptr, true)),
                    _ => None,
                }
            }
        }
    };
    let rep = Rep::of(instr.on);
    let (run, a, b) = match instr.code {
        Code::Unary(op, a) => {
            let Some((a, false)) = operand(a, 0) else { return false };
            let run = match half {
                true if call.stream => return false,
                true => match halves::unary(call.level, op, of) {
                    Some(run) => run,
                    None => return false,
                },
                false => loops::unary(call.level, op, rep),
            };
            if call.stream {
                let Some(streamed) = loops::streamed(call.level, op, rep) else { return false };
                // SAFETY: the caller's promise; elements are floats.
                unsafe { in_lines(run, streamed, dst.cast(), a.cast(), range.len()) };
                return true;
            }
            (run, a, std::ptr::null())
        }
        _ if call.stream => return false,
        Code::Binary(op, a, b) => {
            let (Some(a), Some(b)) = (operand(a, 0), operand(b, 1)) else { return false };
            if a.1 && b.1 || op.class() == Class::logic && rep != Rep::Bool {
                return false;
            }
            let run = match half {
                true => match halves::binary(call.level, op, of, (a.1, b.1)) {
                    Some(run) => run,
                    None => return false,
                },
                false => loops::binary(call.level, op, rep, (a.1, b.1)),
            };
            (run, a.0, b.0)
        }
        Code::Cast(a) => {
            let Some((a, false)) = operand(a, 0) else { return false };
            let run = match (instr.on, instr.dtype) {
                (DType::F32, to) if is_half(to) => moves::narrow(call.level, to),
                (from, DType::F32) if half => moves::widen(call.level, from),
                _ => return false,
            };
            (run, a, std::ptr::null())
        }
        _ => return false,
    };
    // SAFETY: the caller's promise; operands are as many as the range, or one where the loop reads
    // one.
    unsafe { run(dst, a, b, std::ptr::null(), range.len()) };
    true
}

/// Runs one loop over what is no whole line of the destination, and the other over its lines,
/// around the caches.
///
/// # Safety
/// `a` may be read and `dst` written for `n` floats; the loops are of one op and take floats.
unsafe fn in_lines(run: Loop, streamed: Loop, dst: *mut f32, a: *const f32, n: usize) {
    let head = dst.align_offset(LINE).min(n);
    let lines = (n - head) / LANES * LANES;
    let done = head + lines;
    // SAFETY: the caller's promise; all three lie within.
    unsafe {
        for (run, from, n) in [(run, 0, head), (streamed, head, lines), (run, done, n - done)] {
            run(dst.add(from).cast(), a.add(from).cast(), std::ptr::null(), std::ptr::null(), n);
        }
    }
    fence();
}

/// An op of the table, alone.
#[derive(Clone, Copy)]
pub(crate) enum One {
    Unary(UnaryOp),
    Binary(BinaryOp),
}

/// Where an operand is: its elements one after the other, or one for all positions.
#[derive(Clone, Copy)]
pub(crate) struct Lone {
    ptr: *const u8,
    is_same: bool,
}

impl Lone {
    pub fn each(ptr: *const u8) -> Lone {
        Lone { ptr, is_same: false }
    }
    pub fn same(ptr: *const u8) -> Lone {
        Lone { ptr, is_same: true }
    }
    pub fn is_null(self) -> bool {
        self.ptr.is_null()
    }
}

/// A number as an operand of this type, which is written to a cell.
///
/// # Safety
/// The cell has room for an element, and is aligned for any.
#[inline]
pub(crate) unsafe fn lone_number(x: Scalar, on: DType, cell: *mut u8) -> Lone {
    // SAFETY: the caller's promise.
    unsafe { write_immediate(x, on, cell) };
    Lone::same(cell)
}

/// Computes one op on a few elements, with nothing around it: no program, no views, no plan. `on`
/// is the type of the operands and of the computation. Returns whether it was simple enough.
///
/// # Safety
/// Operands and `dst` are valid for `n` elements, those that are the same everywhere for one.
#[inline]
pub(crate) unsafe fn one(op: One, on: DType, a: Lone, b: Lone, dst: *mut u8, n: usize) -> bool {
    if is_half(on) {
        return false;
    }
    let (rep, level) = (Rep::of(on), super::level());
    let (a, mut b) = ((a.ptr, a.is_same || n == 1), (b.ptr, b.is_same || n == 1));
    let run = match op {
        One::Unary(op) => {
            if a.1 && n != 1 {
                return false;
            }
            loops::unary(level, op, rep)
        }
        One::Binary(op) => {
            if op.class() == Class::logic && rep != Rep::Bool {
                return false;
            }
            // There is no loop over two numbers; a lone element is as good as a row of one.
            if a.1 && b.1 {
                if n != 1 {
                    return false;
                }
                b.1 = false;
            }
            loops::binary(level, op, rep, (a.1, b.1))
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(dst, a.0, b.0, std::ptr::null(), n) };
    true
}
