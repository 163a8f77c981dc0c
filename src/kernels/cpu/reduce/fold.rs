//! What a reduction computes, and the one order in which it does so.
//!
//! The elements of one result, numbered row by row over the reduced dimensions, fall into blocks of
//! [`BLOCK`] by position. Within a block, lane `l` of [`LANES`] takes elements `l`, `l + LANES`, ... in
//! turn; then lane `l` meets lane `l + 32`, then `l + 16`, and so on. The blocks' values meet in a binary
//! tree by position. Rows, columns, threads and fused input all follow this order, so a float result
//! depends on nothing but the elements; and the error of a sum grows with the logarithm of their number.

use super::super::load::Load;
use std::marker::PhantomData;

/// Elements of a block.
pub(super) const BLOCK: usize = 512;
/// Lanes of a block: four 512-bit registers of f32.
pub(super) const LANES: usize = 64;

/// A reduction of elements of one type. Joining with `start` changes nothing.
pub(in super::super) trait Fold: 'static {
    /// What is read.
    type In: Copy + Send + Sync;
    /// In what it is computed.
    type Acc: Copy + Send + Sync;
    /// What is written.
    type Out: Copy + Send + Sync;
    /// The result of nothing.
    fn start() -> Self::Acc;
    /// One element.
    fn lift(x: Self::In) -> Self::Acc;
    /// The result of two neighbours, `a` before `b`.
    fn join(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// What is written for `count` elements.
    fn end(acc: Self::Acc, count: usize) -> Self::Out;
}

/// A type that numbers are computed in.
pub(super) trait Wide: Copy + Send + Sync + PartialOrd + 'static {
    const ZERO: Self;
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
        if self > other || self.is_nan() { self } else { other }
    }
    /// The smaller, or NaN.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if self < other || self.is_nan() { self } else { other }
    }
}

macro_rules! wide {
    ($($t:ident, $least:expr, $most:expr, $one:expr, $add:expr, $mul:expr, $nan:expr;)*) => {$(
        impl Wide for $t {
            const ZERO: $t = 0 as $t;
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
    ($($(#[$doc:meta])* $Name:ident: $start:expr, $join:expr, $end:expr;)*) => {$(
        $(#[$doc])*
        pub(in super::super) struct $Name<T, W, O>(PhantomData<(T, W, O)>);
        impl<T: Load<W>, W: Wide, O: Load<W>> Fold for $Name<T, W, O> {
            type In = T;
            type Acc = W;
            type Out = O;
            #[inline(always)] fn start() -> W { $start }
            #[inline(always)] fn lift(x: T) -> W { x.load() }
            #[inline(always)] fn join(a: W, b: W) -> W { ($join)(a, b) }
            #[inline(always)] fn end(acc: W, count: usize) -> O { O::store(($end)(acc, count)) }
        }
    )*};
}
folds! {
    /// Sum.
    Sum: W::ZERO, W::add, |acc, _| acc;
    /// Sum over count.
    Mean: W::ZERO, W::add, W::over;
    /// Product.
    Prod: W::ONE, W::mul, |acc, _| acc;
    /// Largest, or NaN.
    Max: W::LEAST, W::larger, |acc, _| acc;
    /// Smallest, or NaN.
    Min: W::MOST, W::smaller, |acc, _| acc;
}

/// Whether any (or, by `ALL`, every) element is not zero.
pub(in super::super) struct Test<T, W, const ALL: bool>(PhantomData<(T, W)>);
impl<T: Load<W>, W: Wide, const ALL: bool> Fold for Test<T, W, ALL> {
    type In = T;
    type Acc = u8;
    type Out = u8;
    #[inline(always)]
    fn start() -> u8 {
        ALL as u8
    }
    #[inline(always)]
    fn lift(x: T) -> u8 {
        (x.load() != W::ZERO) as u8
    }
    #[inline(always)]
    fn join(a: u8, b: u8) -> u8 {
        if ALL { a & b } else { a | b }
    }
    #[inline(always)]
    fn end(acc: u8, _: usize) -> u8 {
        acc
    }
}

/// The value of one block, or of a shorter last one.
#[inline(always)]
pub(in super::super) fn fold_block<F: Fold>(x: &[F::In]) -> F::Acc {
    if x.len() <= 8 {
        return fold_few::<F, 8>(x);
    }
    let mut lanes = [F::start(); LANES];
    let (turns, rest) = x.as_chunks::<LANES>();
    for turn in turns {
        for l in 0..LANES {
            lanes[l] = F::join(lanes[l], F::lift(turn[l]));
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = F::join(*lane, F::lift(x));
    }
    fold_lanes::<F, LANES>(lanes)
}

/// As [`fold_block`] where no element has a lane above `N`: the other lanes would change nothing.
#[inline(always)]
fn fold_few<F: Fold, const N: usize>(x: &[F::In]) -> F::Acc {
    let mut lanes = [F::start(); N];
    for (lane, &x) in lanes.iter_mut().zip(x) {
        *lane = F::join(*lane, F::lift(x));
    }
    fold_lanes::<F, N>(lanes)
}

#[inline(always)]
fn fold_lanes<F: Fold, const N: usize>(mut lanes: [F::Acc; N]) -> F::Acc {
    let mut half = N / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] = F::join(lanes[l], lanes[l + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The binary tree over blocks, built from the left: entry `i` is the value of a run of `2^i` of them.
pub(in super::super) struct Tree<F: Fold> {
    runs: [F::Acc; 48],
    count: usize,
}

impl<F: Fold> Tree<F> {
    #[inline(always)]
    pub fn new() -> Tree<F> {
        Tree { runs: [F::start(); 48], count: 0 }
    }

    /// Adds the value of the next block, or of the next run when all before were of that length.
    #[inline(always)]
    pub fn push(&mut self, mut acc: F::Acc) {
        let level = self.count.trailing_ones() as usize;
        for run in &self.runs[..level] {
            acc = F::join(*run, acc);
        }
        self.runs[level] = acc;
        self.count += 1;
    }

    /// The value of all: what is left over joins from the right.
    #[inline(always)]
    pub fn end(&self) -> F::Acc {
        let mut acc = None;
        for level in 0..self.runs.len() {
            if self.count >> level & 1 == 1 {
                acc = Some(match acc {
                    None => self.runs[level],
                    Some(right) => F::join(self.runs[level], right),
                });
            }
        }
        acc.unwrap_or(F::start())
    }
}

/// The value of elements that lie side by side.
#[inline(always)]
pub(in super::super) fn fold_row<F: Fold>(x: &[F::In]) -> F::Acc {
    if x.len() <= BLOCK {
        return fold_block::<F>(x);
    }
    let mut tree = Tree::<F>::new();
    x.chunks(BLOCK).for_each(|block| tree.push(fold_block::<F>(block)));
    tree.end()
}
