//! Loops that move elements: conversions between types, choices, copies, fills, and the store that
//! goes around the cache.
//!
//! Looked up by the planner as the loops of ops are; see `loops.rs` for the promises about
//! pointers.

#![allow(unsafe_code)]

use super::rep::Rep;
use crate::dtype::{DType, float_to_u64};
use crate::float8::{self, Float8E4M3, Float8E5M2, narrow_odd};
use crate::host::kernels::load::{Load, Narrowed, Widened, over};
use crate::host::kernels::run::copy_run;
use crate::host::kernels::simd::{Body, LEVELS, Level, Loop, Simd, instances};
use half::{bf16, f16};
use smallvec::{SmallVec, smallvec};
use std::hint::select_unpredictable;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::slice::{from_raw_parts, from_raw_parts_mut};

type Instances = [Loop; LEVELS];

/// A conversion of one element.
trait Convert<A, R> {
    fn convert(x: A) -> R;
}

struct Each<F, A, R>(PhantomData<(F, A, R)>);

impl<A: Copy, R, F: Convert<A, R>> Body for Each<F, A, R> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: the planner passes places of n elements of these types.
        let (dst, a) = unsafe {
            (from_raw_parts_mut(dst.cast::<MaybeUninit<R>>(), n), from_raw_parts(a.cast::<A>(), n))
        };
        for (y, &x) in dst.iter_mut().zip(a) {
            y.write(F::convert(x));
        }
    }
}

/// Rust's `as`; to bool, `!= 0`.
struct As;

macro_rules! casts {
    ($($A:ident to $($R:ident)*;)*) => {$($(
        impl Convert<$A, $R> for As {
            #[inline(always)]
            fn convert(x: $A) -> $R { x as $R }
        }
    )*)*};
}
casts! {
    f32 to f32 f64 i32 i64;
    f64 to f32 f64 i32 i64;
    i32 to f32 f64 i32 i64 u8;
    i64 to f32 f64 i32 i64 u8 u16;
    u64 to f32 f64;
    u32 to i64;
    i8 to i32;
    i16 to i32;
    u16 to i32;
    u8 to f32 f64 i32 i64 u8;
    bool to i32 i64 u8 bool;
}
macro_rules! casts_of_bool {
    ($($T:ident $zero:literal),*) => {$(
        impl Convert<$T, bool> for As {
            #[inline(always)]
            fn convert(x: $T) -> bool { x != $zero }
        }
    )*};
}
casts_of_bool!(f32 0.0, f64 0.0, i32 0, i64 0, u8 0);
// A float becomes a u8 by way of i64, as `Element` has it and as PyTorch does in practice: -1.0 is
// 255.
impl Convert<f32, u8> for As {
    #[inline(always)]
    fn convert(x: f32) -> u8 {
        x as i64 as u8
    }
}
impl Convert<f64, u8> for As {
    #[inline(always)]
    fn convert(x: f64) -> u8 {
        x as i64 as u8
    }
}
impl Convert<bool, f32> for As {
    #[inline(always)]
    fn convert(x: bool) -> f32 {
        x as u8 as f32
    }
}
impl Convert<bool, f64> for As {
    #[inline(always)]
    fn convert(x: bool) -> f64 {
        x as u8 as f64
    }
}

impl Convert<f64, u64> for As {
    #[inline(always)]
    fn convert(x: f64) -> u64 {
        float_to_u64(x)
    }
}
macro_rules! casts_of_float8 {
    ($($T:ident $widen:ident $narrow:ident),*) => {$(
        impl Convert<$T, f32> for As {
            #[inline(always)]
            fn convert(x: $T) -> f32 { float8::$widen(x.to_bits()) }
        }
        impl Convert<f32, $T> for As {
            #[inline(always)]
            fn convert(x: f32) -> $T { $T::from_bits(float8::$narrow(x)) }
        }
    )*};
}
casts_of_float8!(Float8E4M3 widen_e4m3 narrow_e4m3, Float8E5M2 widen_e5m2 narrow_e5m2);

