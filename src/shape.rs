//! Shapes, strides, and views without a copy.
//!
//! [`Shape`] is public; [`Layout`] (strides, offset) describes how a value is stored in its
//! buffer. Pure arithmetic: no tensors, no devices, no errors beyond `None`.

use smallvec::SmallVec;
use std::{fmt, ops::Deref};

/// Strides in elements. A stride of 0 repeats an element, a negative one goes backwards.
pub(crate) type Strides = SmallVec<[isize; Shape::FEW]>;

/// The sizes of a tensor's dimensions, outermost first. A 0-d shape has one element.
///
/// ```
/// use futensor::Shape;
/// let shape = Shape::from([2, 3]);
/// assert_eq!(shape.numel(), 6);
/// assert_eq!(shape.to_string(), "[2, 3]");
/// assert_eq!(Shape::from(()).numel(), 1);
/// ```
#[derive(PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Shape(SmallVec<[usize; Shape::FEW]>);

impl Clone for Shape {
    /// Every op makes a shape: a few sizes are copied through registers.
    #[inline]
    fn clone(&self) -> Shape {
        let dims = self.dims();
        if dims.len() > Shape::FEW {
            return Shape(SmallVec::from_slice(dims));
        }
        let size = |i: usize| if i < dims.len() { dims[i] } else { 0 };
        Shape(SmallVec::from_buf_and_len([size(0), size(1), size(2), size(3)], dims.len()))
    }
}

impl Shape {
    /// The number of sizes that are stored inline.
    pub(crate) const FEW: usize = 4;

    /// The sizes as a slice.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// `==`, without a call for a few sizes.
    #[inline]
    pub(crate) fn is(&self, other: &Shape) -> bool {
        let (a, b) = (self.dims(), other.dims());
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b)
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements; saturates at `usize::MAX` if the product overflows.
    #[inline]
    pub fn numel(&self) -> usize {
        numel(self.dims())
    }

    /// The common shape of two operands under NumPy's broadcasting rule, if there is one.
    ///
    /// ```
    /// use futensor::Shape;
    /// let (a, b) = (Shape::from([2, 1]), Shape::from([3]));
    /// assert_eq!(a.broadcast(&b), Some(Shape::from([2, 3])));
    /// assert_eq!(a.broadcast(&Shape::from([4, 3])), None);
    /// ```
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        if self == other {
            return Some(self.clone());
        }
        let rank = self.rank().max(other.rank());
        let at =
            |s: &Shape, i: usize| if i + s.rank() < rank { 1 } else { s.0[i + s.rank() - rank] };
        let mut dims = SmallVec::with_capacity(rank);
        for i in 0..rank {
            dims.push(match (at(self, i), at(other, i)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => return None,
            });
        }
        Some(Shape(dims))
    }

    /// The dimension that an index names; negative ones count from the end.
    pub(crate) fn dim(&self, dim: isize) -> Option<usize> {
        let rank = self.rank() as isize;
        let d = if dim < 0 { dim + rank } else { dim };
        (0..rank).contains(&d).then_some(d as usize)
    }

    pub(crate) fn dims_mut(&mut self) -> &mut SmallVec<[usize; 4]> {
        &mut self.0
    }
}

/// The number of elements: 0 if any size is 0, whatever the others are; saturates.
#[inline]
pub(crate) fn numel(dims: &[usize]) -> usize {
    let product = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    product.unwrap_or_else(|| if dims.contains(&0) { 0 } else { usize::MAX })
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl From<()> for Shape {
    fn from(_: ()) -> Shape {
        Shape::default()
    }
}
impl From<usize> for Shape {
    fn from(n: usize) -> Shape {
        Shape(SmallVec::from_slice(&[n]))
    }
}
macro_rules! tuples {
    ($($(($n:ident $size:ty))*;)*) => {$(
        /// As in Python; an array is equivalent.
        impl From<($($size,)*)> for Shape {
            fn from(($($n,)*): ($($size,)*)) -> Shape {
                Shape(SmallVec::from_slice(&[$($n),*]))
            }
        }
    )*};
}
tuples! {
    (a usize);
    (a usize) (b usize);
    (a usize) (b usize) (c usize);
    (a usize) (b usize) (c usize) (d usize);
    (a usize) (b usize) (c usize) (d usize) (e usize);
    (a usize) (b usize) (c usize) (d usize) (e usize) (f usize);
}
impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape(SmallVec::from_slice(&dims))
    }
}
impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(dims: &[usize; N]) -> Shape {
        Shape(SmallVec::from_slice(dims))
    }
}
impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape(SmallVec::from_slice(dims))
    }
}
impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Shape {
        Shape(SmallVec::from_vec(dims))
    }
}
impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        shape.clone()
    }
}
impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Shape {
        Shape(dims.into_iter().collect())
    }
}

/// How a value is stored in its buffer: strides and offset in elements; the shape is stored
/// elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub shape: Shape,
    pub strides: Strides,
    pub offset: usize,
}

/// Row-major strides of a shape.
pub(crate) fn contiguous_strides(dims: &[usize]) -> Strides {
    // Every operand of every op needs strides, so a few are collected in an array first.
    let mut few = [0; Shape::FEW];
    let mut many = Strides::new();
    let strides = match few.get_mut(..dims.len()) {
        Some(strides) => strides,
        None => {
            many.resize(dims.len(), 0);
            &mut many[..]
        }
    };
    let mut step = 1isize;
    for (stride, &size) in strides.iter_mut().zip(dims).rev() {
        *stride = step;
        step = step.saturating_mul(size.max(1) as isize);
    }
    if dims.len() > Shape::FEW { many } else { SmallVec::from_buf_and_len(few, dims.len()) }
}

