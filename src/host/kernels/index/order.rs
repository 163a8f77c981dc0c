//! Sorting along a dimension: stable, with NaN above all numbers, as in PyTorch.
//!
//! The elements of a line are mapped to integers of the same order, each with its position in the
//! low bits. Sorting these compares no floats, and the positions make it stable. Long lines whose
//! ranks differ in few bits are sorted by these, a digit after the other.

use super::super::copy::copy_nest;
use super::super::isa::vectorize;
use super::super::nest::{Dim, Nest, Shared, in_parts};
use super::{PICKED, SORTED};
use crate::dtype::{DType, Element};
use crate::room;
use crate::sync::threads::thread_local;
use crate::view::{Parallel, Serial, View, ViewMut};
use half::{bf16, f16};
use std::cell::RefCell;

/// An element as a whole number of the same order; equal elements (also 0 and -0, and all NaN) are
/// equal. There is no branch, so loops over ranks vectorise.
trait Ordered: Element {
    type Rank: Copy + Ord + Send + Sync + std::ops::BitXor<Output = Self::Rank> + Into<u64>;
    /// The largest.
    const ALL: Self::Rank;
    const ZERO: Self::Rank;
    fn rank(self) -> Self::Rank;
}

macro_rules! ordered {
    ($($t:ident as $U:ty, |$x:ident| $rank:expr;)*) => {$(
        impl Ordered for $t {
            type Rank = $U;
            const ALL: $U = <$U>::MAX;
            const ZERO: $U = 0;
            #[inline(always)]
            fn rank(self) -> $U { let $x = self; $rank }
        }
    )*};
}
/// Floats as their bits: negative ones have all of them turned, others the sign set.
macro_rules! ordered_floats {
    ($($t:ident as $U:ty, $I:ty;)*) => {
        ordered! {$(
            $t as $U, |x| {
                const SIGN: $U = 1 << (<$U>::BITS - 1);
                let bits = x.to_bits();
                let bits = if bits == SIGN { 0 } else { bits }; // -0 is 0
                let rank = bits ^ (((bits as $I) >> (<$U>::BITS - 1)) as $U | SIGN);
                // Without its sign a NaN is above infinity.
                if bits & !SIGN > <$t>::INFINITY.to_bits() { <$U>::MAX } else { rank }
            };
        )*}
    };
}
ordered_floats! {
    f32 as u32, i32;
    f64 as u64, i64;
    f16 as u16, i16;
    bf16 as u16, i16;
}
ordered! {
    i32 as u32, |x| x as u32 ^ 1 << 31;
    i64 as u64, |x| x as u64 ^ 1 << 63;
    u8 as u8, |x| x;
}

/// A sort key: an element's rank, then its position. For elements of up to 32 bits both fit in one
/// word.
trait Key: Copy + Ord {
    fn new(rank: u64, place: usize) -> Self;
    fn rank(self) -> u64;
    fn place(self) -> usize;
    fn with_keys<R>(f: impl FnOnce(&mut Vec<Self>) -> R) -> R;
}

macro_rules! key {
    ($($t:ty: $new:expr, $rank:expr, $place:expr;)*) => {$(
        impl Key for $t {
            #[inline(always)] fn new(rank: u64, place: usize) -> $t { ($new)(rank, place) }
            #[inline(always)] fn rank(self) -> u64 { ($rank)(self) }
            #[inline(always)] fn place(self) -> usize { ($place)(self) }
            fn with_keys<R>(f: impl FnOnce(&mut Vec<$t>) -> R) -> R {
                thread_local! {
                    static KEYS: RefCell<Vec<$t>> = const { RefCell::new(Vec::new()) };
                }
                KEYS.with_borrow_mut(f)
            }
        }
    )*};
}
key! {
    u64: |rank, place| rank << 32 | place as u64, |key| key >> 32,
        |key| (key & u32::MAX as u64) as usize;
    (u64, usize): |rank, place| (rank, place), |key: (u64, usize)| key.0,
        |key: (u64, usize)| key.1;
}

/// Sorts along a dimension; writes the elements, or their positions in the line (int64), or both.
pub(crate) fn sort(
    input: View<'_>,
    dim: usize,
    descending: bool,
    values: Option<&ViewMut<'_>>,
    places: Option<&ViewMut<'_>>,
    par: &dyn Parallel,
) {
    let n = input.shape[dim];
    order(input, dim, n, descending, values, places, par);
}

