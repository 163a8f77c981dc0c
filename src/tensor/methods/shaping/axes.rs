//! Dimensions that are moved, divided, taken apart or repeated.

use crate::graph::operation::Refusal;
use crate::shape::Shape;
use crate::tensor::build::{self, At};
use crate::tensor::dims::{Dims, Index};
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::shaping::join::room_for;
use std::panic::Location;

/// Dimensions that are moved, divided or repeated.
impl TensorFuture {
    /// Moves dimensions to other positions, a view; the others keep their order.
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([2, 3, 4]);
    /// assert_eq!(x.movedim(0, -1).dims(), [3, 4, 2]);
    /// assert_eq!(x.movedim([0, 1], [2, 0]).dims(), [3, 4, 2]);
    /// ```
    #[doc(alias = "moveaxis")]
    #[track_caller]
    pub fn movedim(&self, from: impl Dims, to: impl Dims) -> TensorFuture {
        let (from, to, at) = (from.dims(), to.dims(), Location::caller());
        let order = || {
            if from.len() != to.len() {
                return Err(Refusal::argument(format!("positions {to:?} for dimensions {from:?}")));
            }
            let (from, to) = (build::named_dims(self, &from)?, build::named_dims(self, &to)?);
            let mut rest = (0..self.rank()).filter(|d| !from.contains(d));
            let source = |d| match to.iter().position(|&t| t == d) {
                Some(i) => from[i] as isize,
                None => rest.next().unwrap_or(0) as isize,
            };
            Ok((0..self.rank()).map(source).collect())
        };
        self.reordered("movedim", order(), at)
    }

    /// Divides a dimension into several, a view; one of the sizes may be -1 and is inferred.
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([2, 12]);
    /// assert_eq!(x.unflatten(1, [3, -1]).dims(), [2, 3, 4]);
    /// ```
    #[track_caller]
    pub fn unflatten(&self, dim: isize, sizes: impl Dims) -> TensorFuture {
        let (mut sizes, at) = (sizes.dims(), Location::caller());
        let refuse = |refusal| build::refused("unflatten", self, refusal, at);
        let _within = build::within("unflatten", at);
        let Some(d) = self.shape().dim(dim) else {
            return refuse(build::dim_refusal(dim, self.shape()));
        };
        let n = self.dims()[d];
        let known = sizes
            .iter()
            .filter(|&&size| size != -1)
            .try_fold(1usize, |a, &size| a.checked_mul(usize::try_from(size).ok()?));
        let open: Vec<usize> = (0..sizes.len()).filter(|&i| sizes[i] == -1).collect();
        let fits = match (known, &open[..]) {
            (Some(known), []) => known == n,
            (Some(known), &[i]) if known != 0 && n.is_multiple_of(known) => {
                sizes[i] = (n / known) as isize;
                true
            }
            _ => false,
        };
        if !fits || sizes.is_empty() {
            let text = format!("cannot divide a dimension of {n} into {sizes:?}");
            return refuse(Refusal::shape(text));
        }
        let own = self.dims().iter().map(|&n| n as isize);
        let (before, behind) = (own.clone().take(d), own.skip(d + 1));
        self.reshape(before.chain(sizes).chain(behind).collect::<Vec<isize>>())
    }