impl Layout {
    pub fn contiguous(shape: Shape) -> Layout {
        let strides = contiguous_strides(&shape);
        Layout { shape, strides, offset: 0 }
    }

    /// True where the elements lie row by row without gaps (the offset may be anything).
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1isize;
        for (&n, &s) in self.shape.iter().zip(&self.strides).rev() {
            if n == 0 {
                return true;
            }
            if n != 1 {
                if s != step {
                    return false;
                }
                // An empty value may have any sizes.
                step = step.wrapping_mul(n as isize);
            }
        }
        true
    }

    /// The strides that read this value as `shape`; the caller has checked that it
    /// broadcasts.
    pub fn broadcast_strides(&self, shape: &[usize]) -> Strides {
        let lead = shape.len() - self.shape.rank();
        (0..shape.len())
            .map(|i| if i < lead || self.shape[i - lead] == 1 { 0 } else { self.strides[i - lead] })
            .collect()
    }

    pub fn expand(&self, shape: &Shape) -> Layout {
        Layout { shape: shape.clone(), strides: self.broadcast_strides(shape), offset: self.offset }
    }

    pub fn permute(&self, order: &[usize]) -> Layout {
        Layout {
            shape: order.iter().map(|&d| self.shape[d]).collect(),
            strides: order.iter().map(|&d| self.strides[d]).collect(),
            offset: self.offset,
        }
    }

    /// Elements `start`, `start + step`, ... (`len` of them) of one dimension. `step` may be
    /// negative.
    pub fn slice(&self, dim: usize, start: usize, len: usize, step: isize) -> Layout {
        let mut out = self.clone();
        // Saturating: a failed or empty value may have any sizes.
        let start = (start as isize).saturating_mul(self.strides[dim]);
        out.offset = (self.offset as isize).saturating_add(start) as usize;
        out.shape.dims_mut()[dim] = len;
        out.strides[dim] = self.strides[dim].saturating_mul(step);
        if out.shape.contains(&0) {
            out.offset = self.offset;
        }
        out
    }

    /// Windows along a dimension, `step` elements apart. The shape has their number there, and what
    /// is inside one last.
    pub fn windows(&self, dim: usize, shape: &Shape, step: usize) -> Layout {
        let mut strides = self.strides.clone();
        strides.push(self.strides[dim]);
        let step = isize::try_from(step).unwrap_or(isize::MAX);
        strides[dim] = self.strides[dim].saturating_mul(step);
        Layout { shape: shape.clone(), strides, offset: self.offset }
    }

    /// The elements from a position of the last two dimensions on, one further in both at each
    /// step, as the last dimension of the shape.
    pub fn diagonal(&self, start: [usize; 2], shape: &Shape) -> Layout {
        let mut out = self.slice(self.shape.rank() - 2, start[0], 1, 1);
        out = out.slice(self.shape.rank() - 1, start[1], 1, 1);
        let of = out.strides.pop().unwrap_or(0);
        if let Some(last) = out.strides.last_mut() {
            *last = last.saturating_add(of);
        }
        let offset = if shape.contains(&0) { self.offset } else { out.offset };
        Layout { shape: shape.clone(), strides: out.strides, offset }
    }

    /// The same elements in another shape; `None` if that needs a copy.
    pub fn reshape(&self, shape: &Shape) -> Option<Layout> {
        if self.is_contiguous() || shape.numel() == 0 {
            let mut out = Layout::contiguous(shape.clone());
            out.offset = self.offset;
            return Some(out);
        }
        // Each run of old dimensions that is contiguous can be split differently.
        let old: SmallVec<[(usize, isize); 4]> = self
            .shape
            .iter()
            .zip(&self.strides)
            .filter(|(n, _)| **n != 1)
            .map(|(&n, &s)| (n, s))
            .collect();
        let mut strides: Strides = SmallVec::from_elem(0, shape.rank());
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            let (start_i, start_j) = (i, j);
            let mut a = old[i].0;
            i += 1;
            let mut b = 1;
            while a != b {
                if b < a {
                    b *= *shape.get(j)?;
                    j += 1;
                } else {
                    a *= old.get(i)?.0;
                    i += 1;
                }
            }
            if (start_i..i - 1).any(|k| old[k].1 != old[k + 1].1 * old[k + 1].0 as isize) {
                return None;
            }
            let mut step = old[i - 1].1;
            for k in (start_j..j).rev() {
                strides[k] = step;
                step *= shape[k] as isize;
            }
        }
        Some(Layout { shape: shape.clone(), strides, offset: self.offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reshape_of_a_transposed_layout_needs_a_copy_only_where_it_mixes_dimensions() {
        let t = Layout::contiguous([2, 3, 4].into()).permute(&[1, 0, 2]);
        assert_eq!(t.reshape(&[6, 4].into()), None);
        let split = t.reshape(&[3, 2, 2, 2].into()).unwrap();
        assert_eq!(&split.strides[..], &[4, 12, 2, 1]);
        let ones = t.reshape(&[3, 1, 2, 4, 1].into()).unwrap();
        assert_eq!((ones.strides[0], ones.strides[2], ones.strides[3]), (4, 12, 1));
    }

    #[test]
    fn slices_compose_and_empty_ones_stay_inside() {
        let l = Layout::contiguous([5, 4].into()).slice(0, 4, 3, -2);
        assert_eq!((l.offset, l.strides[0]), (16, -8));
        assert_eq!(Layout::contiguous([5].into()).slice(0, 5, 0, 1).offset, 0);
    }

    #[test]
    fn a_dimension_of_one_never_spoils_contiguity() {
        let l = Layout { shape: [1, 3].into(), strides: SmallVec::from_slice(&[77, 1]), offset: 9 };
        assert!(l.is_contiguous());
    }
}
