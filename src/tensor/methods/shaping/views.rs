//! Views of the same elements. Nothing is copied, except by a reshape that mixes dimensions.

use crate::error::number_of;
use crate::graph::node::{Op, ViewOp};
use crate::graph::operation::{Meta, Refusal};
use crate::ops::shaping::slice_assign::SliceAssign;
use crate::shape::Shape;
use crate::tensor::build::{self, At};
use crate::tensor::dims::{Dims, Index, Indices, resolve};
use crate::tensor::future::TensorFuture;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;

/// A view of `x`; `name` is the op that the user called.
fn view(
    name: &'static str,
    x: &TensorFuture,
    op: ViewOp,
    shape: Result<Shape, Refusal>,
    at: At,
) -> TensorFuture {
    let dtype = x.dtype();
    match shape.and_then(|shape| build::fits(&shape, dtype).map(|()| shape)) {
        Ok(shape) => build::apply(Op::View(op), &[x], || Ok(Meta { shape, dtype }), at),
        Err(refusal) => build::refused(name, x, refusal, at),
    }
}

fn dim_of(x: &TensorFuture, dim: isize) -> Result<usize, Refusal> {
    x.shape().dim(dim).ok_or_else(|| build::dim_refusal(dim, x.shape()))
}

/// # Shapes and views
///
/// Nothing waits and, except in some reshapes, nothing is copied: values are immutable, so a view
/// shares its elements.
impl TensorFuture {
    /// The same elements, in row-major order, in another shape; one size may be -1 and is inferred.
    ///
    /// ```
    /// let x = futensor::Device::cpu().arange(0, 6, 1);
    /// assert_eq!(x.reshape([2, -1]).dims(), [2, 3]);
    /// assert!(x.reshape([4]).error().unwrap().is_shape());
    /// ```
    #[doc(alias = "view")]
    #[track_caller]
    pub fn reshape(&self, shape: impl Dims) -> TensorFuture {
        let wanted = shape.dims();
        let numel = self.numel();
        let rule = || {
            let refusal =
                || Refusal::shape(format!("cannot reshape {} to {wanted:?}", self.shape()));
            let known: usize = wanted
                .iter()
                .filter(|&&d| d != -1)
                .try_fold(1usize, |a, &d| a.checked_mul(usize::try_from(d).ok()?))
                .ok_or_else(refusal)?;
            let open = wanted.iter().filter(|&&d| d == -1).count();
            let fits = match open {
                0 => known == numel,
                1 => known != 0 && numel.is_multiple_of(known),
                _ => false,
            };
            if !fits {
                return Err(refusal());
            }
            Ok(wanted
                .iter()
                .map(|&d| if d == -1 { numel / known } else { d as usize })
                .collect::<Shape>())
        };
        view("reshape", self, ViewOp::Reshape, rule(), Location::caller())
    }

