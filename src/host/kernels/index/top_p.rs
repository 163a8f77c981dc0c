//! The largest weights of a row whose sum reaches a share of the row's sum.
//!
//! Weights are scaled to integers, relative to the largest, so that sums do not depend on the
//! order. Bisection, not sorting, finds the threshold.

use super::super::load::{Load, by_float};
use super::super::nest::{Nest, Shared, in_parts};
use super::PICKED;
use crate::sync::threads::thread_local;
use crate::view::{Parallel, View, ViewMut};
use std::cell::RefCell;

/// The integer for the largest weight of a row.
pub(crate) const WHOLE: u64 = 1 << 39;

/// The most elements of a row: so that no sum overflows, and a weight and its position fit in one
/// word.
pub(crate) const ROW_MAX: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 24;

/// Keeps the largest weights of each row of the input up to the row's share in `shares` (float64),
/// and zeroes the others. Equal weights are ordered by position, and the largest weight is always
/// kept. A row is unchanged if its share is 1 or more, or if all its weights are 0.
pub(crate) fn top_p(input: View<'_>, shares: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    by_float!(input.dtype, rows(input, shares, out, par));
}

fn rows<T: Load<W>, W: Into<f64>>(
    input: View<'_>,
    shares: View<'_>,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let lead = input.shape.len() - 1;
    let (n, step) = (input.shape[lead], input.strides[lead]);
    if out.numel() == 0 {
        return;
    }
    let nest = Nest::new(&input.shape[..lead], [&input.strides[..lead], &shares.strides[..lead]]);
    let (from, to) = (Shared::<T>::new(input.ptr.cast_mut()), Shared::<T>::new(out.ptr));
    let shares = Shared::<f64>::new(shares.ptr.cast_mut());
    in_parts(nest.numel(), (PICKED / n).max(1), par, &|part| {
        thread_local! {
            static ORDER: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
        }
        ORDER.with_borrow_mut(|order| {
            order.clear();
            crate::room::reserve(order, n);
            for (row, [offset, share]) in nest.turns(part) {
                // SAFETY: these are elements of the input's row, and its share.
                let (x, share) =
                    unsafe { (|j: usize| *from.at(offset + j as isize * step), *shares.at(share)) };
                let to = to.at((row * n) as isize);
                let kept = nucleus((0..n).map(|j| x(j).load().into()), share, order);
                // SAFETY: this is the output's row; zero bytes are the zero of every float type.
                unsafe {
                    match kept {
                        None => (0..n).for_each(|j| to.add(j).write(x(j))),
                        Some(kept) => {
                            to.write_bytes(0, n);
                            kept.iter().map(place).for_each(|j| to.add(j).write(x(j)));
                        }
                    }
                }
            }
        });
    });
}

/// A word that sorts by decreasing weight, then by position.
fn word((place, part): (usize, u64)) -> u64 {
    (WHOLE - part) << PLACE_BITS | place as u64
}

fn place(word: &u64) -> usize {
    (word & (ROW_MAX as u64 - 1)) as usize
}

fn part(word: &u64) -> u64 {
    WHOLE - (word >> PLACE_BITS)
}

/// The words of the weights to keep; `None` for all.
fn nucleus(
    row: impl Iterator<Item = f64> + Clone,
    share: f64,
    order: &mut Vec<u64>,
) -> Option<&[u64]> {
    // If a weight is NaN, all weights count as 0.
    let largest =
        row.clone().fold(0.0, |most: f64, x| if x > most || x.is_nan() { x } else { most });
    let scale = WHOLE as f64 / largest;
    order.clear();
    order.extend(row.map(|x| ((x * scale) as u64).min(WHOLE)).enumerate().map(word));
    let total: u64 = order.iter().map(part).sum();
    if share >= 1.0 || share.is_nan() || total == 0 {
        return None;
    }
    let mut need = ((share * total as f64).ceil() as u64).max(1);
    let (mut first, mut last) = (0, order.len() - 1);
    while first < last {
        let middle = (last - first) / 2;
        let (low, pivot, _) = order[first..=last].select_nth_unstable(middle);
        let sum = low.iter().map(part).sum::<u64>() + part(pivot);
        if sum >= need {
            last = first + middle;
        } else {
            need -= sum;
            first += middle + 1;
        }
    }
    Some(&order[..=first])
}
