//! Running sums and products along a dimension.

use crate::dtype::DType;
use crate::op::Scan;
use crate::ops::order::product_back::ProductBack;
use crate::ops::order::scan::Running;
use crate::ops::order::scan_places::RunningPlaces;
use crate::tensor::build::{self, custom};
use crate::tensor::future::TensorFuture;
use std::panic::Location;
use std::sync::Arc;

/// # Order
impl TensorFuture {
    /// Running sums along `dim`; integers and bool are added in int64. A 0-d value is returned
    /// unchanged.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(1, 4, 1);
    /// assert_eq!(x.cumsum(0).to_vec::<i64>().await?, [1, 3, 6]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn cumsum(&self, dim: isize) -> TensorFuture {
        if build::is_row_of_one(self, dim) && !self.dtype().is_storage() {
            let dtype = if self.dtype().is_float() { self.dtype() } else { DType::I64 };
            return self.to_dtype(dtype);
        }
        self.scanned(Scan::Sum, dim, Location::caller())
    }

    /// [`cumsum`](Self::cumsum) with options: `exclusive` leaves each element out of its own sum,
    /// `reverse` starts from the other end.
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
        self.scanned(Scan::Product, dim, Location::caller())
    }

    /// [`cumprod`](Self::cumprod) with options: `exclusive` leaves each element out of its own
    /// product, `reverse` starts from the other end.
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

    /// The running maximum along `dim`, and its position as int64 (the last one of equal elements).
    /// NaN is larger than any number, and the last NaN is the largest. A 0-d value is its own
    /// maximum, at position 0.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1, 3, 2, 3], [4]);
    /// let (values, positions) = x.cummax(0);
    /// assert_eq!(values.to_vec::<i32>().await?, [1, 3, 3, 3]);
    /// assert_eq!(positions.to_vec::<i64>().await?, [0, 1, 1, 3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn cummax(&self, dim: isize) -> (TensorFuture, TensorFuture) {
        self.best(Scan::Max, dim, Location::caller())
    }

    /// The running minimum along `dim`, and its position as int64 (the last one of equal elements).
    /// NaN is smaller than any number, and the last NaN is the smallest. A 0-d value is its own
    /// minimum, at position 0.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![3, 1, 2, 1], [4]);
    /// let (values, positions) = x.cummin(0);
    /// assert_eq!(values.to_vec::<i32>().await?, [3, 1, 1, 1]);
    /// assert_eq!(positions.to_vec::<i64>().await?, [0, 1, 1, 3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn cummin(&self, dim: isize) -> (TensorFuture, TensorFuture) {
        self.best(Scan::Min, dim, Location::caller())
    }

    /// The best element so far along a dimension, and its position.
    #[track_caller]
    fn best(&self, scan: Scan, dim: isize, at: build::At) -> (TensorFuture, TensorFuture) {
        let _within = build::within(scan.name(), at);
        if build::is_row_of_one(self, dim) {
            return (self.clone(), self.argsort(0, false));
        }
        let Some(d) = self.shape().dim(dim) else {
            let refusal = build::dim_refusal(dim, self.shape());
            let failed = build::refused(scan.name(), self, refusal, at);
            return (failed.clone(), failed);
        };
        let x = self.stop_gradient();
        let one = RunningPlaces { largest: scan == Scan::Max, dim };
        if x.port().runner.has_kernel(&one) {
            let positions = custom(Arc::new(one), &[&x], at);
            return (self.gather(dim, &positions), positions);
        }
        // The position of each element that is the best so far; then the running maximum of these.
        let mut is_best = x.eq(x.scanned(scan, dim, at));
        if x.dtype().is_float() {
            is_best = is_best.logical_or(x.isnan());
        }
        let mut along = vec![1; self.rank()];
        along[d] = self.dims()[d];
        let places = self.device().arange(0, self.dims()[d] as i64, 1).reshape(&along[..]);
        let positions = is_best.where_cond(places, 0).scanned(Scan::Max, dim, at);
        (self.gather(dim, &positions), positions)
    }

    /// Of `[outer, n, inner]` elements, what flows back through the products of `n` each: by one
    /// op, where the device has it. (A rule of the tables imports no file that makes nodes.)
    #[track_caller]
    pub(crate) fn through_product(&self, g: &TensorFuture) -> Option<TensorFuture> {
        let has_it = self.port().runner.has_kernel(&ProductBack);
        has_it.then(|| custom(Arc::new(ProductBack), &[g, self], Location::caller()))
    }

    #[track_caller]
    fn scanned(&self, scan: Scan, dim: isize, at: build::At) -> TensorFuture {
        custom(Arc::new(Running { scan, dim }), &[self], at)
    }

    /// Applies `run` along a dimension; given `nothing`, the result starts with it and leaves out
    /// the last element.
    #[track_caller]
    fn running(
        &self,
        name: &'static str,
        dim: isize,
        nothing: Option<i64>,
        reverse: bool,
        run: &dyn Fn(&TensorFuture, isize) -> TensorFuture,
    ) -> TensorFuture {
        let _within = build::within(name, Location::caller());
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
}
