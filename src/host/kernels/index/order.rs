//! Sorting along a dimension: stable, with NaN above all numbers, as in PyTorch.
//!
//! The elements of a line are mapped to integers of the same order, each with its position in the
//! low bits. Sorting these compares no floats, and the positions make it stable.

use super::super::nest::{Nest, Shared, in_parts};
use super::{PICKED, SORTED};
use crate::dtype::{DType, Element};
use crate::sync::threads::thread_local;
use crate::view::{Parallel, View, ViewMut};
use half::{bf16, f16};
use std::cell::RefCell;

/// Maps elements to integers of the same order; equal elements (also 0 and -0, and all NaN) map to
/// equal integers.
trait Ordered: Element {
    fn rank(self) -> u64;
}

/// The rank of a float of `BITS` bits: all bits inverted for negative numbers, the sign bit set for
/// others.
#[inline(always)]
fn float_rank<const BITS: u32>(bits: u64, nan: bool) -> u64 {
    let sign = 1u64 << (BITS - 1);
    let all = sign | (sign - 1);
    match bits {
        _ if nan => all,
        b if b == sign => sign, // -0 is 0
        b if b & sign != 0 => !b & all,
        b => b | sign,
    }
}

macro_rules! ordered {
    ($($t:ident |$x:ident| $rank:expr;)*) => {$(
        impl Ordered for $t {
            #[inline(always)]
            fn rank(self) -> u64 { let $x = self; $rank }
        }
    )*};
}
ordered! {
    f32 |x| float_rank::<32>(x.to_bits() as u64, x.is_nan());
    f64 |x| float_rank::<64>(x.to_bits(), x.is_nan());
    f16 |x| float_rank::<16>(x.to_bits() as u64, x.is_nan());
    bf16 |x| float_rank::<16>(x.to_bits() as u64, x.is_nan());
    i32 |x| (x as u32 ^ 1 << 31) as u64;
    i64 |x| x as u64 ^ 1 << 63;
    u8 |x| x as u64;
}

/// A sort key: an element's rank, then its position. For elements of up to 32 bits both fit in one
/// word.
trait Key: Copy + Ord {
    /// A key after all others.
    const END: Self;
    fn new(rank: u64, place: usize) -> Self;
    fn place(self) -> usize;
    fn with_keys<R>(f: impl FnOnce(&mut Vec<Self>) -> R) -> R;
}

macro_rules! key {
    ($($t:ty: $end:expr, $new:expr, $place:expr;)*) => {$(
        impl Key for $t {
            const END: $t = $end;
            #[inline(always)] fn new(rank: u64, place: usize) -> $t { ($new)(rank, place) }
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
    u64: u64::MAX, |rank, place| rank << 32 | place as u64, |key| (key & u32::MAX as u64) as usize;
    (u64, usize): (u64::MAX, usize::MAX), |rank, place| (rank, place), |key: (u64, usize)| key.1;
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
    (2 * k).max(256)
}

/// Selects the `k` first keys, in any order. The buffer keeps the first keys seen so far; nearly
/// all later keys come after the last of these, and are skipped.
fn select<K: Key>(all: impl Iterator<Item = K>, k: usize, kept: &mut Vec<K>) {
    let (room, mut end) = (room_of(k), K::END);
    for key in all {
        if key < end {
            kept.push(key);
            if kept.len() == room {
                end = *kept.select_nth_unstable(k - 1).1;
                kept.truncate(k);
            }
        }
    }
    if kept.len() > k {
        kept.select_nth_unstable(k - 1);
        kept.truncate(k);
    }
}

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
    let lines = Nest::new(&shape, [&strides]);
    let from = Shared::<T>::new(input.ptr.cast_mut());
    let (values, places) =
        (values.map(|v| Shared::<T>::new(v.ptr)), places.map(|p| Shared::<i64>::new(p.ptr)));
    let least = if k < n { PICKED } else { SORTED };
    in_parts(lines.numel(), (least / n).max(1), par, &|part| {
        K::with_keys(|keys| {
            for (line, [offset]) in lines.turns(part) {
                keys.clear();
                crate::room::reserve(keys, if k < n { room_of(k).min(n) } else { n });
                let all = (0..n).map(|i| {
                    // SAFETY: this is an element of the input's line.
                    let rank = unsafe { *from.at(offset + i as isize * step) }.rank();
                    let flip = if size_of::<T>() == 8 {
                        u64::MAX
                    } else {
                        (1 << (8 * size_of::<T>())) - 1
                    };
                    K::new(if descending { rank ^ flip } else { rank }, i)
                });
                if k < n {
                    select(all, k, keys);
                } else {
                    keys.extend(all);
                }
                keys.sort_unstable();
                let first = ((line / inner * k) * inner + line % inner) as isize;
                for (r, key) in keys.iter().enumerate() {
                    let (at, place) = (first + (r * inner) as isize, key.place());
                    // SAFETY: these are elements of the outputs' line and of the input's line.
                    unsafe {
                        if let Some(values) = values {
                            values.at(at).write(*from.at(offset + place as isize * step));
                        }
                        if let Some(places) = places {
                            places.at(at).write(place as i64);
                        }
                    }
                }
            }
        });
    });
}
