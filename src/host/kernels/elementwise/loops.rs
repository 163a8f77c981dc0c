//! The loops: every op of the table over arrays of every type that it takes, at every SIMD level.
//!
//! [`unary`], [`binary`], [`select`], [`cast`] and their like look a loop up by op and type; the
//! planner calls them once per instruction. A loop knows neither tiles nor programs. Its
//! destination overlaps no operand, unless it is the very same memory (and then the loop is not
//! vectorised). An op on 16-bit floats is a loop of `halves`, or one here on f32 ([`Rep`]) between
//! conversions. Ops with rare elements are loops of `mended`.

#![allow(unsafe_code)]

use super::forms::{AHEAD, FIRST, Instances, LANES, NONE, SECOND};
use super::mended::{self, Chosen, Gamma, Mended, Trig, rest};
use super::rep::{REPS, Rep};
use crate::host::kernels::math::{Lane, Number, Real, Value};
use crate::host::kernels::simd::{Body, Level, Loop, Simd, instances};
use crate::host::kernels::stream::{copy_line, prefetch_second};
use crate::op::{BinaryOp, Class, UnaryOp, for_each_binary, for_each_unary};
use std::marker::PhantomData;

/// A function of one element.
pub(super) trait Fn1<A> {
    type Out;
    fn eval<S: Simd>(a: A) -> Self::Out;
}

/// A function of two elements.
pub(super) trait Fn2<A> {
    type Out;
    fn eval<S: Simd>(a: A, b: A) -> Self::Out;
}

/// `dst[i] = F(a[i])`.
struct Map<F, A>(PhantomData<(F, A)>);

impl<A: Copy, F: Fn1<A>> Body for Map<F, A> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        let (dst, a) = (dst.cast::<F::Out>(), a.cast::<A>());
        for i in 0..n {
            // SAFETY: the planner passes places of n elements of these types.
            unsafe { dst.add(i).write(F::eval::<S>(*a.add(i))) }
        }
    }
}

/// The same around the caches: `dst` is aligned to lines and has whole ones. Each is computed in
/// registers, so that the memory is at work all the while: by tiles, which are computed and then
/// written, 64 MiB of `tanh` took 3.4 ms instead of 1.9, of `gelu` 4.0 instead of 2.5, of `exp` 2.6
/// instead of 1.2 (two cores of a Zen 5).
struct Streamed<F>(PhantomData<F>);

impl<F: Fn1<f32, Out = f32>> Body for Streamed<F> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        for at in (0..n).step_by(LANES) {
            let mut line = [0f32; LANES];
            // SAFETY: the planner passes places of n floats, in whole lines.
            unsafe {
                let (dst, a) = (dst.cast::<f32>().add(at), a.cast::<f32>().add(at));
                prefetch_second(a.cast::<u8>().wrapping_add(AHEAD));
                for (i, y) in line.iter_mut().enumerate() {
                    *y = F::eval::<S>(*a.add(i));
                }
                copy_line::<S>(line.as_ptr().cast(), dst.cast());
            }
        }
    }
}

/// `dst[i] = F(a[i], b[i])`; an operand that is a `splat` is one element for all i.
struct Zip<F, A, const SPLAT: u8>(PhantomData<(F, A)>);

impl<A: Copy, F: Fn2<A>, const SPLAT: u8> Body for Zip<F, A, SPLAT> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        let (dst, a, b) = (dst.cast::<F::Out>(), a.cast::<A>(), b.cast::<A>());
        // SAFETY: the planner passes places of n elements of these types, of one where it is a
        // splat.
        unsafe {
            match SPLAT {
                SECOND => {
                    let b = *b;
                    for i in 0..n {
                        dst.add(i).write(F::eval::<S>(*a.add(i), b));
                    }
                }
                FIRST => {
                    let a = *a;
                    for i in 0..n {
                        dst.add(i).write(F::eval::<S>(a, *b.add(i)));
                    }
                }
                _ => {
                    for i in 0..n {
                        dst.add(i).write(F::eval::<S>(*a.add(i), *b.add(i)));
                    }
                }
            }
        }
    }
}

const fn map<F: Fn1<A>, A: Copy>() -> Option<Instances> {
    Some(instances::<Map<F, A>>())
}

const fn zip<F: Fn2<A>, A: Copy>() -> Option<[Instances; 3]> {
    Some([
        instances::<Zip<F, A, NONE>>(),
        instances::<Zip<F, A, SECOND>>(),
        instances::<Zip<F, A, FIRST>>(),
    ])
}

