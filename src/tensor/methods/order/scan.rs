//! Running sums and products along a dimension.

use crate::dtype::DType;
use crate::ops::order::cumprod::CumProd;
use crate::ops::order::cumsum::CumSum;
use crate::tensor::build::{self, custom};
use crate::tensor::future::TensorFuture;
use std::panic::Location;
use std::sync::Arc;

/// # Order
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
}
