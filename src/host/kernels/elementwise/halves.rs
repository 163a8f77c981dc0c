//! One op on 16-bit floats: read, computed as f32 and rounded in registers.
//!
//! Looked up by `direct`, for ops that stand alone, and by the planner; without a loop here each of
//! the three is a step over a tile. The bits are the same. See `loops.rs` for the promises about
//! pointers.

#![allow(unsafe_code)]

use super::forms::{FIRST, Instances, NONE, SECOND};
use super::loops::{Fn1, Fn2, ops, variant};
use super::mended::{Gamma, Mended, Rare1, Trig};
use crate::dtype::DType;
use crate::host::kernels::load::Load;
use crate::host::kernels::simd::{Body, Level, Loop, Simd, instances};
use crate::op::{BinaryOp, UnaryOp, for_each_binary, for_each_unary};
use half::{bf16, f16};
use std::marker::PhantomData;

/// How a result is left: a float as an `E`, a truth as it is.
trait Leave<E> {
    type Left;
    fn leave(self) -> Self::Left;
}
impl<E: Load<f32>> Leave<E> for f32 {
    type Left = E;
    #[inline(always)]
    fn leave(self) -> E {
        E::store(self)
    }
}
impl<E> Leave<E> for bool {
    type Left = bool;
    #[inline(always)]
    fn leave(self) -> bool {
        self
    }
}

/// `dst[i] = F(a[i])`.
struct Map<F, E>(PhantomData<(F, E)>);

impl<F: Fn1<f32, Out: Leave<E>>, E: Load<f32>> Body for Map<F, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        let (dst, a) = (dst.cast::<<F::Out as Leave<E>>::Left>(), a.cast::<E>());
        for i in 0..n {
            // SAFETY: the caller passes places of n elements.
            unsafe { dst.add(i).write(F::eval::<S>((*a.add(i)).load()).leave()) }
        }
    }
}

/// `dst[i] = F(a[i], b[i])`; an operand that is a splat is one f32.
struct Zip<F, E, const SPLAT: u8>(PhantomData<(F, E)>);

impl<F: Fn2<f32, Out: Leave<E>>, E: Load<f32>, const SPLAT: u8> Body for Zip<F, E, SPLAT> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        let dst = dst.cast::<<F::Out as Leave<E>>::Left>();
        // SAFETY: the caller passes places of n elements, of one f32 where it is a splat.
        unsafe {
            let one_a = if SPLAT == FIRST { *a.cast::<f32>() } else { 0.0 };
            let one_b = if SPLAT == SECOND { *b.cast::<f32>() } else { 0.0 };
            for i in 0..n {
                let a = if SPLAT == FIRST { one_a } else { (*a.cast::<E>().add(i)).load() };
                let b = if SPLAT == SECOND { one_b } else { (*b.cast::<E>().add(i)).load() };
                dst.add(i).write(F::eval::<S>(a, b).leave());
            }
        }
    }
}

/// `dst[i] = a[i] & AND ^ XOR`: what changes the sign alone needs no f32.
struct Bits<const AND: u16, const XOR: u16>;

impl<const AND: u16, const XOR: u16> Body for Bits<AND, XOR> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        let (dst, a) = (dst.cast::<u16>(), a.cast::<u16>());
        for i in 0..n {
            // SAFETY: the caller passes places of n elements.
            unsafe { dst.add(i).write(*a.add(i) & AND ^ XOR) }
        }
    }
}

const fn bits<const AND: u16, const XOR: u16>() -> Option<[Instances; 2]> {
    Some([instances::<Bits<AND, XOR>>(), instances::<Bits<AND, XOR>>()])
}

/// Of f16 and of bf16.
const fn map<F: Fn1<f32, Out: Leave<f16> + Leave<bf16>>>() -> Option<[Instances; 2]> {
    Some([instances::<Map<F, f16>>(), instances::<Map<F, bf16>>()])
}

const fn mended<F: Rare1>() -> Option<[Instances; 2]> {
    Some([instances::<Mended<F, f16, false>>(), instances::<Mended<F, bf16, false>>()])
}

const fn zip<F: Fn2<f32, Out: Leave<f16> + Leave<bf16>>>() -> Option<[[Instances; 3]; 2]> {
    Some([
        [
            instances::<Zip<F, f16, NONE>>(),
            instances::<Zip<F, f16, SECOND>>(),
            instances::<Zip<F, f16, FIRST>>(),
        ],
        [
            instances::<Zip<F, bf16, NONE>>(),
            instances::<Zip<F, bf16, SECOND>>(),
            instances::<Zip<F, bf16, FIRST>>(),
        ],
    ])
}

/// What is computed in f64, not in vectors or long, gains nothing.
macro_rules! unary_cell {
    ($class:ident, double, $V:ident) => {
        None
    };
    ($class:ident, $cost:ident, $V:ident) => {
        map::<ops::$V>()
    };
}

/// The arithmetic that waits for memory; what takes longer gains nothing.
macro_rules! binary_cell {
    (any, simple, $V:ident) => {
        zip::<ops::$V>()
    };
    (number, simple, $V:ident) => {
        zip::<ops::$V>()
    };
    (float, $cost:ident, $V:ident) => {
        zip::<ops::$V>()
    };
    (compare, simple, $V:ident) => {
        zip::<ops::$V>()
    };
    ($class:ident, $cost:ident, $V:ident) => {
        None
    };
}

macro_rules! unary_table {
($($name:ident: $V:ident {
        doc: $text:literal,
        page: $page:ident, class: $class:ident, cost: $cost:ident, $($columns:tt)*
    })*) => {
        /// By op, then f16 and bf16.
        static UNARY: [Option<[Instances; 2]>; UnaryOp::ALL.len()] = {
            let mut table = [$(unary_cell!($class, $cost, $V)),*];
            table[UnaryOp::Neg as usize] = bits::<{ u16::MAX }, 0x8000>();
            table[UnaryOp::Abs as usize] = bits::<0x7fff, 0>();
            table[UnaryOp::Sin as usize] = mended::<Trig<0>>();
            table[UnaryOp::Cos as usize] = mended::<Trig<1>>();
            table[UnaryOp::Tan as usize] = mended::<Trig<2>>();
            table[UnaryOp::Lgamma as usize] = mended::<Gamma<0>>();
            table[UnaryOp::Digamma as usize] = mended::<Gamma<1>>();
            table
        };
    };
}
macro_rules! binary_table {
($($name:ident: $V:ident {
        doc: $text:literal,
        class: $class:ident, cost: $cost:ident, $($columns:tt)*
    })*) => {
        /// By op, then f16 and bf16, then by which operand is a splat.
        static BINARY: [Option<[[Instances; 3]; 2]>; BinaryOp::ALL.len()] =
            [$(binary_cell!($class, $cost, $V)),*];
    };
}
for_each_unary!(unary_table);
for_each_binary!(binary_table);

/// The loop of a unary op on 16-bit floats, where there is one.
#[inline]
pub(super) fn unary(level: Level, op: UnaryOp, dtype: DType) -> Option<Loop> {
    UNARY[op as usize].map(|of| of[(dtype == DType::BF16) as usize][level as usize])
}

/// The loop of a binary op on 16-bit floats, where there is one. An operand that is marked as a
/// splat is one f32.
#[inline]
pub(super) fn binary(
    level: Level,
    op: BinaryOp,
    dtype: DType,
    splat: (bool, bool),
) -> Option<Loop> {
    let of = BINARY[op as usize].as_ref()?;
    Some(of[(dtype == DType::BF16) as usize][variant(splat)][level as usize])
}
