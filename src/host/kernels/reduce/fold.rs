//! The arithmetic of a reduction, and the one order of it.
//!
//! The elements of one result, numbered row by row over the reduced dimensions, fall into blocks of
//! [`BLOCK`] by position. Within a block, lane `l` of [`LANES`] takes elements `l`, `l + LANES`,
//! ... in turn; then lane `l` meets lane `l + 32`, then `l + 16`, and so on. The blocks' values
//! meet in a binary tree by position. Rows, columns, threads and fused input all follow this order,
//! so a float result depends on nothing but the elements; and the error of a sum grows with the
//! logarithm of their number.

use super::super::load::{Load, Widened, over};
use super::super::simd::Simd;
use super::super::stream::prefetch_all;
use super::accumulators::Bits;
pub(in super::super) use super::accumulators::Wide;
pub(in super::super) use super::tree::Tree;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Elements of a block.
pub(in super::super) const BLOCK: usize = 512;
/// Longer rows, in bytes, do not lie in a core's own caches. The machine fetches ahead of what is
/// read, and loses it at the end of each block, whose lanes meet one after the other: asked for,
/// the lines come in time. (64 MiB on two threads of a Zen 5 took 665 us without and 450 with; 16
/// MiB, which lie in a shared cache, 107 and 116.)
const FAR: usize = 2 << 20;
/// How far ahead lines are asked for: 4, 8, 16 and 24 KiB took 610, 530, 450 and 450 us.
const AHEAD: usize = 16 << 10;
/// Elements that are added at a time where there is no turn of them.
const GROUP: usize = 16;
/// Lanes of a block: four 512-bit registers of f32.
pub(in super::super) const LANES: usize = 64;

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
    /// Elements that lie side by side, of a fold that [loads](Fold::LOADS).
    ///
    /// # Safety
    /// There are `N`, and the machine has what the level says.
    #[inline(always)]
    unsafe fn lift_some<S: Simd, const N: usize>(_x: *const Self::In) -> [Self::Acc; N] {
        unreachable!("elements of this fold are lifted one by one");
    }
    /// The same fold of elements that are [loaded](Fold::load).
    type Loaded: Fold<In = Self::Acc, Acc = Self::Acc, Out = Self::Out>;
    /// Whether elements had better be loaded several at once, before they are folded. It is the
    /// same at every level, and so are the bits.
    const LOADS: bool = false;
    /// Brings a row into the type in which it is computed.
    ///
    /// # Safety
    /// There are `n` elements, and room for as many; the machine has what the level says.
    #[inline(always)]
    unsafe fn load<S: Simd>(_from: *const Self::In, _n: usize, _to: *mut Self::Acc) {
        unreachable!("rows of this fold are not loaded");
    }
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
    /// What a lane keeps beside its result: see [`Wide::Size`].
    type Mark: Copy;
    /// That of no element.
    const UNMARKED: Self::Mark;
    /// That of one element.
    fn mark(x: Self::Acc) -> Self::Mark;
    /// That of two neighbours.
    fn mark_both(a: Self::Mark, b: Self::Mark) -> Self::Mark;
    /// As [`join`](Fold::join), where marks tell the rest.
    fn join_marked(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// The result of a lane and its mark.
    fn marked(acc: Self::Acc, mark: Self::Mark) -> Self::Acc;
    /// Whether elements may be joined in any order and more than once.
    const REPEATS: bool = false;
    /// Whether a block is folded by lanes, so that a short one can do with fewer.
    const BY_LANES: bool = true;
    /// The result of a whole block of what is made of its elements. Of one in a row that [is
    /// far](FAR), what comes later is asked for on the way.
    #[inline(always)]
    fn block<const IS_FAR: bool>(
        x: &[Self::In; BLOCK],
        of: impl Fn(Self::In) -> Self::Acc,
    ) -> Self::Acc {
        let mut lanes = Lanes::<Self, LANES>::new();
        lanes.add::<BLOCK>(x, IS_FAR, &of);
        lanes.end()
    }
    /// That of a shorter one.
    #[inline(always)]
    fn short_block(mut x: &[Self::In], of: impl Fn(Self::In) -> Self::Acc) -> Self::Acc {
        let mut lanes = Lanes::<Self, LANES>::new();
        lanes.add_first::<{ BLOCK / 2 }>(&mut x, &of);
        lanes.add_first::<{ BLOCK / 4 }>(&mut x, &of);
        lanes.add_first::<LANES>(&mut x, &of);
        if !x.is_empty() {
            lanes.add_some(x, &of);
        }
        lanes.end()
    }
}