macro_rules! cast_table {
    ($($A:ident)*) => {
        [$([
            instances::<Each<As, $A, f32>>(), instances::<Each<As, $A, f64>>(),
            instances::<Each<As, $A, i32>>(), instances::<Each<As, $A, i64>>(),
            instances::<Each<As, $A, u8>>(), instances::<Each<As, $A, bool>>(),
        ]),*]
    };
}
/// By the representation that is converted, then by the one it becomes.
static CASTS: [[Instances; 6]; 6] = cast_table!(f32 f64 i32 i64 u8 bool);

/// The loop that converts between representations, as Rust's `as` does; to bool, `!= 0`.
#[inline]
pub(super) fn cast(level: Level, from: Rep, to: Rep) -> Loop {
    CASTS[from as usize][to as usize][level as usize]
}

/// To an f32 that is rounded to odd, so that rounding it once more to 16 bits is rounding once.
struct Odd;
impl Convert<f64, f32> for Odd {
    #[inline(always)]
    fn convert(x: f64) -> f32 {
        narrow_odd(x)
    }
}
impl Convert<i32, f32> for Odd {
    #[inline(always)]
    fn convert(x: i32) -> f32 {
        narrow_odd(x as f64)
    }
}
impl Convert<i64, f32> for Odd {
    #[inline(always)]
    fn convert(x: i64) -> f32 {
        narrow_odd(x as f64)
    }
}

/// The loop that converts to f32 on the way to a 16-bit float.
#[inline]
pub(super) fn cast_odd(level: Level, from: Rep) -> Loop {
    static ODD: [Instances; 3] = [
        instances::<Each<Odd, f64, f32>>(),
        instances::<Each<Odd, i32, f32>>(),
        instances::<Each<Odd, i64, f32>>(),
    ];
    match from {
        Rep::F64 => ODD[0][level as usize],
        Rep::I32 => ODD[1][level as usize],
        Rep::I64 => ODD[2][level as usize],
        _ => cast(level, from, Rep::F32), // exact
    }
}

/// The loops of a conversion, one after the other, and how they leave an element.
struct Chain {
    level: Level,
    rep: Rep,
    loops: SmallVec<[Loop; 3]>,
}

impl Chain {
    fn by(&mut self, instances: &Instances) {
        self.loops.push(instances[self.level as usize]);
    }

    fn to(&mut self, rep: Rep) {
        if self.rep != rep {
            self.loops.push(cast(self.level, self.rep, rep));
            self.rep = rep;
        }
    }

    /// To an f32 that is rounded next.
    fn odd(&mut self) {
        if self.rep != Rep::F32 {
            self.loops.push(cast_odd(self.level, self.rep));
            self.rep = Rep::F32;
        }
    }
}

const fn each<F: Convert<A, R>, A: Copy, R>() -> Instances {
    instances::<Each<F, A, R>>()
}

