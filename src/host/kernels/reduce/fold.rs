//! The arithmetic of a reduction, and the one order of it.
//!
//! The elements of one result, numbered row by row over the reduced dimensions, fall into blocks of
//! [`BLOCK`] by position. Within a block, lane `l` of [`LANES`] takes elements `l`, `l + LANES`,
//! ... in turn; then lane `l` meets lane `l + 32`, then `l + 16`, and so on. The blocks' values
//! meet in a binary tree by position. Rows, columns, threads and fused input all follow this order,
//! so a float result depends on nothing but the elements; and the error of a sum grows with the
//! logarithm of their number.

use super::super::load::Load;
use super::super::stream::{LINE, prefetch};
use std::marker::PhantomData;

/// Elements of a block.
pub(in super::super) const BLOCK: usize = 512;
/// Longer rows, in bytes, do not lie in a core's own caches. The machine fetches ahead of what is
/// read, and loses it at the end of each block, whose lanes meet one after the other: asked for,
/// the lines come in time. (64 MiB on two threads of a Zen 5 took 665 us without and 450 with; 16
/// MiB, which lie in a shared cache, 107 and 116.)
const FAR: usize = 2 << 20;
/// How far ahead lines are asked for: 4, 8, 16 and 24 KiB took 610, 530, 450 and 450 us.
const AHEAD: usize = 16 << 10;
/// Lanes of a block: four 512-bit registers of f32.
pub(in super::super) const LANES: usize = 64;

/// Lanes of a group: a 512-bit register of f32.
const GROUP: usize = 16;

/// A reduction of elements of one type. Joining with `start` changes nothing.
pub(in super::super) trait Fold: 'static {
    /// What is read.
    type In: Copy;
    /// In what it is computed.
    type Acc: Bits;
    /// What is written.
    type Out: Copy;
    /// The result of nothing.
    fn start() -> Self::Acc;
    /// One element.
    fn lift(x: Self::In) -> Self::Acc;
    /// The result of two neighbours, `a` before `b`.
    fn join(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// The same where many are joined side by side.
    #[inline(always)]
    fn beside(a: Self::Acc, b: Self::Acc) -> Self::Acc {
        Self::join(a, b)
    }
    /// What is written: for a mean, the sum over the count.
    fn end(acc: Self::Acc, mean: Option<usize>) -> Self::Out;
    /// Whether it is computed in whole numbers.
    const WHOLE: bool;
    /// Whether joining chooses one of two floats. Of lanes in memory the compiler makes that a
    /// store on a condition, for which the next load waits: a block's lanes are folded group by
    /// group then, in registers. (The largest of each row of [4096, 4096] took 2.7 ms on two cores
    /// of a Xeon and takes 1.5; sums would take 1.7 instead of 1.2.)
    const CHOOSES: bool = false;
    /// Whether a block is folded by lanes, so that a short one can do with fewer.
    const BY_LANES: bool = true;
    /// The result of a block of what is made of its elements. Of one in a row that [is far](FAR),
    /// what comes later is asked for on the way.
    #[inline(always)]
    fn block<const IS_FAR: bool>(x: &[Self::In], of: impl Fn(Self::In) -> Self::Acc) -> Self::Acc {
        // On the stack lanes lie anywhere: a row of 1000 took 1.2 to 1.7 times as long where they
        // crossed cache lines.
        #[repr(align(64))]
        struct Aligned<T>(T);

        let mut lanes = Aligned([Self::start(); LANES]);
        let lanes = &mut lanes.0;
        let (turns, rest) = x.as_chunks::<LANES>();
        let ask = |turn: &[Self::In; LANES]| {
            let ahead = turn.as_ptr().cast::<u8>().wrapping_add(AHEAD);
            (0..size_of_val(turn)).step_by(LINE).for_each(|at| prefetch(ahead.wrapping_add(at)));
        };
        if Self::CHOOSES {
            // Each waits for itself alone.
            let [mut a, mut b, mut c, mut d] = [[Self::start(); GROUP]; LANES / GROUP];
            for turn in turns {
                if IS_FAR {
                    ask(turn);
                }
                let turn = turn.as_chunks::<GROUP>().0;
                for l in 0..GROUP {
                    a[l] = Self::join(a[l], of(turn[0][l]));
                }
                for l in 0..GROUP {
                    b[l] = Self::join(b[l], of(turn[1][l]));
                }
                for l in 0..GROUP {
                    c[l] = Self::join(c[l], of(turn[2][l]));
                }
                for l in 0..GROUP {
                    d[l] = Self::join(d[l], of(turn[3][l]));
                }
            }
            for (group, acc) in [a, b, c, d].iter().enumerate() {
                lanes[group * GROUP..][..GROUP].copy_from_slice(acc);
            }
        } else {
            for turn in turns {
                if IS_FAR {
                    ask(turn);
                }
                for l in 0..LANES {
                    lanes[l] = Self::join(lanes[l], of(turn[l]));
                }
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane = Self::join(*lane, of(x));
        }
        fold_lanes::<Self, LANES>(*lanes)
    }
}

/// What fits a word, so that walks need not know it.
pub(in super::super) trait Bits: Copy {
    fn into_bits(self) -> u64;
    fn of_bits(bits: u64) -> Self;
}
macro_rules! bits {
    ($($t:ident |$x:ident| $into:expr, |$b:ident| $of:expr;)*) => {$(
        impl Bits for $t {
            #[inline(always)] fn into_bits(self) -> u64 { let $x = self; $into }
            #[inline(always)] fn of_bits($b: u64) -> $t { $of }
        }
    )*};
}
bits! {
    f32 |x| x.to_bits() as u64, |b| f32::from_bits(b as u32);
    f64 |x| x.to_bits(), |b| f64::from_bits(b);
    i64 |x| x as u64, |b| b as i64;
    i32 |x| x as u64, |b| b as i32;
    u8 |x| x as u64, |b| b as u8;
    u16 |x| x as u64, |b| b as u16;
    u32 |x| x as u64, |b| b as u32;
    u64 |x| x, |b| b;
}

/// A type that numbers are computed in.
pub(in super::super) trait Wide:
    Bits + Send + Sync + PartialOrd + 'static
{
    const WHOLE: bool;
    const ZERO: Self;
    /// What a sum is the same with: `-0.0`, to which any number can be added, itself among them.
    const NOTHING: Self;
    const ONE: Self;
    const LEAST: Self;
    const MOST: Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn over(self, count: usize) -> Self;
    fn is_nan(self) -> bool;
    /// The larger, or NaN.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        // Two choices: one with two conditions is slower.
        let larger = if self > other { self } else { other };
        if self.is_nan() { self } else { larger }
    }
    /// The smaller, or NaN.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        let smaller = if self < other { self } else { other };
        if self.is_nan() { self } else { smaller }
    }
}