/// The lanes of a block.
///
/// In loops of constant length over arrays whose every index is constant the compiler keeps them in
/// registers. With an index or a length of data in one place they are in memory everywhere, and
/// each turn waits for what the last one wrote: sums of 16 MiB on two cores of a Zen 4 took 165 us
/// instead of 100.
struct Lanes<F: Fold + ?Sized, const N: usize> {
    accs: [F::Acc; N],
    marks: [F::Mark; N],
}

impl<F: Fold + ?Sized, const N: usize> Lanes<F, N> {
    #[inline(always)]
    fn new() -> Self {
        Lanes { accs: [F::start(); N], marks: [F::UNMARKED; N] }
    }

    /// Adds `COUNT` elements, whole turns.
    #[inline(always)]
    fn add<const COUNT: usize>(
        &mut self,
        x: &[F::In; COUNT],
        is_far: bool,
        of: &impl Fn(F::In) -> F::Acc,
    ) {
        const { assert!(COUNT.is_multiple_of(N)) };
        for turn in 0..COUNT / N {
            if is_far {
                let ahead = x[turn * N..].as_ptr().cast::<u8>().wrapping_add(AHEAD);
                prefetch_all(ahead.cast::<F::In>(), N);
            }
            for l in 0..N {
                let x = of(x[turn * N + l]);
                self.accs[l] = F::join_marked(self.accs[l], x);
                self.marks[l] = F::mark_both(self.marks[l], F::mark(x));
            }
        }
    }

    /// Adds `COUNT` elements and takes them off, where there are so many.
    #[inline(always)]
    fn add_first<const COUNT: usize>(&mut self, x: &mut &[F::In], of: &impl Fn(F::In) -> F::Acc) {
        if let Some((first, rest)) = x.split_first_chunk::<COUNT>() {
            self.add(first, false, of);
            *x = rest;
        }
    }

    /// Adds fewer than `N` elements, or `N`.
    #[inline(always)]
    fn add_some(&mut self, x: &[F::In], of: &impl Fn(F::In) -> F::Acc) {
        let (groups, rest) = x.as_chunks::<GROUP>();
        let mut some = [F::start(); GROUP];
        some.iter_mut().zip(rest).for_each(|(to, &x)| *to = of(x));
        for g in 0..N.div_ceil(GROUP) {
            if g > groups.len() {
                break;
            }
            for l in 0..GROUP.min(N) {
                let x = if g < groups.len() { of(groups[g][l]) } else { some[l] };
                let l = g * GROUP + l;
                self.accs[l] = F::join_marked(self.accs[l], x);
                self.marks[l] = F::mark_both(self.marks[l], F::mark(x));
            }
        }
    }

    /// Adds all elements, at least `N`: the last ones once more, rather than some by themselves.
    #[inline(always)]
    fn add_again<const TWICE: usize>(&mut self, x: &[F::In], of: &impl Fn(F::In) -> F::Acc) {
        let (pairs, mut rest) = x.as_chunks::<TWICE>();
        for pair in pairs {
            self.add(pair, false, of);
        }
        self.add_first::<N>(&mut rest, of);
        if let Some(last) = x.last_chunk::<N>().filter(|_| !rest.is_empty()) {
            self.add(last, false, of);
        }
    }