/// The loops of a conversion from or to a type for storage, one after the other: three at most, and
/// no element between them has more than eight bytes. 16-bit floats are to be rounded after them.
///
/// Such a type has a loop that reads it as its [`Rep`], and one that writes it; between them are
/// the loops of the types with arithmetic. What has the same bits needs none: a u64 is an i64, a
/// u32 an i32, and what keeps the low byte of a number is a conversion to u8.
pub(super) fn conversion(level: Level, from: DType, to: DType) -> SmallVec<[Loop; 3]> {
    static READ: [Instances; 8] = [
        each::<As, i8, i32>(),
        each::<As, i16, i32>(),
        each::<As, u16, i32>(),
        each::<As, u32, i64>(),
        each::<As, u64, f32>(),
        each::<As, u64, f64>(),
        each::<As, Float8E4M3, f32>(),
        each::<As, Float8E5M2, f32>(),
    ];
    static WRITE: [Instances; 4] = [
        each::<As, i64, u16>(),
        each::<As, f64, u64>(),
        each::<As, f32, Float8E4M3>(),
        each::<As, f32, Float8E5M2>(),
    ];
    let mut chain = Chain { level, rep: Rep::of(from), loops: SmallVec::new() };
    match from {
        DType::I8 => chain.by(&READ[0]),
        DType::I16 => chain.by(&READ[1]),
        DType::U16 => chain.by(&READ[2]),
        DType::U32 => chain.by(&READ[3]),
        DType::U64 if to == DType::F32 => {
            chain.by(&READ[4]);
            chain.rep = Rep::F32;
        }
        DType::U64 if to.is_differentiable() => {
            chain.by(&READ[5]);
            chain.rep = Rep::F64;
        }
        DType::F8E4M3 => chain.by(&READ[6]),
        DType::F8E5M2 => chain.by(&READ[7]),
        _ => {}
    }
    match to {
        DType::I8 => chain.loops.push(cast(level, chain.rep, Rep::U8)),
        DType::I16 | DType::U16 => {
            chain.to(Rep::I64);
            chain.by(&WRITE[0]);
        }
        DType::U32 if chain.rep == Rep::I32 => {}
        DType::U32 => {
            chain.to(Rep::I64);
            chain.to(Rep::I32);
        }
        DType::U64 if matches!(chain.rep, Rep::F32 | Rep::F64) => {
            chain.to(Rep::F64);
            chain.by(&WRITE[1]);
        }
        DType::U64 => chain.to(Rep::I64),
        DType::F8E4M3 => {
            chain.odd();
            chain.by(&WRITE[2]);
        }
        DType::F8E5M2 => {
            chain.odd();
            chain.by(&WRITE[3]);
        }
        DType::F16 | DType::BF16 => chain.odd(),
        DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U8 | DType::Bool => {
            chain.to(Rep::of(to));
        }
    }
    if chain.loops.is_empty() { smallvec![copy(level, to.size())] } else { chain.loops }
}

/// 16-bit floats as f32.
struct Widen<E>(PhantomData<E>);

impl<E: Load<f32>> Body for Widen<E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        let row = Widened::<E, f32> { from: a.cast(), to: dst.cast() };
        // SAFETY: the planner passes places of n elements of these types.
        unsafe { over::<E, f32, S>(n, row) };
    }
}

/// f32 as 16-bit floats.
struct Narrow<E>(PhantomData<E>);

impl<E: Load<f32>> Body for Narrow<E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        let row = Narrowed::<f32, E> { from: a.cast(), to: dst.cast() };
        // SAFETY: as above.
        unsafe { over::<E, f32, S>(n, row) };
    }
}

/// f32 as what a 16-bit float can hold: of one element, as the planner has it.
struct Round<E>(PhantomData<E>);

impl<E: Load<f32>> Convert<f32, f32> for Round<E> {
    #[inline(always)]
    fn convert(x: f32) -> f32 {
        E::store(x).load()
    }
}

/// Whether a 16-bit float is not zero.
struct Truth;
impl Convert<u16, bool> for Truth {
    #[inline(always)]
    fn convert(x: u16) -> bool {
        x & 0x7fff != 0
    }
}

/// The loop that converts 16-bit floats to bool.
#[inline]
pub(super) fn half_truth(level: Level) -> Loop {
    static LOOPS: Instances = instances::<Each<Truth, u16, bool>>();
    LOOPS[level as usize]
}

