//! Kernels that choose elements: by index, by order, by value, by place.
//!
//! Called by the CPU kernels of those ops, which have checked shapes and types. Only the elements
//! tell of an index that is out of range, so that is an error value here: [`OutOfRange`]. Nothing
//! outside is read or written then, and the output is of no use.

mod along;
mod along_back;
mod nonzero;
mod order;
mod pick;
mod place;
mod places;
mod scan;
mod scan_back;
mod scan_places;
mod scatter;
#[cfg(test)]
mod tests;
mod top_p;
mod wide;

pub(crate) use along::picked;
pub(crate) use along_back::summed;
pub(crate) use nonzero::{count_nonzero, nonzero};
pub(crate) use order::{sort, topk};
pub(crate) use pick::{
    embedding, gather, index_copy, index_select, one_hot, put_among_zeros, sum_of_places,
};
pub(crate) use place::{roll, tril, triu};
pub(crate) use scan::scan;
pub(crate) use scan_back::scan_back;
pub(crate) use scan_places::scan_places;
pub(crate) use scatter::scatter;
pub(crate) use top_p::{ROW_MAX, WHOLE, top_p};

use super::load::Load;
use super::nest::{Nest, Shared};
use crate::room;
use crate::sync::plain::{AtomicUsize, Ordering};
use crate::view::View;

/// An index that names no element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OutOfRange {
    /// The index.
    pub index: i64,
    /// What it must be below.
    pub size: usize,
    /// Its place among the indices, row by row.
    pub position: usize,
}

impl std::fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "index {} at position {} is out of range for size {}",
            self.index, self.position, self.size
        )
    }
}

/// The first failure of several parts that work at once.
struct Failure(AtomicUsize);

impl Failure {
    fn none() -> Failure {
        Failure(AtomicUsize::new(usize::MAX))
    }
    /// Notes that the index at a position is out of range.
    #[cold]
    fn at(&self, position: usize) {
        self.0.fetch_min(position, Ordering::Relaxed);
    }
    /// The failure at the lowest position, whose index is looked up again.
    fn result(self, size: usize, index: impl FnOnce(usize) -> i64) -> Result<(), OutOfRange> {
        match self.0.into_inner() {
            usize::MAX => Ok(()),
            position => Err(OutOfRange { index: index(position), size, position }),
        }
    }
}

/// The index at a position.
fn read(index: &View<'_>, position: usize) -> i64 {
    let [at] = Nest::new(index.shape, [index.strides]).at(position);
    with_index!(index.dtype, I => {
        let x: I = {
            // SAFETY: an index of the view.
            unsafe { *Shared::<I>::new(index.ptr.cast_mut()).at(at) }
        };
        Load::<i64>::load(x)
    })
}

/// The place that an index names in a dimension, if it names one; a negative one counts `from_end`,
/// or names none.
#[inline(always)]
fn place(index: i64, size: usize, from_end: bool) -> Option<isize> {
    let index = if from_end && index < 0 { index + size as i64 } else { index };
    ((index as u64) < size as u64).then_some(index as isize)
}

/// The places that indices name in a dimension, row by row; a negative one names none.
pub(super) fn places(index: View<'_>, size: usize) -> Result<Vec<usize>, OutOfRange> {
    with_index!(index.dtype, I => {
        let all = index.to_vec::<I>().unwrap_or_default();
        let all = all.into_iter().map(super::load::Load::<i64>::load).enumerate();
        let at = |(position, index)| {
            let place = place(index, size, false).map(|place| place as usize);
            place.ok_or(OutOfRange { index, size, position })
        };
        let mut places = room::with_capacity(index.numel());
        for one in all {
            places.push(at(one)?);
        }
        Ok(places)
    })
}

/// The first `count` numbers of a row of whole numbers, or the number of a row of them.
pub(in super::super) fn numbers(of: &View<'_>, row: usize, count: usize, to: &mut Vec<i64>) {
    let (first, step) = (row as isize * of.strides[0], of.strides.get(1).copied().unwrap_or(0));
    with_index!(of.dtype, I => {
        let from = Shared::<I>::new(of.ptr.cast_mut());
        room::reserve(to, count);
        // SAFETY: the row has so many elements.
        let number = |i: isize| Load::<i64>::load(unsafe { *from.at(first + i * step) });
        to.extend((0..count as isize).map(number));
    });
}

/// Runs an expression with `$I` bound to the type of a view of indices.
macro_rules! with_index {
    ($dtype:expr, $I:ident => $body:expr) => {
        match $dtype {
            $crate::dtype::DType::I64 => {
                type $I = i64;
                $body
            }
            $crate::dtype::DType::I32 => {
                type $I = i32;
                $body
            }
            $crate::dtype::DType::U8 => {
                type $I = u8;
                $body
            }
            other => unreachable!("indices of {other}, which the shape rule refuses"),
        }
    };
}
use with_index;

/// Runs an expression with `$T` bound to the unsigned integer of an element's size: for moving
/// elements.
macro_rules! with_size {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}
use with_size;

/// Elements below which a further thread does not pay, where they are moved in rows (two such parts
/// of `index_select`, rows of 64, 27.3, 22.7, 29.8 us, of `tril`, rows of 256, 46.5, 25.4, 34.1).
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 200 } else { 32 << 10 };
/// The same where columns are added up side by side (64 rows: 43.5, 21.8, 33.3 us).
const SUMMED: usize = LEAST / 2;
/// The same where each is looked for, or waits for the one before it (`gather` 55.4, 28.7, 36.1 us,
/// `scatter_add` 52.9, 40.1, 49.9, `cumsum` along rows of 1024 42.6, 21.1, 36.4, `topk`, 8 of 256,
/// 40.3, 29.8, 42.5).
const PICKED: usize = LEAST / 8;
/// The same where they are sorted (rows of 1024: 53.5, 25.3, 35.3 us; rows of 64: 31.3, 17.8,
/// 36.3).
const SORTED: usize = LEAST / 32;