    /// The lanes' result.
    #[inline(always)]
    fn end(mut self) -> F::Acc {
        let mut half = N / 2;
        while half > 0 {
            for l in 0..half {
                self.accs[l] = F::join_marked(self.accs[l], self.accs[l + half]);
                self.marks[l] = F::mark_both(self.marks[l], self.marks[l + half]);
            }
            half /= 2;
        }
        F::marked(self.accs[0], self.marks[0])
    }
}

/// Lanes without marks.
macro_rules! unmarked {
    ($($repeats:literal)?) => {
        $(const REPEATS: bool = $repeats;)?
        type Mark = ();
        const UNMARKED: () = ();
        #[inline(always)]
        fn mark(_: Self::Acc) {}
        #[inline(always)]
        fn mark_both(_: (), _: ()) {}
        #[inline(always)]
        fn join_marked(a: Self::Acc, b: Self::Acc) -> Self::Acc {
            Self::join(a, b)
        }
        #[inline(always)]
        fn marked(acc: Self::Acc, _: ()) -> Self::Acc {
            acc
        }
    };
}

/// Lanes that join as if there were no NaN, and whose marks are the largest [size](Wide::Size).
macro_rules! marked {
    ($better:expr) => {
        const REPEATS: bool = true;
        type Mark = W::Size;
        const UNMARKED: W::Size = W::NO_SIZE;
        #[inline(always)]
        fn mark(x: W) -> W::Size {
            x.size()
        }
        #[inline(always)]
        fn mark_both(a: W::Size, b: W::Size) -> W::Size {
            if b > a { b } else { a }
        }
        #[inline(always)]
        fn join_marked(a: W, b: W) -> W {
            if ($better)(b, a) { b } else { a }
        }
        #[inline(always)]
        fn marked(acc: W, size: W::Size) -> W {
            if size > W::INFINITE { W::NAN } else { acc }
        }
    };
}

