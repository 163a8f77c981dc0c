//! Values that have the shape, type and device of another.

use crate::dtype::Scalar;
use crate::tensor::build;
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// # Values like another
///
/// Of the shape, the type and the device of this value.
impl TensorFuture {
    /// Zeros.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(5, 8, 1);
    /// assert_eq!(x.zeros_like().to_vec::<i64>().await?, [0, 0, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn zeros_like(&self) -> TensorFuture {
        let _within = build::within("zeros_like", Location::caller());
        self.device().zeros_dtype(self.shape(), self.dtype())
    }

    /// Ones.
    #[track_caller]
    pub fn ones_like(&self) -> TensorFuture {
        let _within = build::within("ones_like", Location::caller());
        self.device().ones_dtype(self.shape(), self.dtype())
    }

    /// A number everywhere.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(5, 8, 1);
    /// assert_eq!(x.full_like(7).to_vec::<i64>().await?, [7, 7, 7]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn full_like(&self, value: impl Into<Scalar>) -> TensorFuture {
        let _within = build::within("full_like", Location::caller());
        self.device().full_dtype(self.shape(), value, self.dtype())
    }

    /// Uniform numbers in [0, 1), from the device's generator; for floating point types.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().ones([100]);
    /// assert!(x.rand_like().to_vec::<f32>().await?.iter().all(|x| (0.0..1.0).contains(x)));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn rand_like(&self) -> TensorFuture {
        let _within = build::within("rand_like", Location::caller());
        let device = self.device();
        device.generator().rand_dtype(&device, self.shape(), self.dtype())
    }

    /// Standard normal numbers, from the device's generator; for floating point types.
    #[track_caller]
    pub fn randn_like(&self) -> TensorFuture {
        let _within = build::within("randn_like", Location::caller());
        let device = self.device();
        device.generator().randn_dtype(&device, self.shape(), self.dtype())
    }
}