    /// The windows of `size` elements along a dimension, of which each begins `step` elements
    /// after the one before, as a new last dimension: PyTorch's `Tensor.unfold`.
    /// ([`unfold`](Self::unfold) is `nn.functional.unfold`.)
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 6, 1);
    /// let windows = x.unfold_dim(0, 3, 2);
    /// assert_eq!(windows.dims(), [2, 3]);
    /// assert_eq!(windows.to_vec::<i64>().await?, [0, 1, 2, 2, 3, 4]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An index error if `dim` is out of range; a shape error if a window is longer than the
    /// dimension; an argument error for a step of 0.
    #[doc(alias("unfold", "sliding_window_view"))]
    #[track_caller]
    pub fn unfold_dim(&self, dim: isize, size: usize, step: usize) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("unfold_dim", at);
        let refuse = |refusal| build::refused("unfold_dim", self, refusal, at);
        let one = build::is_row_of_one(self, dim);
        let (d, n) = match self.shape().dim(dim) {
            _ if one => (0, 1),
            Some(d) => (d, self.dims()[d]),
            None => return refuse(build::dim_refusal(dim, self.shape())),
        };
        if size > n {
            return refuse(Refusal::shape(format!("a window of {size} in a dimension of {n}")));
        }
        if step == 0 {
            return refuse(Refusal::argument("windows that are 0 elements apart"));
        }
        if one {
            return self.reshape(1).narrow(0, 0, size);
        }
        let count = (n - size) / step + 1;
        // A single window may be followed at any distance.
        self.windows(d, [count, size], step.min(n), at)
    }

    /// The slices along a dimension, as views without that dimension.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let rows = futensor::Device::cpu().arange(0, 6, 1).reshape([2, 3]).unbind(0);
    /// assert_eq!(rows.len(), 2);
    /// assert_eq!(rows[1].to_vec::<i64>().await?, [3, 4, 5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// One failed value if `dim` is out of range, or if memory has no room for so many slices.
    #[doc(alias = "unstack")]
    #[track_caller]
    pub fn unbind(&self, dim: isize) -> Vec<TensorFuture> {
        let at = Location::caller();
        let refuse = |refusal| vec![build::refused("unbind", self, refusal, at)];
        let Some(d) = self.shape().dim(dim) else {
            return refuse(build::dim_refusal(dim, self.shape()));
        };
        if let Err(refusal) = room_for(self.dims()[d], self) {
            return refuse(refusal);
        }
        let _within = build::within("unbind", at);
        (0..self.dims()[d]).map(|i| self.index_dim(d, Index::At(i as isize))).collect()
    }

    /// Repeats the value along its last dimensions, as PyTorch's and NumPy's `tile`: `times` may
    /// have fewer numbers than the value has dimensions.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 4, 1).reshape([2, 2]);
    /// assert_eq!(x.tile(2).to_vec::<i64>().await?, [0, 1, 0, 1, 2, 3, 2, 3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn tile(&self, times: impl Dims) -> TensorFuture {
        let _within = build::within("tile", Location::caller());
        let times = times.dims();
        let lead = self.rank().saturating_sub(times.len());
        self.repeat(std::iter::repeat_n(1, lead).chain(times).collect::<Vec<isize>>())
    }

    /// Repeats each element along `dim`, next to each other. See
    /// [`repeat_interleave_by`](Self::repeat_interleave_by) for a number for each element.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 3, 1);
    /// assert_eq!(x.repeat_interleave(2, 0).to_vec::<i64>().await?, [0, 0, 1, 1, 2, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn repeat_interleave(&self, times: usize, dim: isize) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("repeat_interleave", at);
        if build::is_row_of_one(self, dim) {
            return self.reshape(1).repeat_interleave(times, 0);
        }
        let Some(d) = self.shape().dim(dim) else {
            let refusal = build::dim_refusal(dim, self.shape());
            return build::refused("repeat_interleave", self, refusal, at);
        };
        let mut apart = vec![1; self.rank() + 1];
        apart[d + 1] = times;
        let mut shape = self.shape().clone();
        shape.dims_mut()[d] = shape[d].saturating_mul(times);
        let y = self.unsqueeze(d as isize + 1).repeat(apart);
        if y.error().is_some() { y } else { y.reshape(shape.dims()) }
    }
}

/// Grids of coordinates: value `i` is `tensors[i]` along dimension `i`, repeated along the others,
/// as views. PyTorch's `meshgrid` with `indexing="ij"`; swap the first two dimensions for `"xy"`.
///
/// ```
/// # tokio_test::block_on(async {
/// let device = futensor::Device::cpu();
/// let grids = futensor::meshgrid(&[device.arange(0, 2, 1), device.arange(5, 8, 1)]);
/// assert_eq!(grids[0].to_vec::<i64>().await?, [0, 0, 0, 1, 1, 1]);
/// assert_eq!(grids[1].to_vec::<i64>().await?, [5, 6, 7, 5, 6, 7]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// A shape error if a tensor is no vector (a 0-d value counts as one of one element); an argument
/// error without tensors (on [`Device::cpu`](crate::Device::cpu)).
#[track_caller]
pub fn meshgrid(tensors: &[impl AsRef<TensorFuture>]) -> Vec<TensorFuture> {
    let at: At = Location::caller();
    if tensors.is_empty() {
        return vec![build::of_nothing("meshgrid", at)];
    }
    let _within = build::within("meshgrid", at);
    let sizes: Shape = tensors.iter().map(|t| t.as_ref().numel()).collect();
    let grid = |(d, x): (usize, &TensorFuture)| {
        if x.rank() > 1 {
            let text = format!("a grid is made of vectors, not of {}", x.shape());
            return build::refused("meshgrid", x, Refusal::shape(text), at);
        }
        let mut along = vec![1; sizes.rank()];
        along[d] = x.numel();
        x.reshape(along).expand(sizes.dims())
    };
    tensors.iter().map(|t| t.as_ref()).enumerate().map(grid).collect()
}