macro_rules! folds {
    ($(
        $(#[$doc:meta])*
        $Name:ident: $start:expr, $join:expr, $end:expr, $lanes:ident($($how:tt)*);
    )*) => {$(
        $(#[$doc])*
        pub(in super::super) struct $Name<T, W, O>(PhantomData<(T, W, O)>);
        impl<T: Load<W>, W: Wide + Load<W>, O: Load<W>> Fold for $Name<T, W, O> {
            type In = T;
            type Acc = W;
            type Out = O;
            const WHOLE: bool = W::WHOLE;
            $lanes! { $($how)* }
            #[inline(always)] fn start() -> W { $start }
            #[inline(always)] fn lift(x: T) -> W { x.load() }
            #[inline(always)]
            unsafe fn lift_some<S: Simd, const N: usize>(x: *const T) -> [W; N] {
                // SAFETY: by the caller's promise.
                unsafe { T::load_some::<S, N>(x) }
            }
            type Loaded = $Name<W, W, O>;
            const LOADS: bool = T::IS_F16;
            #[inline(always)]
            unsafe fn load<S: Simd>(from: *const T, n: usize, to: *mut W) {
                // SAFETY: by the caller's promise.
                unsafe { over::<T, W, S>(n, Widened { from, to }) }
            }
            #[inline(always)] fn join(a: W, b: W) -> W { ($join)(a, b) }
            #[inline(always)]
            fn end(acc: W, mean: Option<usize>) -> O { O::store(($end)(acc, mean)) }
        }
    )*};
}
folds! {
    /// Sum, or mean.
    Sum: W::ZERO, W::add,
        |acc: W, mean: Option<usize>| mean.map_or(acc, |count| acc.over(count)), unmarked();
    /// Product.
    Prod: W::ONE, W::mul, |acc, _| acc, unmarked();
    /// Largest, or NaN.
    Max: W::LEAST, W::larger, |acc, _| zeros_alike(acc), marked(|b, a| b > a);
    /// Largest of what is not NaN: one instruction where [`Max`] takes three.
    MaxNumber: W::LEAST, |a: W, b: W| if b > a { b } else { a }, |acc, _| acc,
        unmarked(true);
    /// Smallest, or NaN.
    Min: W::MOST, W::smaller, |acc, _| zeros_alike(acc), marked(|b, a| b < a);
}

/// The same, and of the zeros the positive one: -0 and 0 are equal, and which of them is kept would
/// show in what order they met.
#[inline(always)]
fn zeros_alike<W: Wide>(x: W) -> W {
    x.add(W::ZERO)
}

/// A reduction of the elements' squares.
pub(in super::super) struct OfSquares<F>(PhantomData<F>);
impl<F: Fold<Acc: Wide>> Fold for OfSquares<F> {
    type In = F::In;
    type Acc = F::Acc;
    type Out = F::Out;
    const WHOLE: bool = F::WHOLE;
    unmarked! {}
    type Loaded = OfSquares<F::Loaded>;
    const LOADS: bool = F::LOADS;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const F::In, n: usize, to: *mut F::Acc) {
        // SAFETY: by the caller's promise.
        unsafe { F::load::<S>(from, n, to) }
    }
    #[inline(always)]
    unsafe fn lift_some<S: Simd, const N: usize>(x: *const F::In) -> [F::Acc; N] {
        // SAFETY: by the caller's promise.
        let mut all = unsafe { F::lift_some::<S, N>(x) };
        for x in &mut all {
            *x = x.mul(*x);
        }
        all
    }
    #[inline(always)]
    fn start() -> F::Acc {
        F::start()
    }
    #[inline(always)]
    fn lift(x: F::In) -> F::Acc {
        let x = F::lift(x);
        x.mul(x)
    }
    #[inline(always)]
    fn join(a: F::Acc, b: F::Acc) -> F::Acc {
        F::join(a, b)
    }
    #[inline(always)]
    fn end(acc: F::Acc, mean: Option<usize>) -> F::Out {
        F::end(acc, mean)
    }
}

/// Sum of bytes: a block's fits 32 bits.
pub(in super::super) struct SumBytes;
impl Fold for SumBytes {
    type In = u8;
    type Acc = i64;
    type Out = i64;
    type Loaded = Sum<i64, i64, i64>;
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
    unmarked! {}
    #[inline(always)]
    fn block<const IS_FAR: bool>(x: &[u8; BLOCK], of: impl Fn(u8) -> i64) -> i64 {
        Self::short_block(x, of)
    }
    #[inline(always)]
    fn short_block(x: &[u8], of: impl Fn(u8) -> i64) -> i64 {
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
            type Loaded = Self;
            const WHOLE: bool = true;
            unmarked! { true }
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
    if F::REPEATS {
        return fold_again::<F>(x, of);
    }
    if let Ok(whole) = x.try_into() {
        return F::block::<false>(whole, of);
    }
    // Lanes above the last element would change nothing.
    match x.len() {
        0..=8 if F::BY_LANES => fold_few::<F, 8>(x, of),
        9..=16 if F::BY_LANES => fold_few::<F, 16>(x, of),
        17..=32 if F::BY_LANES => fold_few::<F, 32>(x, of),
        _ => F::short_block(x, of),
    }
}

/// As [`fold_block_of`] for any number of elements that may be joined more than once.
#[inline(always)]
fn fold_again<F: Fold + ?Sized>(x: &[F::In], of: impl Fn(F::In) -> F::Acc) -> F::Acc {
    macro_rules! lanes {
        ($n:expr) => {{
            let mut lanes = Lanes::<F, $n>::new();
            lanes.add_again::<{ 2 * $n }>(x, &of);
            lanes.end()
        }};
    }
    // At most as many lanes as eight 256-bit registers hold with their marks. With twice as many
    // the compiler keeps some in memory: on a Zen 3 the same loop by itself took 4.2 us for 128 KiB
    // of float32, and 2.7 so.
    let each = size_of::<F::Acc>() + size_of::<F::Mark>();
    match x.len() {
        0..8 => fold_few::<F, 8>(x, of),
        8..16 => lanes!(8),
        LANES.. if each <= 4 => lanes!(LANES),
        32.. if each > 4 && each <= 8 => lanes!(32),
        _ => lanes!(16),
    }
}

/// As [`fold_block_of`] where no element has a lane above `N`.
#[inline(always)]
fn fold_few<F: Fold + ?Sized, const N: usize>(x: &[F::In], of: impl Fn(F::In) -> F::Acc) -> F::Acc {
    let mut lanes = Lanes::<F, N>::new();
    lanes.add_some(x, &of);
    lanes.end()
}

/// As [`fold_block`] for exactly `N` elements, at most eight.
#[inline(always)]
pub(super) fn fold_exactly<F: Fold, const N: usize>(x: &[F::In; N]) -> F::Acc {
    let mut lanes = [F::start(); 8];
    for l in 0..N {
        lanes[l] = F::join(lanes[l], F::lift(x[l]));
    }
    let mut half = 4;
    while half > 0 {
        for l in 0..half {
            lanes[l] = F::join(lanes[l], lanes[l + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The value of elements that lie side by side.
#[inline(always)]
pub(super) fn fold_row<F: Fold, S: Simd>(x: &[F::In]) -> F::Acc {
    if F::LOADS {
        return fold_loaded::<F, S>(x);
    }
    if x.len() <= BLOCK || (F::REPEATS && size_of_val(x) <= FAR) {
        return fold_block::<F>(x);
    }
    let mut tree = Tree::new();
    // One block after the other: where four pages were read in turn, so that a machine may fetch
    // ahead in each, a Zen 5 took 3.0 ms for 64 MiB on one thread instead of 1.3, and a Xeon with
    // AVX-512 no less on two than PyTorch's plain loop (1.33 and 1.20).
    //
    // A closure given to `for_each` became a function of its own, without the vectors of who calls
    // this.
    let (blocks, rest) = x.as_chunks::<BLOCK>();
    if size_of_val(x) > FAR {
        for block in blocks {
            tree.push(F::block::<true>(block, F::lift), F::join);
        }
    } else {
        for block in blocks {
            tree.push(F::block::<false>(block, F::lift), F::join);
        }
    }
    if !rest.is_empty() {
        tree.push(fold_block::<F>(rest), F::join);
    }
    tree.end(F::join).unwrap_or(F::start())
}

/// The same of elements that are loaded several at once: whole blocks into registers, what is left,
/// and folds that repeat, into memory.
#[inline(always)]
fn fold_loaded<F: Fold, S: Simd>(x: &[F::In]) -> F::Acc {
    let (mut tree, mut block) = (Tree::new(), [MaybeUninit::<F::Acc>::uninit(); BLOCK]);
    let is_far = size_of_val(x) > FAR;
    for x in x.chunks(BLOCK) {
        if is_far {
            prefetch_all(x.as_ptr().cast::<u8>().wrapping_add(AHEAD).cast::<F::In>(), x.len());
        }
        if let (Ok(x), false) = (<&[F::In; BLOCK]>::try_from(x), F::REPEATS) {
            let mut lanes = Lanes::<F, LANES>::new();
            for turn in 0..BLOCK / LANES {
                // SAFETY: as many elements; a level is one that the machine has.
                let some = unsafe { F::lift_some::<S, LANES>(x[turn * LANES..].as_ptr()) };
                for l in 0..LANES {
                    lanes.accs[l] = F::join(lanes.accs[l], some[l]);
                }
            }
            tree.push(lanes.end(), F::join);
            continue;
        }
        // SAFETY: a block has room for them, and so many are written; a level is one that the
        // machine has.
        let loaded = unsafe {
            F::load::<S>(x.as_ptr(), x.len(), block.as_mut_ptr().cast());
            std::slice::from_raw_parts(block.as_ptr().cast(), x.len())
        };
        tree.push(fold_block::<F::Loaded>(loaded), F::join);
    }
    tree.end(F::join).unwrap_or(F::start())
}
