//! Initial values, as PyTorch's defaults.

use crate::shape::Shape;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;

/// Uniform between minus and plus `bound`.
#[track_caller]
pub(super) fn uniform(device: &Device, shape: impl Into<Shape>, bound: f64) -> TensorFuture {
    device.rand(shape) * (2.0 * bound) - bound
}

/// PyTorch's default bound for weights and biases of linear and convolution layers with `fan_in`
/// inputs: He et al.'s uniform distribution with `a = sqrt(5)` (arXiv:1502.01852), which gives
/// `1 / sqrt(fan_in)`.
pub(super) fn bound(fan_in: usize) -> f64 {
    1.0 / (fan_in.max(1) as f64).sqrt()
}
