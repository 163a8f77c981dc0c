//! What is around places between the elements of an image: the nearest element, or some on either
//! side with their weights.

use crate::host::kernels::isa::vectorize;
use crate::room;
use crate::view::View;
use std::ops::{Add, Div, Mul, Range, Sub};

/// Points that are worked on at a time: what is around them stays in the nearest cache.
pub(super) const BLOCK: usize = 128;
/// Where an element beyond the ends lies.
pub(super) const BEYOND: isize = isize::MIN;

/// A type that places are in.
pub(crate) trait Real:
    Copy
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + 'static
{
    const ZERO: Self;
    const ONE: Self;
    fn floor(self) -> Self;
    fn round(self) -> Self;
    fn abs(self) -> Self;
    fn clamped(self, low: Self, high: Self) -> Self;
    fn of(x: f64) -> Self;
    fn index(self) -> isize;
}
macro_rules! real {
    ($($t:ident)*) => {$(
        impl Real for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            #[inline(always)] fn floor(self) -> $t { self.floor() }
            #[inline(always)] fn round(self) -> $t { self.round_ties_even() }
            #[inline(always)] fn abs(self) -> $t { self.abs() }
            #[inline(always)] fn clamped(self, low: $t, high: $t) -> $t { self.clamp(low, high) }
            #[inline(always)] fn of(x: f64) -> $t { x as $t }
            #[inline(always)] fn index(self) -> isize { self as isize }
        }
    )*};
}
real! { f32 f64 }

/// What a sample is made of, along each dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Around {
    Nearest,
    /// The two neighbours, by how near they are.
    Linear,
    /// Two neighbours on either side, by the cubic convolution of Keys with a = -0.75.
    Cubic(Beyond),
}

/// What is taken for an element beyond the ends. (Points beyond them are moved before.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Beyond {
    Zeros,
    Border,
    /// The ends are mirrors: the centres of the last elements, or their edges.
    Mirrors {
        centres: bool,
    },
}

/// The factor of the cubic convolution.
pub(crate) const A: f64 = -0.75;

impl Beyond {
    /// Where an element at this place is, in a dimension that ends at `last`.
    #[inline(always)]
    fn moved<W: Real>(self, at: W, last: W) -> W {
        match self {
            Beyond::Zeros => at,
            Beyond::Border => at.clamped(W::ZERO, last),
            Beyond::Mirrors { centres } => {
                let (low, span) = match centres {
                    true => (W::ZERO, last),
                    false => (W::of(-0.5), last + W::ONE),
                };
                if span == W::ZERO {
                    return at * W::ZERO;
                }
                // There and back.
                let (away, twice) = ((at - low).abs(), span + span);
                let rest = away - (away / twice).floor() * twice;
                let back = if rest > span { twice - rest } else { rest };
                (back + low).clamped(W::ZERO, last)
            }
        }
    }
}

/// The weights of the four elements around, and how they grow, so far behind the second.
#[inline(always)]
fn cubic<W: Real>(t: W) -> ([W; 4], [W; 4]) {
    let (a, number) = (W::of(A), W::of);
    let inner = |x: W| ((a + number(2.0)) * x - (a + number(3.0))) * x * x + W::ONE;
    let outer = |x: W| ((x - number(5.0)) * x + number(8.0)) * x * a - number(4.0) * a;
    let inner_slope =
        |x: W| ((a + number(2.0)) * x * number(3.0) - (a + number(3.0)) * number(2.0)) * x;
    let outer_slope = |x: W| ((x * number(3.0) - number(10.0)) * x + number(8.0)) * a;
    let (behind, before) = (t + W::ONE, W::ONE - t);
    let weights = [outer(behind), inner(t), inner(before), outer(before + W::ONE)];
    let slopes =
        [outer_slope(behind), inner_slope(t), inner_slope(before), outer_slope(before + W::ONE)];
    let minus = |x: W| W::ZERO - x;
    (weights, [slopes[0], slopes[1], minus(slopes[2]), minus(slopes[3])])
}

/// Which elements are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    /// The number of dimensions, two or three, and the images' sizes.
    pub spatial: usize,
    pub sizes: [usize; 3],
    pub by: Around,
}

/// The elements around some points. Of each of them, or of each dimension and each of them, the
/// points are side by side.
pub(super) struct Found<W> {
    pub offsets: Vec<isize>,
    pub weights: Vec<W>,
    /// How the weights grow along each dimension.
    pub slopes: Vec<W>,
}

impl Taken {
    /// Elements around a point.
    pub fn corners(&self) -> usize {
        self.reach().pow(self.spatial as u32)
    }

    /// Elements around a point along a dimension.
    pub fn reach(&self) -> usize {
        match self.by {
            Around::Nearest => 1,
            Around::Linear => 2,
            Around::Cubic(_) => 4,
        }
    }

    pub fn sizes(&self) -> &[usize] {
        &self.sizes[..self.spatial]
    }

    pub(super) fn room<W: Real>(&self, slopes: bool) -> Found<W> {
        let all = self.corners() * BLOCK;
        Found {
            offsets: room::filled(all, BEYOND),
            weights: room::filled(all, W::ONE),
            slopes: room::filled(if slopes { self.spatial * all } else { 0 }, W::ZERO),
        }
    }