/// The positions of the `k` largest (or smallest) elements along a dimension, in order; equal
/// elements are ordered by position.
pub(crate) fn topk(
    input: View<'_>,
    dim: usize,
    k: usize,
    largest: bool,
    places: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    order(input, dim, k, largest, None, Some(places), par);
}

fn order(
    input: View<'_>,
    dim: usize,
    k: usize,
    descending: bool,
    values: Option<&ViewMut<'_>>,
    places: Option<&ViewMut<'_>>,
    par: &dyn Parallel,
) {
    let long = input.shape[dim] > u32::MAX as usize;
    macro_rules! by_type {
        ($($dtype:pat => $T:ident $Key:ty,)*) => {
            match input.dtype {
                $($dtype if long => {
                    lines::<$T, (u64, usize)>(input, dim, k, descending, values, places, par)
                }
                $dtype => lines::<$T, $Key>(input, dim, k, descending, values, places, par),)*
                stored => stored.never_computed(),
            }
        };
    }
    by_type! {
        DType::F32 => f32 u64,
        DType::F64 => f64 (u64, usize),
        DType::F16 => f16 u64,
        DType::BF16 => bf16 u64,
        DType::I32 => i32 u64,
        DType::I64 => i64 (u64, usize),
        DType::U8 | DType::Bool => u8 u64,
    }
}

/// The size of the buffer for a selection of `k`.
fn room_of(k: usize) -> usize {
    (2 * k).max(64)
}

/// Elements that are compared at once with the worst that is kept.
const WIDE: usize = 32;

/// The `k` first of a line, in any order: kept are the first of those that were looked at, and
/// nearly all that follow come after the last of these.
#[inline(always)]
fn select<T: Ordered, K: Key>(x: &[T], flip: T::Rank, k: usize, kept: &mut Vec<K>) {
    let room = room_of(k);
    let head = room.min(x.len());
    let new = |place: usize, rank: T::Rank| K::new(rank.into(), place);
    kept.extend(x[..head].iter().enumerate().map(|(i, x)| new(i, x.rank() ^ flip)));
    let worst = |kept: &mut Vec<K>| {
        kept.select_nth_unstable(k - 1);
        kept.truncate(k);
        x[kept[k - 1].place()].rank() ^ flip
    };
    if kept.len() <= k {
        return;
    }
    let mut end = worst(kept);
    for (b, block) in x[head..].chunks(WIDE).enumerate() {
        let any = match <&[T; WIDE]>::try_from(block).ok() {
            // Of equals the first are kept.
            Some(block) => block.iter().fold(false, |any, x| any | (x.rank() ^ flip < end)),
            None => true,
        };
        if !any {
            continue;
        }
        for (i, x) in block.iter().enumerate() {
            let rank = x.rank() ^ flip;
            if rank < end {
                kept.push(new(head + b * WIDE + i, rank));
                if kept.len() == room {
                    end = worst(kept);
                }
            }
        }
    }
    if kept.len() > k {
        worst(kept);
    }
}

/// From so many keys on a digit is counted in less time than keys are compared.
const COUNTED: usize = if cfg!(all(test, debug_assertions)) { 50 } else { 2048 };
/// Bits of a digit, and how many digits take no more time than comparisons.
const DIGIT: u32 = 11;
const DIGITS: u32 = 4;

/// Sorts keys that come in the order of their places.
fn sort_keys<K: Key>(keys: &mut Vec<K>, spare: &mut Vec<K>) {
    let first = keys[0].rank();
    let differ = keys.iter().fold(0, |differ, key| differ | (key.rank() ^ first));
    let low = differ.trailing_zeros();
    let bits = (u64::BITS - differ.leading_zeros()).saturating_sub(low);
    let digits = bits.div_ceil(DIGIT);
    if keys.len() < COUNTED || digits > DIGITS {
        return keys.sort_unstable();
    }
    if spare.len() < keys.len() {
        crate::room::reserve(spare, keys.len() - spare.len());
        spare.extend_from_slice(&keys[spare.len()..]);
    }
    spare.truncate(keys.len());
    let digit = |key: K, i: u32| (key.rank() >> (low + i * DIGIT)) as usize % (1 << DIGIT);
    for i in 0..digits {
        // Where the next key with a digit goes.
        let mut next = [0usize; 1 << DIGIT];
        keys.iter().for_each(|key| next[digit(*key, i)] += 1);
        let mut sum = 0;
        for next in &mut next {
            (*next, sum) = (sum, sum + *next);
        }
        for key in keys.iter() {
            let next = &mut next[digit(*key, i)];
            spare[*next] = *key;
            *next += 1;
        }
        std::mem::swap(keys, spare);
    }
}

