//! Dimensions and indices, as arguments.

use smallvec::SmallVec;
use std::fmt;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// One or several dimensions: `0`, `-1`, `[0, 2]`, a slice or a vector. Negative numbers count from
/// the end.
pub trait Dims {
    /// As signed numbers. A number that `isize` cannot hold becomes `isize::MAX`, which is never a
    /// valid dimension or size.
    fn dims(&self) -> SmallVec<[isize; 8]>;
}

/// The nearest number that `isize` holds: `usize::MAX` becomes `isize::MAX`, not -1.
#[inline]
fn nearest(n: impl TryInto<isize> + PartialOrd + Default) -> isize {
    let negative = n < Default::default();
    n.try_into().unwrap_or(if negative { isize::MIN } else { isize::MAX })
}

macro_rules! dims {
    ($($t:ty),*) => {$(
        impl Dims for $t {
            fn dims(&self) -> SmallVec<[isize; 8]> {
                SmallVec::from_slice(&[nearest(*self)])
            }
        }
        impl<const N: usize> Dims for [$t; N] {
            fn dims(&self) -> SmallVec<[isize; 8]> {
                self.iter().map(|&d| nearest(d)).collect()
            }
        }
        impl Dims for &[$t] {
            fn dims(&self) -> SmallVec<[isize; 8]> {
                self.iter().map(|&d| nearest(d)).collect()
            }
        }
        impl Dims for Vec<$t> {
            fn dims(&self) -> SmallVec<[isize; 8]> {
                self.iter().map(|&d| nearest(d)).collect()
            }
        }
    )*};
}
dims!(i32, i64, isize, usize);

impl Dims for () {
    fn dims(&self) -> SmallVec<[isize; 8]> {
        SmallVec::new()
    }
}

/// The part of one dimension that an index selects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// One position; the dimension is removed. Negative positions count from the end.
    At(isize),
    /// From start to end (exclusive), clamped to the dimension: Python's `start:end:step`. Negative
    /// positions count from the end.
    Span {
        /// The first position; `None` is the end of the dimension that the steps lead away from.
        start: Option<isize>,
        /// The position after the last; `None` is the end of the dimension that the steps lead to.
        end: Option<isize>,
        /// The distance between positions; not 0. With a negative step, a non-empty span starts
        /// above its end.
        step: isize,
    },
}

impl Index {
    /// The whole dimension.
    pub const ALL: Index = Index::Span { start: None, end: None, step: 1 };

    /// This span in steps of `by`, like Python's `start:end:by`: `Index::ALL.step(-1)` is the whole
    /// dimension in reverse, and `Index::from(3..1).step(-1)` is positions 3 and 2.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::Index;
    /// let x = futensor::Device::cpu().arange(0, 5, 1);
    /// assert_eq!(x.i(Index::from(3..0).step(-2)).to_vec::<i64>().await?, [3, 1]);
    /// assert_eq!(x.i(Index::from(-2..).step(-1)).to_vec::<i64>().await?, [3, 2, 1, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn step(self, by: isize) -> Index {
        match self {
            Index::Span { start, end, .. } => Index::Span { start, end, step: by },
            at => at,
        }
    }
}

/// As written between brackets: `5`, `1..3`, `..`.
impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Index::At(i) => write!(f, "{i}"),
            Index::Span { start, end, step } => {
                if let Some(start) = start {
                    write!(f, "{start}")?;
                }
                f.write_str("..")?;
                if let Some(end) = end {
                    write!(f, "{end}")?;
                }
                if step == 1 { Ok(()) } else { write!(f, " in steps of {step}") }
            }
        }
    }
}