/// A loop for f16 and one for bf16.
macro_rules! halves {
    ($(#[$doc:meta])* $name:ident, $Half:ty, $Brain:ty) => {
        $(#[$doc])*
        #[inline]
        pub(super) fn $name(level: Level, dtype: DType) -> Loop {
            static LOOPS: [Instances; 2] = [instances::<$Half>(), instances::<$Brain>()];
            LOOPS[(dtype == DType::BF16) as usize][level as usize]
        }
    };
}
halves!(
    /// The loop that reads 16-bit floats as f32.
    widen, Widen<f16>, Widen<bf16>
);
halves!(
    /// The loop that rounds f32 to 16-bit floats.
    narrow, Narrow<f16>, Narrow<bf16>
);
halves!(
    /// The loop that rounds f32 to what 16-bit floats can hold.
    round, Each<Round<f16>, f32, f32>, Each<Round<bf16>, f32, f32>
);

/// `dst[i] = if a[i] { b[i] } else { c[i] }`; bit 0 of `SPLAT` says that b is one element, bit 1
/// that c is.
struct Select<T, const SPLAT: u8>(PhantomData<T>);

impl<T: Copy, const SPLAT: u8> Body for Select<T, SPLAT> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: the planner passes places of n elements of these types, of one where it is a
        // splat.
        unsafe {
            let dst = from_raw_parts_mut(dst.cast::<MaybeUninit<T>>(), n);
            let a = from_raw_parts(a.cast::<bool>(), n);
            let (b, c) = (b.cast::<T>(), c.cast::<T>());
            let b = from_raw_parts(b, if SPLAT & 1 != 0 { 1 } else { n });
            let c = from_raw_parts(c, if SPLAT & 2 != 0 { 1 } else { n });
            for i in 0..n {
                // SAFETY: i < n, and splats are read at 0.
                let b = *b.get_unchecked(if SPLAT & 1 != 0 { 0 } else { i });
                let c = *c.get_unchecked(if SPLAT & 2 != 0 { 0 } else { i });
                // An `if` has become a choice of addresses, and a gather: six times slower.
                dst.get_unchecked_mut(i).write(select_unpredictable(*a.get_unchecked(i), b, c));
            }
        }
    }
}

macro_rules! selects {
    ($T:ty) => {
        [
            instances::<Select<$T, 0>>(),
            instances::<Select<$T, 1>>(),
            instances::<Select<$T, 2>>(),
            instances::<Select<$T, 3>>(),
        ]
    };
}

/// The loop of `where` for elements of a size; which of the two values are splats.
#[inline]
pub(super) fn select(level: Level, size: usize, splat: (bool, bool)) -> Loop {
    static LOOPS: [[Instances; 4]; 4] = [selects!(u8), selects!(u16), selects!(u32), selects!(u64)];
    let splat = splat.0 as usize + 2 * splat.1 as usize;
    LOOPS[size.trailing_zeros() as usize][splat][level as usize]
}

/// `dst[i] = a[0]`.
struct Fill<T>(PhantomData<T>);

impl<T: Copy> Body for Fill<T> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: the caller passes a place of n elements and one element.
        unsafe {
            from_raw_parts_mut(dst.cast::<MaybeUninit<T>>(), n)
                .fill(MaybeUninit::new(*a.cast::<T>()))
        }
    }
}

/// The loop that repeats one element of so many bytes.
#[inline]
pub(super) fn fill(level: Level, size: usize) -> Loop {
    static LOOPS: [Instances; 4] = [
        instances::<Fill<u8>>(),
        instances::<Fill<u16>>(),
        instances::<Fill<u32>>(),
        instances::<Fill<u64>>(),
    ];
    LOOPS[size.trailing_zeros() as usize][level as usize]
}

/// `dst[i] = a[i]`, for elements of any type of `BYTES` bytes.
struct Copy_<const BYTES: usize>;

impl<const BYTES: usize> Body for Copy_<BYTES> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: the caller passes two places of n elements that do not overlap.
        unsafe { copy_run(dst, a, n * BYTES) }
    }
}

/// The loop that copies elements of so many bytes.
#[inline]
pub(super) fn copy(level: Level, size: usize) -> Loop {
    static LOOPS: [Instances; 4] = [
        instances::<Copy_<1>>(),
        instances::<Copy_<2>>(),
        instances::<Copy_<4>>(),
        instances::<Copy_<8>>(),
    ];
    LOOPS[size.trailing_zeros() as usize][level as usize]
}