    /// Finds what is around some points, in elements `steps` apart.
    pub(super) fn find<W: Real>(
        &self,
        places: &[View<'_>],
        image: usize,
        points: Range<usize>,
        steps: &[isize],
        to: &mut Found<W>,
    ) {
        vectorize!(|| match (self.spatial, self.reach()) {
            (2, 1) => self.find_in::<2, 1, W>(places, image, points, steps, to),
            (2, 2) => self.find_in::<2, 2, W>(places, image, points, steps, to),
            (2, _) => self.find_in::<2, 4, W>(places, image, points, steps, to),
            (_, 1) => self.find_in::<3, 1, W>(places, image, points, steps, to),
            (_, 2) => self.find_in::<3, 2, W>(places, image, points, steps, to),
            (_, _) => self.find_in::<3, 4, W>(places, image, points, steps, to),
        });
    }

    /// The elements around a point along a dimension, `R` of them: where each is, counted from 0,
    /// its share, and how this grows.
    #[inline(always)]
    fn along<const R: usize, W: Real>(&self, p: W) -> ([W; R], [W; R], [W; R]) {
        let (mut shares, mut slopes) = ([W::ONE; R], [W::ONE; R]);
        let low = match self.by {
            Around::Nearest => p.round(),
            Around::Linear | Around::Cubic(_) => p.floor(),
        };
        let first = match self.by {
            Around::Nearest => low,
            Around::Linear => {
                shares = std::array::from_fn(|k| if k == 0 { low + W::ONE - p } else { p - low });
                slopes[0] = W::ZERO - W::ONE;
                low
            }
            Around::Cubic(_) => {
                let (all, grown) = cubic(p - low);
                (shares, slopes) =
                    (std::array::from_fn(|k| all[k]), std::array::from_fn(|k| grown[k]));
                low - W::ONE
            }
        };
        (std::array::from_fn(|k| first + W::of(k as f64)), shares, slopes)
    }

    #[inline(always)]
    fn find_in<const N: usize, const R: usize, W: Real>(
        &self,
        places: &[View<'_>],
        image: usize,
        points: Range<usize>,
        steps: &[isize],
        to: &mut Found<W>,
    ) {
        let (corners, ends) = (self.corners(), self.sizes.map(|n| W::of((n - 1) as f64)));
        let bits = R.ilog2() as usize;
        let part = |corner: usize, a: usize| corner >> (a * bits) & (R - 1);
        let rows: [*const W; N] = std::array::from_fn(|a| {
            let offset = image as isize * places[a].strides[0];
            places[a].ptr.cast::<W>().wrapping_offset(offset)
        });
        for (i, point) in points.enumerate() {
            // Of each dimension the elements, their shares, and how these grow.
            let mut at = [[BEYOND; R]; N];
            let (mut shares, mut slopes) = ([[W::ONE; R]; N], [[W::ONE; R]; N]);
            for a in 0..N {
                // SAFETY: a point of the value.
                let p = unsafe { *rows[a].offset(point as isize * places[a].strides[1]) };
                let there;
                (there, shares[a], slopes[a]) = self.along::<R, W>(p);
                for (at, there) in at[a].iter_mut().zip(there) {
                    let there = match self.by {
                        Around::Cubic(beyond) => beyond.moved(there, ends[a]),
                        Around::Nearest | Around::Linear => there,
                    };
                    if there >= W::ZERO && there <= ends[a] {
                        *at = there.index() * steps[a];
                    }
                }
            }
            for corner in 0..corners {
                let (mut offset, mut weight, mut is_beyond) = (0isize, W::ONE, false);
                for a in 0..N {
                    let side = part(corner, a);
                    is_beyond |= at[a][side] == BEYOND;
                    offset = offset.wrapping_add(at[a][side]);
                    weight = weight * shares[a][side];
                }
                let here = corner * BLOCK + i;
                to.offsets[here] = if is_beyond { BEYOND } else { offset };
                to.weights[here] = weight;
                if to.slopes.is_empty() {
                    continue;
                }
                for a in 0..N {
                    let others = (0..N).filter(|&b| b != a);
                    let slope = slopes[a][part(corner, a)];
                    to.slopes[a * corners * BLOCK + here] =
                        others.fold(slope, |slope, b| slope * shares[b][part(corner, b)]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;

    /// Shares of what is around a point sum up to one, and how they grow to none.
    #[test]
    fn shares_are_one_together() {
        let mut rng = Rng::new(95);
        for by in [Around::Nearest, Around::Linear, Around::Cubic(Beyond::Border)] {
            let taken = Taken { spatial: 2, sizes: [5, 7, 1], by };
            let draw = |rng: &mut Rng| (rng.unit() * 20.0 - 10.0) as f32;
            let places = [0, 1].map(|_| Value::<f32>::random(&mut rng, &[1, 40], draw));
            let views = [places[0].view(), places[1].view()];
            let mut found = taken.room::<f32>(true);
            taken.find(&views, 0, 0..40, &[7, 1], &mut found);
            let corners = taken.corners();
            for i in 0..40 {
                let sum = |all: &[f32]| (0..corners).map(|k| all[k * BLOCK + i]).sum::<f32>();
                assert!((sum(&found.weights) - 1.0).abs() < 1e-5, "{by:?}");
                for a in (0..2).filter(|_| by != Around::Nearest) {
                    assert!(sum(&found.slopes[a * corners * BLOCK..]).abs() < 1e-5, "{by:?}");
                }
            }
        }
    }

    at_every_level! { shares_are_one_together }
}
