//! Iteration shapes as a kernel walks them: dimensions merged, innermost first, at most eight.
//!
//! Every family uses it to turn shape and strides into a `Geo32` or `Geo64` argument
//! (`device/base.cuh`). It knows no dtypes and no kernels.

use super::{Arg, Words};
use smallvec::SmallVec;

/// Most dimensions that a kernel takes after merging; more are looped over by the host.
pub(crate) const RANK_MAX: usize = 8;

/// A shape with the strides of several operands, without dimensions of one, and merged where every
/// operand walks two neighbouring dimensions as one. Innermost first.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Geometry {
    pub dims: SmallVec<[usize; 8]>,
    /// One list an operand.
    pub strides: SmallVec<[SmallVec<[isize; 8]>; 4]>,
}

impl Geometry {
    pub fn new(shape: &[usize], strides: &[&[isize]]) -> Geometry {
        let mut g = Geometry { dims: SmallVec::new(), strides: SmallVec::new() };
        g.strides.resize(strides.len(), SmallVec::new());
        for d in (0..shape.len()).rev() {
            if shape[d] == 1 {
                continue;
            }
            let merges = g.dims.last().is_some_and(|&inner| {
                strides
                    .iter()
                    .zip(&g.strides)
                    .all(|(s, own)| s[d] == own[own.len() - 1].wrapping_mul(inner as isize))
            });
            if merges {
                let inner =
                    g.dims.last_mut().expect("it merges with the one that it was compared with");
                // Sizes beside a size of 0 may be any.
                *inner = inner.saturating_mul(shape[d]);
            } else {
                g.dims.push(shape[d]);
                strides.iter().zip(&mut g.strides).for_each(|(s, own)| own.push(s[d]));
            }
        }
        g
    }

    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    pub fn numel(&self) -> usize {
        crate::shape::numel(&self.dims)
    }

    /// Stride of the innermost dimension; 1 where there is none.
    pub fn inner(&self, k: usize) -> isize {
        self.strides[k].first().copied().unwrap_or(1)
    }

    /// True where 31 bits hold every linear position and every operand's offsets.
    pub fn fits_32(&self) -> bool {
        let most = i32::MAX as usize;
        self.numel() <= most
            && self.strides.iter().all(|s| {
                let reach: usize = s
                    .iter()
                    .zip(&self.dims)
                    .map(|(s, n)| s.unsigned_abs().saturating_mul(n - 1))
                    .sum();
                reach <= most
            })
    }

    /// The geometry cut into launches of at most [`RANK_MAX`] dimensions: for each the linear
    /// position of its first element and every operand's offset there. One piece in all but odd
    /// cases.
    pub fn pieces(&self) -> (Geometry, Vec<(usize, SmallVec<[isize; 4]>)>) {
        let cut = self.rank().min(RANK_MAX);
        let mut low = self.clone();
        low.dims.truncate(cut);
        low.strides.iter_mut().for_each(|s| s.truncate(cut));
        let step = low.numel();
        let pieces = (0..crate::shape::numel(&self.dims[cut..]))
            .map(|i| {
                let mut rest = i;
                let mut offsets: SmallVec<[isize; 4]> = SmallVec::from_elem(0, self.strides.len());
                for d in cut..self.rank() {
                    let r = (rest % self.dims[d]) as isize;
                    rest /= self.dims[d];
                    self.strides.iter().zip(&mut offsets).for_each(|(s, o)| *o += r * s[d]);
                }
                (i * step, offsets)
            })
            .collect();
        (low, pieces)
    }

    /// The `Geo32<K>` or `Geo64<K>` argument.
    pub fn arg(&self, wide: bool) -> Arg {
        let mut w = Words::default();
        debug_assert!(self.rank() <= RANK_MAX);
        let dims = (0..RANK_MAX).map(|d| self.dims.get(d).copied().unwrap_or(1));
        if wide {
            w.u64(self.rank() as u64);
            dims.for_each(|n| w.u64(n as u64));
            for s in &self.strides {
                (0..RANK_MAX).for_each(|d| w.u64(s.get(d).copied().unwrap_or(0) as u64));
            }
        } else {
            w.u32(self.rank() as u32);
            dims.for_each(|n| divisor(n as u32).into_iter().for_each(|x| w.u32(x)));
            for s in &self.strides {
                (0..RANK_MAX).for_each(|d| w.u32(s.get(d).copied().unwrap_or(0) as i32 as u32));
            }
        }
        Arg::Struct(w)
    }
}

/// `Axis32`: size, multiplier and shift such that `n / size == (high(n * mul) + n) >> shift` for
/// n < 2^31 (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994).
pub(super) fn divisor(size: u32) -> [u32; 3] {
    let size = size.max(1);
    let shift = 32 - (size - 1).leading_zeros();
    let mul = ((1u64 << 32) * ((1u64 << shift) - size as u64) / size as u64) + 1;
    [size, mul as u32, shift]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_multiplication_is_exact_below_2_31() {
        let sizes = (1..2000)
            .chain((0..31).flat_map(|b| [1u32 << b, (1 << b) + 1, (1u32 << b).wrapping_sub(1)]));
        for size in sizes.filter(|&s| s > 0) {
            let [_, mul, shift] = divisor(size);
            let near = (0..40).flat_map(|k| {
                let m = (i32::MAX as u32 / size).saturating_sub(k) * size;
                [m, m.saturating_sub(1), m.saturating_add(1).min(i32::MAX as u32), k, k * 977]
            });
            for n in near.chain([i32::MAX as u32]) {
                let high = ((n as u64 * mul as u64) >> 32) as u32;
                assert_eq!((high + n) >> shift, n / size, "{n} / {size}");
            }
        }
    }

    #[test]
    fn dimensions_merge_only_where_every_operand_agrees() {
        let g = Geometry::new(&[4, 1, 3, 5], &[&[15, 7, 5, 1], &[15, 0, 5, 1]]);
        assert_eq!((&g.dims[..], g.inner(0)), (&[60][..], 1));
        let g = Geometry::new(&[4, 3, 5], &[&[15, 5, 1], &[0, 5, 1]]);
        assert_eq!(&g.dims[..], &[15, 4]);
        assert_eq!(&g.strides[1][..], &[1, 0]);
    }

    #[test]
    fn ten_dimensions_are_cut_into_launches_that_cover_every_element_once() {
        let shape = [2; 10];
        let strides: Vec<isize> = (0..10).map(|d| 3 * (1 << d) + d).collect();
        let (low, pieces) = Geometry::new(&shape, &[&strides]).pieces();
        assert_eq!((low.rank(), pieces.len()), (8, 4));
        assert_eq!(pieces[3].0, 768);
        assert_eq!(pieces[3].1[0], strides[0] + strides[1]);
    }
}