macro_rules! index_from {
    ($($t:ty),*) => {$(
        impl From<$t> for Index {
            fn from(i: $t) -> Index { Index::At(nearest(i)) }
        }
        impl From<Range<$t>> for Index {
            fn from(r: Range<$t>) -> Index {
                Index::Span { start: Some(nearest(r.start)), end: Some(nearest(r.end)), step: 1 }
            }
        }
        impl From<RangeFrom<$t>> for Index {
            fn from(r: RangeFrom<$t>) -> Index {
                Index::Span { start: Some(nearest(r.start)), end: None, step: 1 }
            }
        }
        impl From<RangeTo<$t>> for Index {
            fn from(r: RangeTo<$t>) -> Index {
                Index::Span { start: None, end: Some(nearest(r.end)), step: 1 }
            }
        }
        impl From<RangeInclusive<$t>> for Index {
            fn from(r: RangeInclusive<$t>) -> Index {
                inclusive(Some(nearest(*r.start())), nearest(*r.end()))
            }
        }
        impl From<RangeToInclusive<$t>> for Index {
            fn from(r: RangeToInclusive<$t>) -> Index { inclusive(None, nearest(r.end)) }
        }
    )*};
}
index_from!(i32, i64, isize, usize);

fn inclusive(start: Option<isize>, last: isize) -> Index {
    // -1 is the last position: nothing comes after it.
    Index::Span { start, end: if last == -1 { None } else { last.checked_add(1) }, step: 1 }
}

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Index {
        Index::ALL
    }
}

/// Indices of the first dimensions: one index, a tuple of up to six, or a list of [`Index`] made
/// at run time: `x.i(0)`, `x.i((.., 1..3, -1))`, `x.i(vec![Index::ALL; n])`.
pub trait Indices {
    /// One index per dimension.
    fn indices(self) -> SmallVec<[Index; 6]>;
}

impl<T: Into<Index>> Indices for T {
    fn indices(self) -> SmallVec<[Index; 6]> {
        SmallVec::from_slice(&[self.into()])
    }
}

impl Indices for &[Index] {
    fn indices(self) -> SmallVec<[Index; 6]> {
        SmallVec::from_slice(self)
    }
}

impl<const N: usize> Indices for [Index; N] {
    fn indices(self) -> SmallVec<[Index; 6]> {
        SmallVec::from_slice(&self)
    }
}

impl<const N: usize> Indices for &[Index; N] {
    fn indices(self) -> SmallVec<[Index; 6]> {
        SmallVec::from_slice(self)
    }
}

impl Indices for Vec<Index> {
    fn indices(self) -> SmallVec<[Index; 6]> {
        SmallVec::from_vec(self)
    }
}

impl Indices for &Vec<Index> {
    fn indices(self) -> SmallVec<[Index; 6]> {
        SmallVec::from_slice(self)
    }
}

macro_rules! tuples {
    ($(($($T:ident $i:tt),+);)*) => {$(
        impl<$($T: Into<Index>),+> Indices for ($($T,)+) {
            fn indices(self) -> SmallVec<[Index; 6]> {
                SmallVec::from_iter([$(self.$i.into()),+])
            }
        }
    )*};
}
tuples! {
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
}

