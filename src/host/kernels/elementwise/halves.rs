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
use crate::graph::program::Code;
use crate::host::kernels::load::{Load, Row, over};
use crate::host::kernels::simd::{Body, Level, Loop, Simd, instances};
use crate::op::{BinaryOp, UnaryOp, for_each_binary, for_each_unary};
use half::{bf16, f16};
use std::marker::PhantomData;

/// True where the f32 result of an op on 16-bit floats is itself one.
pub(super) fn is_exact(code: Code) -> bool {
    use BinaryOp as B;
    use UnaryOp as U;
    match code {
        Code::Unary(op, _) => {
            matches!(
                op,
                U::Neg | U::Abs | U::Sign | U::Relu | U::Floor | U::Ceil | U::Round | U::Trunc
            )
        }
        Code::Binary(op, _, _) => matches!(op, B::Maximum | B::Minimum | B::Fmod),
        Code::Where(..) | Code::Uniform { .. } | Code::Fill(_) => true,
        _ => false,
    }
}

/// How results are left: floats as `E`, truths as they are.
trait Leave<E>: Copy {
    type Left;
    /// What stands in an array before it is computed.
    const NOTHING: Self;
    /// # Safety
    /// There is room for `N`, and the machine has what the level says.
    unsafe fn leave<S: Simd, const N: usize>(all: [Self; N], to: *mut Self::Left);
}
impl<E: Load<f32>> Leave<E> for f32 {
    type Left = E;
    const NOTHING: f32 = 0.0;
    #[inline(always)]
    unsafe fn leave<S: Simd, const N: usize>(all: [f32; N], to: *mut E) {
        // SAFETY: by the caller's promise.
        unsafe { E::store_some::<S, N>(all, to) }
    }
}
impl<E> Leave<E> for bool {
    type Left = bool;
    const NOTHING: bool = false;
    #[inline(always)]
    unsafe fn leave<S: Simd, const N: usize>(all: [bool; N], to: *mut bool) {
        // SAFETY: by the caller's promise.
        unsafe { to.cast::<[bool; N]>().write(all) }
    }
}

/// `N` operands from `x + i` on; where they are a splat, `x` has one f32.
///
/// # Safety
/// There are so many, and the machine has what the level says.
#[inline(always)]
unsafe fn operand<S: Simd, E: Load<f32>, const N: usize>(
    x: *const u8,
    i: usize,
    is_splat: bool,
) -> [f32; N] {
    // SAFETY: by the caller's promise.
    unsafe {
        match is_splat {
            true => [*x.cast::<f32>(); N],
            false => E::load_some::<S, N>(x.cast::<E>().add(i)),
        }
    }
}

/// `dst[i] = F(a[i])`.
struct Map<F, E> {
    dst: *mut u8,
    a: *const u8,
    kind: PhantomData<(F, E)>,
}

impl<F: Fn1<f32, Out: Leave<E>>, E: Load<f32>> Row for Map<F, E> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let a = operand::<S, E, N>(self.a, i, false);
            let mut all = [F::Out::NOTHING; N];
            for k in 0..N {
                all[k] = F::eval::<S>(a[k]);
            }
            F::Out::leave::<S, N>(all, self.dst.cast::<<F::Out as Leave<E>>::Left>().add(i));
        }
    }
}

impl<F: Fn1<f32, Out: Leave<E>>, E: Load<f32>> Body for Map<F, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: the caller passes places of n elements.
        unsafe { over::<E, f32, S>(n, Map::<F, E> { dst, a, kind: PhantomData }) };
    }
}

/// `dst[i] = F(a[i], b[i])`; an operand that is a splat is one f32.
struct Zip<F, E, const SPLAT: u8> {
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    kind: PhantomData<(F, E)>,
}

impl<F: Fn2<f32, Out: Leave<E>>, E: Load<f32>, const SPLAT: u8> Row for Zip<F, E, SPLAT> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            let a = operand::<S, E, N>(self.a, i, SPLAT == FIRST);
            let b = operand::<S, E, N>(self.b, i, SPLAT == SECOND);
            let mut all = [F::Out::NOTHING; N];
            for k in 0..N {
                all[k] = F::eval::<S>(a[k], b[k]);
            }
            F::Out::leave::<S, N>(all, self.dst.cast::<<F::Out as Leave<E>>::Left>().add(i));
        }
    }
}

impl<F: Fn2<f32, Out: Leave<E>>, E: Load<f32>, const SPLAT: u8> Body for Zip<F, E, SPLAT> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: the caller passes places of n elements, of one f32 where it is a splat.
        unsafe { over::<E, f32, S>(n, Zip::<F, E, SPLAT> { dst, a, b, kind: PhantomData }) };
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