/// Lines that do not lie in memory as such are brought into order so many at a time.
const TURNED: usize = 16;

fn lines<T: Ordered, K: Key>(
    input: View<'_>,
    dim: usize,
    k: usize,
    descending: bool,
    values: Option<&ViewMut<'_>>,
    places: Option<&ViewMut<'_>>,
    par: &dyn Parallel,
) {
    let (n, step) = (input.shape[dim], input.strides[dim]);
    if k == 0 || input.numel() == 0 {
        return;
    }
    let inner = crate::shape::numel(&input.shape[dim + 1..]);
    let (mut shape, mut strides) = (input.shape.to_vec(), input.strides.to_vec());
    shape.remove(dim);
    strides.remove(dim);
    let lines = Nest::new(&shape, [&strides]).merged();
    let beside = lines.dims.last().copied().unwrap_or(Dim { size: 1, step: [0] });
    let from = Shared::<T>::new(input.ptr.cast_mut());
    let (values, places) =
        (values.map(|v| Shared::<T>::new(v.ptr)), places.map(|p| Shared::<i64>::new(p.ptr)));
    let least = if k < n { PICKED } else { SORTED };
    let flip = if descending { T::ALL } else { T::ZERO };
    let put = |line: usize, x: &[T], keys: &mut Vec<K>, spare: &mut Vec<K>| {
        keys.clear();
        crate::room::reserve(keys, if k < n { room_of(k).min(n) } else { n });
        if k < n {
            vectorize!(|| select(x, flip, k, keys));
            keys.sort_unstable();
        } else {
            keys.extend(x.iter().enumerate().map(|(i, x)| K::new((x.rank() ^ flip).into(), i)));
            sort_keys(keys, spare);
        }
        let first = ((line / inner * k) * inner + line % inner) as isize;
        for (r, key) in keys.iter().enumerate() {
            let (at, place) = (first + (r * inner) as isize, key.place());
            // SAFETY: an element of the outputs' line.
            unsafe {
                if let Some(values) = values {
                    values.at(at).write(x[place]);
                }
                if let Some(places) = places {
                    places.at(at).write(place as i64);
                }
            }
        }
    };
    in_parts(lines.numel(), (least / n).max(1), par, &|part| {
        let mut turned: Vec<T> = room::with_capacity(if step == 1 { 0 } else { TURNED * n });
        let mut spare = Vec::new();
        K::with_keys(|keys| {
            let mut line = part.start;
            while line < part.end {
                let [offset] = lines.at(line);
                let some = match step {
                    1 => 1,
                    _ => TURNED.min(part.end - line).min(beside.size - line % beside.size),
                };
                let first = match step {
                    1 => from.at(offset).cast_const(),
                    _ => {
                        let dims = [
                            Dim { size: some, step: [n as isize, beside.step[0]] },
                            Dim { size: n, step: [1, step] },
                        ];
                        let (to, from) = (turned.as_mut_ptr().cast(), from.at(offset).cast());
                        let nest = Nest { dims: dims.into_iter().collect() };
                        copy_nest(nest, size_of::<T>(), to, from, &Serial);
                        turned.as_ptr()
                    }
                };
                for i in 0..some {
                    // SAFETY: a line of the input, or of its turned copy.
                    let x = unsafe { std::slice::from_raw_parts(first.add(i * n), n) };
                    put(line + i, x, keys, &mut spare);
                }
                line += some;
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;

    #[test]
    fn digits_sort_as_comparisons_do() {
        let mut rng = Rng::new(83);
        for _ in turns(40) {
            let n = 1 + rng.below(3 * COUNTED);
            let (bits, low) = (rng.below(64) as u32, rng.below(20) as u32);
            let ranks: Vec<u64> =
                (0..n).map(|_| (rng.word() & ((1 << bits) - 1)) << low.min(63 - bits)).collect();
            let mut keys: Vec<(u64, usize)> = ranks.iter().copied().zip(0..).collect();
            let mut want = keys.clone();
            want.sort();
            sort_keys(&mut keys, &mut Vec::new());
            assert_eq!(keys, want);
            let short = |rank: &u64| rank % (1 << 32);
            let mut keys: Vec<u64> =
                ranks.iter().enumerate().map(|(i, rank)| u64::new(short(rank), i)).collect();
            let mut want = keys.clone();
            want.sort();
            sort_keys(&mut keys, &mut vec![7; rng.below(9)]);
            assert_eq!(keys, want);
        }
    }
}