/// The positions that an index selects of a dimension of size `n`: the first, their number, and
/// their distance.
pub(crate) fn resolve(index: Index, n: usize) -> Option<(usize, usize, isize)> {
    // A failed value may have any shape.
    let size = isize::try_from(n).unwrap_or(isize::MAX);
    match index {
        Index::At(i) => {
            let i = if i < 0 { i + size } else { i };
            (0..size).contains(&i).then_some((i as usize, 1, 1))
        }
        Index::Span { step: 0, .. } => None,
        Index::Span { start, end, step } => {
            // Backwards, both limits are one lower: from the last position to before the first.
            let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
            let place = |i: isize| (if i < 0 { i + size } else { i }).clamp(low, high);
            let (from, to) = if step > 0 { (low, high) } else { (high, low) };
            let (from, to) = (start.map_or(from, place), end.map_or(to, place));
            let span = if step > 0 { to - from } else { from - to };
            let len = (span.max(0) as usize).div_ceil(step.unsigned_abs());
            Some((from.max(0) as usize, len, step))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn spans_are_limited_to_what_is_there_and_positions_are_not() {
        assert_eq!(resolve((1..10).into(), 4), Some((1, 3, 1)));
        assert_eq!(resolve((-2..).into(), 4), Some((2, 2, 1)));
        assert_eq!(resolve((3..1).into(), 4), Some((3, 0, 1)));
        assert_eq!(resolve(Index::ALL.step(-1), 4), Some((3, 4, -1)));
        assert_eq!(resolve(Index::ALL.step(3), 4), Some((0, 2, 3)));
        assert_eq!(resolve(4.into(), 4), None);
        assert_eq!(resolve((-1).into(), 4), Some((3, 1, 1)));
        assert_eq!(resolve(Index::ALL.step(0), 4), None);
    }

    #[test]
    fn a_number_beyond_isize_is_beyond_everything_and_not_negative() {
        assert_eq!(Dims::dims(&usize::MAX)[..], [isize::MAX]);
        assert_eq!(Dims::dims(&[3, usize::MAX - 7])[..], [3, isize::MAX]);
        assert_eq!(Dims::dims(&vec![-1i64, i64::MIN])[..], [-1, isize::MIN]);
        assert_eq!(resolve(usize::MAX.into(), 4), None);
        assert_eq!(resolve((0..usize::MAX).into(), 4), Some((0, 4, 1)));
        assert_eq!(resolve((0..=usize::MAX).into(), 4), Some((0, 4, 1)));
        assert_eq!(resolve((usize::MAX..).into(), 4), Some((4, 0, 1)));
    }

    #[test]
    fn an_index_is_shown_as_it_is_written() {
        let shown = |index: Index| format!("{index:?}");
        assert_eq!(
            [shown(5.into()), shown((1..3).into()), shown((..).into())],
            ["5", "1..3", ".."]
        );
        assert_eq!(
            [shown((-2..).into()), shown(Index::ALL.step(-2))],
            ["-2..", ".. in steps of -2"]
        );
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn spans_are_those_of_python_for_every_start_end_and_step() {
        let ends: Vec<Option<isize>> =
            (-7..=7).map(Some).chain([None, Some(isize::MIN), Some(isize::MAX)]).collect();
        for n in 0..5usize {
            let positions: Vec<isize> = (0..n as isize).collect();
            for (&start, &end) in ends.iter().flat_map(|a| ends.iter().map(move |b| (a, b))) {
                for step in [1, 2, 3, isize::MAX, -1, -2, -3, isize::MIN] {
                    // The definition: i = start, start + step, ... while i is before the
                    // end.
                    let counted = |i: isize| if i < 0 { i.saturating_add(n as isize) } else { i };
                    let (mut i, stop) = match step > 0 {
                        true => (
                            start.map_or(0, |i| counted(i).max(0)),
                            end.map_or(n as isize, counted),
                        ),
                        false => {
                            let last = n as isize - 1;
                            (
                                start.map_or(last, |i| counted(i).min(last)),
                                end.map_or(-1, |i| counted(i).max(-1)),
                            )
                        }
                    };
                    let mut want = Vec::new();
                    while (0..n as isize).contains(&i) && if step > 0 { i < stop } else { i > stop }
                    {
                        want.push(positions[i as usize]);
                        i = i.saturating_add(step);
                    }
                    let (first, len, by) = resolve(Index::Span { start, end, step }, n).unwrap();
                    let got: Vec<isize> =
                        (0..len as isize).map(|k| first as isize + k * by).collect();
                    assert_eq!(got, want, "{start:?}:{end:?}:{step} of {n}");
                    assert!(first <= n && by == step);
                }
            }
        }
        // As Python writes them.
        let python = |i: Index, n| resolve(i, n).unwrap();
        assert_eq!(python(Index::from(3..1).step(-1), 4), (3, 2, -1));
        assert_eq!(python(Index::from(1..3).step(-1), 4).1, 0);
        assert_eq!(python(Index::from(..1).step(-1), 4), (3, 2, -1));
        assert_eq!(python(Index::from(1..).step(-1), 4), (1, 2, -1));
        assert_eq!(python(Index::from(-2..-4).step(-1), 4), (2, 2, -1));
    }
}