macro_rules! wide {
    ($($t:ident, $least:expr, $most:expr, $one:expr, $add:expr, $mul:expr, $nan:expr;)*) => {$(
        impl Wide for $t {
            const WHOLE: bool = 0.5 as $t == 0 as $t;
            const ZERO: $t = 0 as $t;
            const NOTHING: $t = -0.0 as $t;
            const ONE: $t = $one;
            const LEAST: $t = $least;
            const MOST: $t = $most;
            #[inline(always)] fn add(self, other: $t) -> $t { ($add)(self, other) }
            #[inline(always)] fn mul(self, other: $t) -> $t { ($mul)(self, other) }
            #[inline(always)] fn over(self, count: usize) -> $t { self / count as $t }
            #[inline(always)] fn is_nan(self) -> bool { ($nan)(self) }
        }
    )*};
}
wide! {
    f32, f32::NEG_INFINITY, f32::INFINITY, 1.0, |a, b| a + b, |a, b| a * b, f32::is_nan;
    f64, f64::NEG_INFINITY, f64::INFINITY, 1.0, |a, b| a + b, |a, b| a * b, f64::is_nan;
    i64, i64::MIN, i64::MAX, 1, i64::wrapping_add, i64::wrapping_mul, |_| false;
    i32, i32::MIN, i32::MAX, 1, i32::wrapping_add, i32::wrapping_mul, |_| false;
    u8, 0, 255, 1, u8::wrapping_add, u8::wrapping_mul, |_| false;
}

