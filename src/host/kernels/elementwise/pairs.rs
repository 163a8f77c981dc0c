//! Two instructions in one loop: sums, differences and products of f32, where nothing but the
//! second reads the first one's result. It stays in a register, and a tile is gone over once.
//!
//! Looked up by the planner. Each of the two rounds: the bits are those of two loops. See
//! `loops.rs` for the promises about pointers.

#![allow(unsafe_code)]

use super::forms::Instances;
use crate::dtype::DType;
use crate::graph::program::{Code, Instr};
use crate::host::kernels::simd::{Body, Level, Loop, Simd, instances};
use crate::op::BinaryOp;

/// How two numbers meet.
const ADD: u8 = 0;
const SUB: u8 = 1;
/// The first from the second.
const FROM: u8 = 2;
const MUL: u8 = 3;

#[inline(always)]
fn meet<const HOW: u8>(a: f32, b: f32) -> f32 {
    match HOW {
        ADD => a + b,
        SUB => a - b,
        FROM => b - a,
        _ => a * b,
    }
}

/// `dst[i] = SECOND(FIRST(a[i], b[i]), c[i])`; bit 0 of `ONE` says that b is one element, bit 1
/// that c is.
struct Pair<const FIRST: u8, const SECOND: u8, const ONE: u8>;

impl<const FIRST: u8, const SECOND: u8, const ONE: u8> Body for Pair<FIRST, SECOND, ONE> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        let (dst, a) = (dst.cast::<f32>(), a.cast::<f32>());
        let (b, c) = (b.cast::<f32>(), c.cast::<f32>());
        // SAFETY: the planner passes places of n elements, of one where it is one.
        unsafe {
            let (one_b, one_c) = (*b, *c);
            for i in 0..n {
                let b = if ONE & 1 != 0 { one_b } else { *b.add(i) };
                let c = if ONE & 2 != 0 { one_c } else { *c.add(i) };
                dst.add(i).write(meet::<SECOND>(meet::<FIRST>(*a.add(i), b), c));
            }
        }
    }
}

macro_rules! pairs {
    ($($first:ident)*) => { [$(pairs!(of $first: ADD SUB FROM MUL)),*] };
    (of $first:ident: $($second:ident)*) => {
        [$([
            instances::<Pair<$first, $second, 0>>(),
            instances::<Pair<$first, $second, 1>>(),
            instances::<Pair<$first, $second, 2>>(),
            instances::<Pair<$first, $second, 3>>(),
        ]),*]
    };
}
/// By how the first two meet and how their result meets the third, then by which are one element.
static PAIRS: [[[Instances; 4]; 4]; 4] = pairs!(ADD SUB FROM MUL);

/// How the operands of an instruction meet, if it can be one of a pair.
#[inline]
pub(super) fn how(instr: &Instr) -> Option<u8> {
    match instr.code {
        _ if (instr.on, instr.dtype) != (DType::F32, DType::F32) => None,
        Code::Binary(BinaryOp::Add, ..) => Some(ADD),
        Code::Binary(BinaryOp::Sub, ..) => Some(SUB),
        Code::Binary(BinaryOp::Mul, ..) => Some(MUL),
        _ => None,
    }
}

/// The same with the operands the other way round.
#[inline]
pub(super) fn turned(how: u8) -> u8 {
    if how == SUB { FROM } else { how }
}

/// The loop of two instructions; which of the second and the third operand are one element. The
/// first is a row of them.
#[inline]
pub(super) fn pair(level: Level, first: u8, second: u8, one: (bool, bool)) -> Loop {
    let one = one.0 as usize + 2 * one.1 as usize;
    PAIRS[first as usize][second as usize][one][level as usize]
}
