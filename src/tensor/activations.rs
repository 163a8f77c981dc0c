//! Activations that have a number to them, and clamps on one side; each is a few fused instructions.

use super::build;
use super::future::TensorFuture;
use super::operand::Operand;
use std::panic::Location;

/// Elementwise ops with a number. Nothing waits.
impl TensorFuture {
    /// `x` above zero, `alpha * (e^x - 1)` elsewhere (Clevert et al. 2016, arXiv:1511.07289).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![-200.0f32, 0.0, 3.0], [3]);
    /// assert_eq!(x.elu(2.0).to_vec::<f32>().await?, [-2.0, 0.0, 3.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> TensorFuture {
        let _within = build::within("elu", Location::caller());
        let above = self.gt(0.0);
        // Not of large numbers: the slope of an infinite power is none, even where it does not count.
        let below = above.where_cond(0.0, self).expm1() * alpha;
        above.where_cond(self, below)
    }

    /// `x` above zero, `slope * x` elsewhere.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![-2.0f32, 3.0], [2]);
    /// assert_eq!(x.leaky_relu(0.5).to_vec::<f32>().await?, [-1.0, 3.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> TensorFuture {
        let _within = build::within("leaky_relu", Location::caller());
        self.gt(0.0).where_cond(self, self * slope)
    }

    /// `self`, but not below `min`; NaN stays NaN.
    #[track_caller]
    pub fn clamp_min(&self, min: impl Operand) -> TensorFuture {
        let _within = build::within("clamp_min", Location::caller());
        self.maximum(min)
    }

    /// `self`, but not above `max`; NaN stays NaN.
    #[track_caller]
    pub fn clamp_max(&self, max: impl Operand) -> TensorFuture {
        let _within = build::within("clamp_max", Location::caller());
        self.minimum(max)
    }

    /// Each bit of an integer turned over; of a bool, not.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![0i32, 5], [2]);
    /// assert_eq!(x.bitwise_not().to_vec::<i32>().await?, [-1, -6]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn bitwise_not(&self) -> TensorFuture {
        let _within = build::within("bitwise_not", Location::caller());
        match self.dtype() {
            crate::DType::Bool => self.logical_not(),
            crate::DType::U8 => self.bitwise_xor(255),
            _ => self.bitwise_xor(-1),
        }
    }
}