macro_rules! folds {
    ($($(#[$doc:meta])* $Name:ident $chooses:literal: $start:expr, $join:expr, $end:expr;)*) => {$(
        $(#[$doc])*
        pub(in super::super) struct $Name<T, W, O>(PhantomData<(T, W, O)>);
        impl<T: Load<W>, W: Wide, O: Load<W>> Fold for $Name<T, W, O> {
            type In = T;
            type Acc = W;
            type Out = O;
            const WHOLE: bool = W::WHOLE;
            const CHOOSES: bool = $chooses && !W::WHOLE;
            #[inline(always)] fn start() -> W { $start }
            #[inline(always)] fn lift(x: T) -> W { x.load() }
            #[inline(always)] fn join(a: W, b: W) -> W { ($join)(a, b) }
            #[inline(always)]
            fn end(acc: W, mean: Option<usize>) -> O { O::store(($end)(acc, mean)) }
        }
    )*};
}
folds! {
    /// Sum, or mean.
    Sum false: W::ZERO, W::add,
        |acc: W, mean: Option<usize>| mean.map_or(acc, |count| acc.over(count));
    /// Product.
    Prod false: W::ONE, W::mul, |acc, _| acc;
    /// Largest, or NaN.
    Max true: W::LEAST, W::larger, |acc, _| acc;
    /// Largest of what is not NaN: one instruction where [`Max`] takes three.
    MaxNumber true: W::LEAST, |a: W, b: W| if b > a { b } else { a }, |acc, _| acc;
    /// Smallest, or NaN.
    Min true: W::MOST, W::smaller, |acc, _| acc;
}

/// Sum of bytes: a block's fits 32 bits.
pub(in super::super) struct SumBytes;
impl Fold for SumBytes {
    type In = u8;
    type Acc = i64;
    type Out = i64;
    #[inline(always)]
    fn start() -> i64 {
        0
    }
    #[inline(always)]
    fn lift(x: u8) -> i64 {
        x as i64
    }
    #[inline(always)]
    fn join(a: i64, b: i64) -> i64 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn end(acc: i64, _: Option<usize>) -> i64 {
        acc
    }
    const WHOLE: bool = true;
    const BY_LANES: bool = false;
    #[inline(always)]
    fn block<const IS_FAR: bool>(x: &[u8], of: impl Fn(u8) -> i64) -> i64 {
        x.iter().map(|&x| of(x) as u32).sum::<u32>() as i64
    }
}

/// An element as bits, for questions about zero.
pub(in super::super) trait Raw: Bits + Ord {
    const NONE: Self;
    const ALL: Self;
    fn or(self, other: Self) -> Self;
    /// The same, or what is zero where that is.
    fn either(self, other: Self) -> Self;
    /// Without the sign: -0 is zero too.
    fn magnitude(self) -> Self;
}
macro_rules! raw {
    ($($t:ident $either:expr;)*) => {$(
        impl Raw for $t {
            const NONE: $t = 0;
            const ALL: $t = $t::MAX;
            #[inline(always)] fn or(self, other: $t) -> $t { self | other }
            #[inline(always)] fn either(self, other: $t) -> $t { ($either)(self, other) }
            #[inline(always)] fn magnitude(self) -> $t { self << 1 }
        }
    )*};
}
raw! {
    // Unions of bytes side by side the compiler regroups until no vector is left: four times as
    // slow.
    u8 Ord::max;
    u16 |a, b| a | b;
    u32 |a, b| a | b;
    u64 |a, b| a | b;
}

macro_rules! tests {
    ($($(#[$doc:meta])* $Name:ident: $start:expr, $join:expr, $beside:expr;)*) => {$(
        $(#[$doc])*
        pub(in super::super) struct $Name<T, const FLOAT: bool>(PhantomData<T>);
        impl<T: Raw + 'static, const FLOAT: bool> Fold for $Name<T, FLOAT> {
            type In = T;
            type Acc = T;
            type Out = u8;
            const WHOLE: bool = true;
            #[inline(always)] fn start() -> T { $start }
            #[inline(always)] fn lift(x: T) -> T { if FLOAT { x.magnitude() } else { x } }
            #[inline(always)] fn join(a: T, b: T) -> T { ($join)(a, b) }
            #[inline(always)] fn beside(a: T, b: T) -> T { ($beside)(a, b) }
            #[inline(always)] fn end(acc: T, _: Option<usize>) -> u8 { (acc != T::NONE) as u8 }
        }
    )*};
}
tests! {
    /// Whether any element is not zero: the union of their bits.
    Any: T::NONE, T::or, T::either;
    /// Whether no element is zero: the smallest of them as whole numbers.
    All: T::ALL, T::min, T::min;
}

/// The value of one block, or of a shorter last one.
#[inline(always)]
pub(in super::super) fn fold_block<F: Fold + ?Sized>(x: &[F::In]) -> F::Acc {
    fold_block_of::<F>(x, F::lift)
}

/// The same of what is made of the elements.
#[inline(always)]
pub(in super::super) fn fold_block_of<F: Fold + ?Sized>(
    x: &[F::In],
    of: impl Fn(F::In) -> F::Acc,
) -> F::Acc {
    // Lanes above the last element would change nothing.
    match x.len() {
        0..=8 if F::BY_LANES => fold_few::<F, 8>(x, of),
        9..=16 if F::BY_LANES => fold_few::<F, 16>(x, of),
        17..=32 if F::BY_LANES => fold_few::<F, 32>(x, of),
        _ => F::block::<false>(x, of),
    }
}

/// As [`fold_block_of`] where no element has a lane above `N`.
#[inline(always)]
fn fold_few<F: Fold + ?Sized, const N: usize>(x: &[F::In], of: impl Fn(F::In) -> F::Acc) -> F::Acc {
    let mut lanes = [F::start(); N];
    for (lane, &x) in lanes.iter_mut().zip(x) {
        *lane = F::join(*lane, of(x));
    }
    fold_lanes::<F, N>(lanes)
}

/// As [`fold_block`] for exactly `N` elements, at most eight.
#[inline(always)]
pub(super) fn fold_exactly<F: Fold, const N: usize>(x: &[F::In; N]) -> F::Acc {
    let mut lanes = [F::start(); 8];
    (0..N).for_each(|l| lanes[l] = F::join(lanes[l], F::lift(x[l])));
    fold_lanes::<F, 8>(lanes)
}

#[inline(always)]
fn fold_lanes<F: Fold + ?Sized, const N: usize>(mut lanes: [F::Acc; N]) -> F::Acc {
    let mut half = N / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] = F::join(lanes[l], lanes[l + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The binary tree over blocks, built from the left: entry `i` is the value of a run of `2^i` of
/// them.
pub(in super::super) struct Tree<A> {
    runs: [std::mem::MaybeUninit<A>; 48],
    count: usize,
}

impl<A: Copy> Tree<A> {
    #[inline(always)]
    pub fn new() -> Tree<A> {
        Tree { runs: [const { std::mem::MaybeUninit::uninit() }; 48], count: 0 }
    }

    /// Adds the value of the next block, or of the next run when all before were of that length.
    #[inline(always)]
    pub fn push(&mut self, mut acc: A, join: impl Fn(A, A) -> A) {
        let level = self.count.trailing_ones() as usize;
        for run in &self.runs[..level] {
            // SAFETY: bit `i` of the count is set, so run `i` has been written.
            acc = join(unsafe { run.assume_init() }, acc);
        }
        self.runs[level].write(acc);
        self.count += 1;
    }

    /// The value of all: what is left over joins from the right. None if there was nothing.
    #[inline(always)]
    pub fn end(&self, join: impl Fn(A, A) -> A) -> Option<A> {
        let mut acc = None;
        let mut rest = self.count;
        while rest != 0 {
            // SAFETY: the bit is set, so the run has been written.
            let run = unsafe { self.runs[rest.trailing_zeros() as usize].assume_init() };
            acc = Some(acc.map_or(run, |right| join(run, right)));
            rest &= rest - 1;
        }
        acc
    }
}

/// The value of elements that lie side by side.
#[inline(always)]
pub(super) fn fold_row<F: Fold>(x: &[F::In]) -> F::Acc {
    if x.len() <= BLOCK {
        return fold_block::<F>(x);
    }
    // What is chosen is the same in any order: lanes need not meet at the end of each block.
    if F::CHOOSES {
        return F::block::<false>(x, F::lift);
    }
    let mut tree = Tree::new();
    // One block after the other: where four pages were read in turn, so that a machine may fetch
    // ahead in each, a Zen 5 took 3.0 ms for 64 MiB on one thread instead of 1.3, and a Xeon with
    // AVX-512 no less on two than PyTorch's plain loop (1.33 and 1.20).
    //
    // A closure given to `for_each` became a function of its own, without the vectors of who calls
    // this.
    if size_of_val(x) > FAR {
        for block in x.chunks(BLOCK) {
            tree.push(F::block::<true>(block, F::lift), F::join);
        }
    } else {
        for block in x.chunks(BLOCK) {
            tree.push(F::block::<false>(block, F::lift), F::join);
        }
    }
    tree.end(F::join).unwrap_or(F::start())
}
