//! Rows and order: running sums, sorting, triangles.

use crate::dtype::DType;
use crate::graph::operation::{Refusal, number_of};
use crate::ops::cumprod::CumProd;
use crate::ops::cumsum::CumSum;
use crate::ops::roll::Roll;
use crate::ops::sort::Sort;
use crate::ops::topk::TopK;
use crate::ops::triangle::Triangle;
use crate::tensor::build::{self, custom};
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use std::panic::Location;
use std::sync::Arc;

/// # Rows and order
impl TensorFuture {
    /// Running sums along `dim`; integers and bool are added in int64. Of a 0-d value it is the
    /// value.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(1, 4, 1);
    /// assert_eq!(x.cumsum(0).to_vec::<i64>().await?, [1, 3, 6]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn cumsum(&self, dim: isize) -> TensorFuture {
        if build::is_row_of_one(self, dim) {
            let dtype = if self.dtype().is_float() { self.dtype() } else { DType::I64 };
            return self.to_dtype(dtype);
        }
        custom(Arc::new(CumSum { dim }), &[self], Location::caller())
    }

    /// [`cumsum`](Self::cumsum) without the own element where it is `exclusive`, and from the other
    /// end where it is in `reverse`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(1, 4, 1);
    /// assert_eq!(x.cumsum_with(0, true, false).to_vec::<i64>().await?, [0, 1, 3]);
    /// assert_eq!(x.cumsum_with(0, false, true).to_vec::<i64>().await?, [6, 5, 3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn cumsum_with(&self, dim: isize, exclusive: bool, reverse: bool) -> TensorFuture {
        self.running("cumsum_with", dim, exclusive.then_some(0), reverse, &|x, dim| x.cumsum(dim))
    }

    /// Running products along `dim`; integers and bool are multiplied in int64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(1, 5, 1);
    /// assert_eq!(x.cumprod(0).to_vec::<i64>().await?, [1, 2, 6, 24]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn cumprod(&self, dim: isize) -> TensorFuture {
        if self.rank() == 0 && matches!(dim, 0 | -1) {
            return self.reshape(1).cumprod(0).reshape(());
        }
        build::custom(Arc::new(CumProd { dim }), &[self], Location::caller())
    }

    /// [`cumprod`](Self::cumprod) without the own element where it is `exclusive`, and from the
    /// other end where it is in `reverse`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(1, 5, 1);
    /// assert_eq!(x.cumprod_with(0, true, true).to_vec::<i64>().await?, [24, 12, 4, 1]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn cumprod_with(&self, dim: isize, exclusive: bool, reverse: bool) -> TensorFuture {
        self.running("cumprod_with", dim, exclusive.then_some(1), reverse, &|x, dim| x.cumprod(dim))
    }

    /// `run` along a dimension; where `nothing` is given, from there and without the last element.
    #[track_caller]
    fn running(
        &self,
        name: &str,
        dim: isize,
        nothing: Option<i64>,
        reverse: bool,
        run: &dyn Fn(&TensorFuture, isize) -> TensorFuture,
    ) -> TensorFuture {
        if self.rank() == 0 && matches!(dim, 0 | -1) {
            return self.reshape(1).running(name, 0, nothing, reverse, run).reshape(());
        }
        let Some(d) = self.shape().dim(dim) else {
            return build::refused(
                name,
                self,
                build::dim_refusal(dim, self.shape()),
                Location::caller(),
            );
        };
        let turned = |x: &TensorFuture| if reverse { x.flip(d) } else { x.clone() };
        let (n, dim, mut x) = (self.dims()[d], d as isize, turned(self));
        if let Some(nothing) = nothing.filter(|_| n > 0) {
            let mut one = self.shape().clone();
            one.dims_mut()[d] = 1;
            let first = self.device().full_dtype(one, nothing, self.dtype());
            x = crate::cat(&[first, x.narrow(dim, 0, n - 1)], dim);
        }
        turned(&run(&x, dim))
    }

    /// The elements along `dim` in order. Stable; NaN counts as largest.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3, 1, 2], [3]);
    /// assert_eq!(x.sort(0, true).to_vec::<i32>().await?, [3, 2, 1]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn sort(&self, dim: isize, descending: bool) -> TensorFuture {
        if build::is_row_of_one(self, dim) {
            return self.clone();
        }
        let op = Sort { dim, descending, positions: false };
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// The positions of the elements along `dim` in order, as int64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3.0f32, 1.0, 2.0], [3]);
    /// assert_eq!(x.argsort(0, false).to_vec::<i64>().await?, [1, 2, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn argsort(&self, dim: isize, descending: bool) -> TensorFuture {
        if build::is_row_of_one(self, dim) {
            return self.unsqueeze(0).argsort(0, descending).squeeze(0);
        }
        let op = Sort { dim, descending, positions: true };
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// [`sort`](Self::sort) and [`argsort`](Self::argsort) of one pass: values, and positions as
    /// int64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3, 1, 2], [3]);
    /// let (values, positions) = x.sort_with_positions(0, false);
    /// assert_eq!(values.to_vec::<i32>().await?, [1, 2, 3]);
    /// assert_eq!(positions.to_vec::<i64>().await?, [1, 2, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn sort_with_positions(
        &self,
        dim: isize,
        descending: bool,
    ) -> (TensorFuture, TensorFuture) {
        let _within = build::within("sort_with_positions", Location::caller());
        self.found(dim, self.argsort(dim, descending))
    }

    /// The `k` largest (or smallest) along `dim`, in order: values, and positions as int64. Of
    /// equals the first come first; NaN counts as largest. Of one number it is that number, at 0.
    ///
    /// They are selected, in one pass, and the values gathered: either of the two may be dropped.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3, 1, 2], [3]);
    /// let (values, positions) = x.topk(2, 0, true);
    /// assert_eq!(values.to_vec::<i32>().await?, [3, 2]);
    /// assert_eq!(positions.to_vec::<i64>().await?, [0, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn topk(&self, k: usize, dim: isize, largest: bool) -> (TensorFuture, TensorFuture) {
        let at = Location::caller();
        if build::is_row_of_one(self, dim) && k <= 1 {
            return (self.clone(), self.argsort(0, false));
        }
        let _within = build::within("topk", at);
        self.found(dim, custom(Arc::new(TopK { dim, k, largest }), &[self], at))
    }

    /// The largest along `dim`, which goes, and their positions as int64: of equals the first. NaN
    /// is larger than any number.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 3.0, 2.0, 4.0], [2, 2]);
    /// let (values, positions) = x.max_with_positions(1);
    /// assert_eq!(values.to_vec::<f32>().await?, [3.0, 4.0]);
    /// assert_eq!(positions.to_vec::<i64>().await?, [1, 1]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn max_with_positions(&self, dim: isize) -> (TensorFuture, TensorFuture) {
        let _within = build::within("max_with_positions", Location::caller());
        self.extreme(dim, self.ordered().argmax_keepdim(dim))
    }

    /// The smallest along `dim`, which goes, and their positions as int64: of equals the first. NaN
    /// is smaller than any number.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.0f32, 3.0, 2.0, 4.0], [2, 2]);
    /// let (values, positions) = x.min_with_positions(0);
    /// assert_eq!(values.to_vec::<f32>().await?, [1.0, 3.0]);
    /// assert_eq!(positions.to_vec::<i64>().await?, [0, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn min_with_positions(&self, dim: isize) -> (TensorFuture, TensorFuture) {
        let _within = build::within("min_with_positions", Location::caller());
        self.extreme(dim, self.ordered().argmin_keepdim(dim))
    }

    /// In a type in which elements have positions: false comes before true.
    #[track_caller]
    fn ordered(&self) -> TensorFuture {
        if self.dtype() == DType::Bool { self.to_dtype(DType::U8) } else { self.clone() }
    }

    #[track_caller]
    fn extreme(&self, dim: isize, positions: TensorFuture) -> (TensorFuture, TensorFuture) {
        let (values, positions) = self.found(dim, positions);
        (values.squeeze(dim), positions.squeeze(dim))
    }

    /// The elements at positions along `dim`, with the positions.
    #[track_caller]
    fn found(&self, dim: isize, positions: TensorFuture) -> (TensorFuture, TensorFuture) {
        (self.gather(dim, &positions), positions)
    }

    /// The elements on and below a diagonal of the last two dimensions, zeros above.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().ones([2, 2]);
    /// assert_eq!(x.tril(0).to_vec::<f32>().await?, [1.0, 0.0, 1.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn tril(&self, diagonal: i64) -> TensorFuture {
        custom(Arc::new(Triangle { diagonal, upper: false }), &[self], Location::caller())
    }

    /// The elements on and above a diagonal of the last two dimensions, zeros below.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().ones([2, 2]);
    /// assert_eq!(x.triu(1).to_vec::<f32>().await?, [0.0, 1.0, 0.0, 0.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn triu(&self, diagonal: i64) -> TensorFuture {
        custom(Arc::new(Triangle { diagonal, upper: true }), &[self], Location::caller())
    }

    /// Shifted along dimensions; what leaves at one end comes back at the other.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 4, 1);
    /// assert_eq!(x.roll(1, 0).to_vec::<i64>().await?, [3, 0, 1, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn roll(&self, shifts: impl Dims, dims: impl Dims) -> TensorFuture {
        let at = Location::caller();
        let (by, dims) = (shifts.dims(), dims.dims());
        if by.len() != dims.len() {
            let shifts = number_of(by.len(), "shift", "shifts");
            let text = format!("{shifts} for {}", number_of(dims.len(), "dimension", "dimensions"));
            return build::refused("roll", self, Refusal::argument(text), at);
        }
        if let Some(shift) = by.iter().find(|&&by| by == isize::MAX) {
            return build::refused(
                "roll",
                self,
                Refusal::argument(format!("a shift of {shift} or more")),
                at,
            );
        }
        let shifts = dims.iter().zip(&by).map(|(&d, &b)| (d, b as i64)).collect();
        custom(Arc::new(Roll { shifts }), &[self], at)
    }

    /// The elements along dimensions, each named once, in reverse; a view.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 3, 1);
    /// assert_eq!(x.flip(0).to_vec::<i64>().await?, [2, 1, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn flip(&self, dims: impl Dims) -> TensorFuture {
        self.reversed(&dims.dims(), Location::caller())
    }
}
