//! Sorting, and the elements at the ends of an order.

use crate::dtype::DType;
use crate::ops::order::sort::Sort;
use crate::ops::order::topk::TopK;
use crate::tensor::build::{self, custom};
use crate::tensor::future::TensorFuture;
use std::panic::Location;
use std::sync::Arc;

/// Sorting.
impl TensorFuture {
    /// The elements along `dim`, sorted. The sort is stable; NaN counts as largest.
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

    /// The positions, as int64, that sort the elements along `dim`.
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

    /// [`sort`](Self::sort) and [`argsort`](Self::argsort) in one pass: values, and positions as
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

    /// The `k` largest (or smallest) elements along `dim`, in order: values, and positions as
    /// int64. Equal elements keep their order; NaN counts as largest. A 0-d value gives itself, at
    /// position 0.
    ///
    /// One pass selects the positions, then the values are gathered; either result may be dropped.
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
        let _within = build::within("topk", at);
        if build::is_row_of_one(self, dim) && k <= 1 {
            return (self.clone(), self.argsort(0, false));
        }
        self.found(dim, custom(Arc::new(TopK { dim, k, largest }), &[self], at))
    }

    /// The largest elements along `dim`, and their positions as int64 (the first one of equal
    /// elements); `dim` is removed. NaN is larger than any number.
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

    /// The smallest elements along `dim`, and their positions as int64 (the first one of equal
    /// elements); `dim` is removed. NaN is smaller than any number.
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

    /// Casts bool to a type that the position ops take: false sorts before true.
    #[track_caller]
    fn ordered(&self) -> TensorFuture {
        if self.dtype() == DType::Bool { self.to_dtype(DType::U8) } else { self.clone() }
    }

    #[track_caller]
    fn extreme(&self, dim: isize, positions: TensorFuture) -> (TensorFuture, TensorFuture) {
        let (values, positions) = self.found(dim, positions);
        (values.squeeze(dim), positions.squeeze(dim))
    }

    /// The elements at these positions along `dim`, and the positions.
    #[track_caller]
    fn found(&self, dim: isize, positions: TensorFuture) -> (TensorFuture, TensorFuture) {
        (self.gather(dim, &positions), positions)
    }
}