/// Marker types, one a row of the table, that carry the table's expressions.
#[allow(non_camel_case_types)]
pub(super) mod ops {
    macro_rules! markers {
        ($($name:ident: $V:ident { doc: $doc:literal, $($columns:tt)* })*) => {
            $(#[doc = $doc] pub(in super::super) struct $V;)*
        };
    }
    crate::op::for_each_unary!(markers);
    crate::op::for_each_binary!(markers);
}

/// The result of an expression: that of a lane, or a truth value as it is.
trait Done<R> {
    fn done(self) -> R;
}
impl<S, R> Done<R> for Lane<S, R> {
    #[inline(always)]
    fn done(self) -> R {
        self.0
    }
}
impl Done<bool> for bool {
    #[inline(always)]
    fn done(self) -> bool {
        self
    }
}

macro_rules! implement {
    ($V:ident, |$x:ident| $e:expr, $($A:ty => $R:ty),*) => {$(
        impl Fn1<$A> for ops::$V {
            type Out = $R;
            #[inline(always)]
            fn eval<S: Simd>($x: $A) -> $R {
                let $x = Lane::<S, $A>::new($x);
                Done::<$R>::done($e)
            }
        }
    )*};
    ($V:ident, |$a:ident, $b:ident| $e:expr, $($A:ty => $R:ty),*) => {$(
        impl Fn2<$A> for ops::$V {
            type Out = $R;
            #[inline(always)]
            fn eval<S: Simd>($a: $A, $b: $A) -> $R {
                let ($a, $b) = (Lane::<S, $A>::new($a), Lane::<S, $A>::new($b));
                Done::<$R>::done($e)
            }
        }
    )*};
}

/// A class of unary ops: which types have a loop. The first form implements, the second is a row.
macro_rules! unary_class {
    (number, $V:ident, |$x:ident| $e:expr) => {
        implement!($V, |$x| $e, f32 => f32, f64 => f64, i32 => i32, i64 => i64, u8 => u8);
    };
    (test, $V:ident, |$x:ident| $e:expr) => {
        implement!(
            $V, |$x| $e,
            f32 => bool, f64 => bool, i32 => bool, i64 => bool, u8 => bool, bool => bool
        );
    };
    (float, $V:ident, |$x:ident| $e:expr) => {
        implement!($V, |$x| $e, f32 => f32, f64 => f64);
    };
    (real, $V:ident, |$x:ident| $e:expr) => {
        implement!($V, |$x| $e, f32 => f32, f64 => f64);
    };
    (number, $V:ident) => { row!(map, $V, f32, f64, i32, i64, u8, ()) };
    (test, $V:ident) => { row!(map, $V, f32, f64, i32, i64, u8, bool) };
    (float, $V:ident) => { row!(map, $V, f32, f64, (), (), (), ()) };
    (real, $V:ident) => { row!(map, $V, f32, f64, (), (), (), ()) };
}

/// The same for binary ops. `logic` sees operands that have been turned into bool.
macro_rules! binary_class {
    (any, $V:ident, |$a:ident, $b:ident| $e:expr) => {
        implement!(
            $V, |$a, $b| $e,
            f32 => f32, f64 => f64, i32 => i32, i64 => i64, u8 => u8, bool => bool
        );
    };
    (number, $V:ident, |$a:ident, $b:ident| $e:expr) => {
        implement!($V, |$a, $b| $e, f32 => f32, f64 => f64, i32 => i32, i64 => i64, u8 => u8);
    };
    (float, $V:ident, |$a:ident, $b:ident| $e:expr) => {
        implement!($V, |$a, $b| $e, f32 => f32, f64 => f64);
    };
    (compare, $V:ident, |$a:ident, $b:ident| $e:expr) => {
        implement!(
            $V, |$a, $b| $e,
            f32 => bool, f64 => bool, i32 => bool, i64 => bool, u8 => bool, bool => bool
        );
    };
    (logic, $V:ident, |$a:ident, $b:ident| $e:expr) => {
        implement!($V, |$a, $b| $e, bool => bool);
    };
    (bits, $V:ident, |$a:ident, $b:ident| $e:expr) => {
        implement!($V, |$a, $b| $e, i32 => i32, i64 => i64, u8 => u8, bool => bool);
    };
    (any, $V:ident) => { row!(zip, $V, f32, f64, i32, i64, u8, bool) };
    (number, $V:ident) => { row!(zip, $V, f32, f64, i32, i64, u8, ()) };
    (float, $V:ident) => { row!(zip, $V, f32, f64, (), (), (), ()) };
    (compare, $V:ident) => { row!(zip, $V, f32, f64, i32, i64, u8, bool) };
    (logic, $V:ident) => { row!(zip, $V, (), (), (), (), (), bool) };
    (bits, $V:ident) => { row!(zip, $V, (), (), i32, i64, u8, bool) };
}

macro_rules! row {
    ($make:ident, $V:ident, $($A:tt),*) => { [$(cell!($make, $V, $A)),*] };
}
macro_rules! cell {
    ($make:ident, $V:ident, ()) => {
        None
    };
    ($make:ident, $V:ident, $A:ident) => {
        $make::<ops::$V, $A>()
    };
}

/// A streamed loop is there for numbers that stay what they are.
macro_rules! streamed {
    (test, $V:ident) => {
        None
    };
    (number, $V:ident) => {
        Some(instances::<Streamed<ops::$V>>())
    };
    (float, $V:ident) => {
        Some(instances::<Streamed<ops::$V>>())
    };
    (real, $V:ident) => {
        Some(instances::<Streamed<ops::$V>>())
    };
}

/// The loops of functions of f32 that have rare elements.
macro_rules! rare {
    ($put:ident, $table:ident, $stream:literal) => {
        rare! { @ $put, $table:
            Sin Mended<Trig<0>, f32, $stream>, Cos Mended<Trig<1>, f32, $stream>,
            Tan Mended<Trig<2>, f32, $stream>, Lgamma Mended<Gamma<0>, f32, $stream>,
            Digamma Mended<Gamma<1>, f32, $stream>, Exp Chosen<mended::Exp, $stream>,
            Exp2 Chosen<mended::Exp2, $stream>, Log Chosen<mended::Log, $stream>,
            Log2 Chosen<mended::Log2, $stream>, Log10 Chosen<mended::Log10, $stream>,
        }
    };
    (@ $put:ident, $table:ident: $($V:ident $Body:ty,)*) => {
        $($put!($table[UnaryOp::$V as usize], $Body);)*
    };
}
macro_rules! put {
    ($place:expr, $Body:ty) => {
        $place = Some(instances::<$Body>())
    };
}
macro_rules! put_first {
    ($row:expr, $Body:ty) => {
        put!($row[0], $Body)
    };
}

macro_rules! unary_table {
($($name:ident: $V:ident {
        doc: $text:literal,
        page: $page:ident, class: $class:ident, cost: $cost:ident, rounds: $rounds:ident,
        domain: $domain:ident,
        gradient: $gradient:tt,
        cpu: |$x:ident| $e:expr,
        $($columns:tt)*
    })*) => {
        $(unary_class!($class, $V, |$x| $e);)*
        /// By op and [`Rep`].
        static UNARY: [[Option<Instances>; REPS]; UnaryOp::ALL.len()] = {
            let mut table = [$(unary_class!($class, $V)),*];
            rare!(put_first, table, false);
            table
        };
        /// Of f32, by op.
        static STREAMED: [Option<Instances>; UnaryOp::ALL.len()] = {
            let mut table = [$(streamed!($class, $V)),*];
            rare!(put, table, true);
            table
        };
    };
}
macro_rules! binary_table {
($($name:ident: $V:ident {
        doc: $text:literal,
        class: $class:ident, cost: $cost:ident, rounds: $rounds:ident, number: $number:ident,
        domain: $domain:ident,
        gradient: $gradient:tt,
        cpu: |$a:ident, $b:ident| $e:expr,
        $($columns:tt)*
    })*) => {
        $(binary_class!($class, $V, |$a, $b| $e);)*
        /// By op and [`Rep`], then by which operand is a splat.
        static BINARY: [[Option<[Instances; 3]>; REPS]; BinaryOp::ALL.len()] = {
            let mut table = [$(binary_class!($class, $V)),*];
            // These three mend far quotients in a second pass.
            table[BinaryOp::Fmod as usize][0] = rest::<0>();
            table[BinaryOp::Remainder as usize][0] = rest::<1>();
            table[BinaryOp::FloorDivide as usize][0] = rest::<2>();
            table
        };
    };
}
for_each_unary!(unary_table);
for_each_binary!(binary_table);

/// The loop of a unary op. Rounding of integers is a copy: they are whole.
#[inline]
pub(in crate::host::kernels) fn unary(level: Level, op: UnaryOp, rep: Rep) -> Loop {
    match &UNARY[op as usize][rep as usize] {
        Some(instances) => instances[level as usize],
        None => copy_of_whole(level, op, rep),
    }
}

/// The loop of a unary op that writes whole lines around the caches, where there is one.
pub(super) fn streamed(level: Level, op: UnaryOp, rep: Rep) -> Option<Loop> {
    STREAMED[op as usize].filter(|_| rep == Rep::F32).map(|instances| instances[level as usize])
}

#[cold]
fn copy_of_whole(level: Level, op: UnaryOp, rep: Rep) -> Loop {
    assert!(
        op.class() == Class::real,
        "{} has no loop for {rep:?}, which inference refuses or casts first",
        op.name()
    );
    super::moves::copy(level, rep.size())
}

/// The loop of a binary op. An operand marked as a splat is one element.
#[inline]
pub(in crate::host::kernels) fn binary(
    level: Level,
    op: BinaryOp,
    rep: Rep,
    splat: (bool, bool),
) -> Loop {
    match &BINARY[op as usize][rep as usize] {
        Some(variants) => variants[variant(splat)][level as usize],
        None => {
            panic!("{} has no loop for {rep:?}, which inference refuses or casts first", op.name())
        }
    }
}

/// Which of a binary op's loops takes these operands.
#[inline]
pub(super) fn variant(splat: (bool, bool)) -> usize {
    (match splat {
        (_, true) => SECOND,
        (true, false) => FIRST,
        _ => NONE,
    }) as usize
}