    /// Merges the dimensions from `start` to `end` (both included) into one.
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([2, 3, 4, 5]);
    /// assert_eq!(x.flatten(1, -1).dims(), [2, 60]);
    /// ```
    #[doc(alias = "ravel")]
    #[track_caller]
    pub fn flatten(&self, start: isize, end: isize) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("flatten", at);
        if build::is_row_of_one(self, start) && build::is_row_of_one(self, end) {
            return self.reshape(1);
        }
        let dim = |d| self.shape().dim(d).ok_or_else(|| build::dim_refusal(d, self.shape()));
        let ends = dim(start).and_then(|a| match dim(end)? {
            b if a <= b => Ok((a, b)),
            _ => Err(Refusal::argument(format!("dimension {start} comes after {end}"))),
        });
        match ends {
            Err(refusal) => build::refused("flatten", self, refusal, at),
            Ok((a, b)) => {
                let one = Shape::from(&self.dims()[a..=b]).numel();
                let shape = [&self.dims()[..a], &[one], &self.dims()[b + 1..]].concat();
                self.reshape(&shape[..])
            }
        }
    }

    /// Swaps two dimensions.
    #[doc(alias("swapaxes", "swapdims"))]
    #[track_caller]
    pub fn transpose(&self, a: isize, b: isize) -> TensorFuture {
        if build::is_row_of_one(self, a) && build::is_row_of_one(self, b) {
            return self.clone();
        }
        let order = dim_of(self, a).and_then(|a| {
            let b = dim_of(self, b)?;
            let mut order: SmallVec<[isize; 8]> = (0..self.rank() as isize).collect();
            order.swap(a, b);
            Ok(order)
        });
        self.reordered("transpose", order, Location::caller())
    }

    /// The transpose of a matrix; a vector or a 0-d tensor is returned unchanged.
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([2, 3]);
    /// assert_eq!(x.t().dims(), [3, 2]);
    /// ```
    #[track_caller]
    pub fn t(&self) -> TensorFuture {
        let order = match self.rank() {
            0 | 1 => return self.clone(),
            2 => Ok(SmallVec::from_slice(&[1, 0])),
            rank => Err(Refusal::shape(format!(
                "t takes at most two dimensions, not {rank}: use transpose"
            ))),
        };
        self.reordered("t", order, Location::caller())
    }

    /// Reorders the dimensions.
    #[track_caller]
    pub fn permute(&self, order: impl Dims) -> TensorFuture {
        self.reordered("permute", Ok(order.dims()), Location::caller())
    }

    pub(super) fn reordered(
        &self,
        name: &'static str,
        order: Result<SmallVec<[isize; 8]>, Refusal>,
        at: At,
    ) -> TensorFuture {
        let order = order.and_then(|order| {
            let mut dims: SmallVec<[u8; 8]> = SmallVec::new();
            for &d in &order {
                let d = dim_of(self, d)? as u8;
                if dims.contains(&d) {
                    return Err(Refusal::argument(format!("dimension {d} is named twice")));
                }
                dims.push(d);
            }
            if dims.len() != self.rank() {
                let text = format!("cannot permute {} to {order:?}", self.shape());
                return Err(Refusal::shape(text));
            }
            Ok(dims)
        });
        match order {
            Ok(order) => {
                let shape = order.iter().map(|&d| self.dims()[d as usize]).collect();
                view(name, self, ViewOp::Permute(order), Ok(shape), at)
            }
            Err(refusal) => build::refused(name, self, refusal, at),
        }
    }

    /// Inserts a dimension of size 1 at `dim`.
    #[doc(alias("expand_dims", "newaxis"))]
    #[track_caller]
    pub fn unsqueeze(&self, dim: isize) -> TensorFuture {
        let rank = self.rank() as isize;
        let at = if dim < 0 { dim + rank + 1 } else { dim };
        let shape = if (0..=rank).contains(&at) {
            let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(self.dims());
            dims.insert(at as usize, 1);
            Ok(dims.iter().copied().collect())
        } else {
            Err(build::dim_refusal(dim, self.shape()))
        };
        view("unsqueeze", self, ViewOp::Reshape, shape, Location::caller())
    }

    /// Removes the named dimensions that have size 1; those of another size stay, as in PyTorch.
    /// `()` names no dimension and removes none; see [`squeeze_all`](Self::squeeze_all).
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([1, 2, 1]);
    /// assert_eq!(x.squeeze(0).dims(), [2, 1]);
    /// assert_eq!(x.squeeze([0, 1, -1]).dims(), [2]);
    /// assert_eq!(x.squeeze(()).dims(), [1, 2, 1]);
    /// ```
    #[doc(alias = "squeeze_")]
    #[track_caller]
    pub fn squeeze(&self, dims: impl Dims) -> TensorFuture {
        let shape = build::named_dims(self, &dims.dims()).map(|gone| {
            let stays = |(d, n): &(usize, &usize)| **n != 1 || !gone.contains(d);
            self.dims().iter().enumerate().filter(stays).map(|(_, &n)| n).collect()
        });
        view("squeeze", self, ViewOp::Reshape, shape, Location::caller())
    }

    /// Removes all dimensions of size 1: PyTorch's `squeeze` without an argument.
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([1, 2, 1]);
    /// assert_eq!(x.squeeze_all().dims(), [2]);
    /// ```
    #[track_caller]
    pub fn squeeze_all(&self) -> TensorFuture {
        let shape = self.dims().iter().copied().filter(|&n| n != 1).collect();
        view("squeeze_all", self, ViewOp::Reshape, Ok(shape), Location::caller())
    }

    /// Broadcasts to a larger shape, by repeating dimensions of size 1 and adding new ones in
    /// front; -1 keeps a size.
    #[doc(alias("broadcast_to", "expand_as"))]
    #[track_caller]
    pub fn expand(&self, shape: impl Dims) -> TensorFuture {
        let wanted = shape.dims();
        let rule = || {
            let refusal =
                || Refusal::shape(format!("cannot expand {} to {wanted:?}", self.shape()));
            let lead = wanted.len().checked_sub(self.rank()).ok_or_else(refusal)?;
            let mut dims = Shape::default();
            for (i, &d) in wanted.iter().enumerate() {
                let own = (i >= lead).then(|| self.dims()[i - lead]);
                let size = match (own, d) {
                    (Some(n), -1) => n,
                    (Some(n), d) if d >= 0 && (n == 1 || n == d as usize) => d as usize,
                    (None, d) if d >= 0 => d as usize,
                    _ => return Err(refusal()),
                };
                dims.dims_mut().push(size);
            }
            Ok(dims)
        };
        view("expand", self, ViewOp::Expand, rule(), Location::caller())
    }

    /// `len` positions of a dimension, starting at `start`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 5, 1);
    /// assert_eq!(x.narrow(0, 1, 3).to_vec::<i64>().await?, [1, 2, 3]);
    /// assert!(x.narrow(0, 3, 3).error().unwrap().is_index());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn narrow(&self, dim: isize, start: usize, len: usize) -> TensorFuture {
        let at = Location::caller();
        let checked = dim_of(self, dim).and_then(|d| {
            let n = self.dims()[d];
            match start.checked_add(len) {
                Some(end) if end <= n => Ok(d),
                _ => Err(Refusal::index(format!(
                    "{start}..{} is not in a dimension of {n}",
                    start.saturating_add(len)
                ))),
            }
        });
        match checked {
            Ok(d) => self.sliced("narrow", d, start, len, 1, at),
            Err(refusal) => build::refused("narrow", self, refusal, at),
        }
    }

    fn sliced(
        &self,
        name: &'static str,
        dim: usize,
        start: usize,
        len: usize,
        step: isize,
        at: At,
    ) -> TensorFuture {
        let mut shape = self.shape().clone();
        shape.dims_mut()[dim] = len;
        view(name, self, ViewOp::Slice { dim: dim as u8, start, step }, Ok(shape), at)
    }

    /// `len` positions of a dimension, which is in range, starting at `start`, `step` apart.
    #[track_caller]
    pub(crate) fn stepped(
        &self,
        dim: usize,
        start: usize,
        len: usize,
        step: isize,
    ) -> TensorFuture {
        if (start, len, step) == (0, self.dims()[dim], 1) {
            return self.clone();
        }
        self.sliced("narrow", dim, start, len, step, Location::caller())
    }

    /// `count` windows of `size` along a dimension, `step` apart, all of them inside.
    pub(crate) fn windows(
        &self,
        dim: usize,
        [count, size]: [usize; 2],
        step: usize,
        at: At,
    ) -> TensorFuture {
        let mut sizes = self.dims().to_vec();
        sizes[dim] = count;
        sizes.push(size);
        let op = ViewOp::Windows { dim: dim as u8, step };
        view("unfold_dim", self, op, Ok(sizes.into()), at)
    }

    /// `len` elements from a position of the last two dimensions on, one further in both at each
    /// step, all of them inside.
    pub(crate) fn along_diagonal(&self, start: [usize; 2], len: usize, at: At) -> TensorFuture {
        let mut sizes = self.dims().to_vec();
        sizes.pop();
        sizes.pop();
        sizes.push(len);
        view("diagonal", self, ViewOp::Diagonal { start }, Ok(sizes.into()), at)
    }

    /// Reverses dimensions, each named once.
    pub(crate) fn reversed(&self, dims: &[isize], at: At) -> TensorFuture {
        let named = match build::named_dims(self, dims) {
            Ok(named) => named,
            Err(refusal) => return build::refused("flip", self, refusal, at),
        };
        let mut x = self.clone();
        for d in named {
            let n = self.dims()[d];
            if n > 0 {
                x = x.sliced("flip", d, n - 1, n, -1, at);
            }
        }
        x
    }

    /// Basic indexing: a position removes its dimension, a range keeps it. Takes one index, or a
    /// tuple or list of indices for the first dimensions. [`Index::step`] takes every nth position;
    /// negative steps go backwards.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::Index;
    /// let x = futensor::Device::cpu().arange(0, 12, 1).reshape([3, 4]);
    /// assert_eq!(x.i((1, 1..3)).to_vec::<i64>().await?, [5, 6]);
    /// assert_eq!(x.i((.., -1)).to_vec::<i64>().await?, [3, 7, 11]);
    /// assert_eq!(x.i((0, Index::ALL.step(-2))).to_vec::<i64>().await?, [3, 1]);
    /// // indices that are made at run time
    /// let rows = [0, 2].map(|row| x.i(vec![Index::At(row), Index::from(..2)]));
    /// assert_eq!(rows[1].to_vec::<i64>().await?, [8, 9]);
    /// assert!(x.i(3).error().unwrap().is_index());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("index", "slice", "get", "getitem", "select"))]
    #[track_caller]
    pub fn i(&self, indices: impl Indices) -> TensorFuture {
        let at = Location::caller();
        let indices = indices.indices();
        if indices.len() > self.rank() {
            let text = format!(
                "{} for shape {}",
                number_of(indices.len(), "index", "indices"),
                self.shape()
            );
            return build::refused("i", self, Refusal::index(text), at);
        }
        let mut x = self.clone();
        let mut gone: SmallVec<[usize; 8]> = SmallVec::new();
        for (d, &index) in indices.iter().enumerate() {
            let n = self.dims()[d];
            let Some((start, len, step)) = resolve(index, n) else {
                let text = format!("index {index:?} is not in a dimension of {n}");
                return build::refused("i", self, Refusal::index(text), at);
            };
            if (start, len, step) != (0, n, 1) {
                x = x.sliced("i", d, start, len, step, at);
            }
            if let Index::At(_) = index {
                gone.push(d);
            }
        }
        if gone.is_empty() {
            return x;
        }
        let shape: Shape = x
            .dims()
            .iter()
            .enumerate()
            .filter(|(d, _)| !gone.contains(d))
            .map(|(_, &n)| n)
            .collect();
        view("i", &x, ViewOp::Reshape, Ok(shape), at)
    }

    /// Replaces the part that `indices` name by `source`, which is broadcast to it.
    ///
    /// Takes `self` by value: if it is the last handle and no other op still reads the value, the
    /// elements are written in place and nothing else is copied. So a key-value cache or a running
    /// sum costs only what it changes. Otherwise the result is a copy.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let mut cache = device.zeros([2, 2]);
    /// cache = cache.slice_assign((1, ..), &device.ones([2]));
    /// assert_eq!(cache.to_vec::<f32>().await?, [0.0, 0.0, 1.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("slice_scatter", "setitem"))]
    #[track_caller]
    pub fn slice_assign(
        self,
        indices: impl Indices,
        source: impl AsRef<TensorFuture>,
    ) -> TensorFuture {
        let op = SliceAssign::new(self.dims(), &indices.indices(), |index, n| {
            let (start, len, step) = resolve(index, n)?;
            Some((start, len, step, !matches!(index, Index::At(_))))
        });
        let asked = build::ask_custom(Arc::new(op), &[&self, source.as_ref()], Location::caller());
        asked.without((self, source))
    }

    /// Zeros of a shape, with this value at (start, length, step) of each dimension: the gradient
    /// of a slice.
    #[track_caller]
    pub(crate) fn among_zeros(
        &self,
        shape: &Shape,
        parts: &[(usize, usize, isize)],
    ) -> TensorFuture {
        let zeros = self.device().zeros_dtype(shape.clone(), self.dtype());
        let op = SliceAssign::new(shape.dims(), parts, |(start, len, step), _| {
            Some((start, len, step, true))
        });
        build::custom(Arc::new(op), &[&zeros, self], Location::caller())
    }
}
