//! Clipping of gradients.

use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;

/// Scales gradients down so that their common 2-norm is at most `norm_max`; gives them, and the norm they had.
/// The norm is a value to come like any other: nothing waits for it. All are on one device.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, optim::clip_grad_norm};
/// let device = Device::cpu();
/// let gradients = [device.full([1], 3.0), device.full([1], 4.0)];
/// let (clipped, norm) = clip_grad_norm(&gradients, 1.0);
/// assert_eq!(norm.item::<f32>().await?, 5.0);
/// assert!((clipped[1].item::<f32>().await? - 0.8).abs() < 1e-6);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// The norm of no gradients at all is 0, on the CPU.
#[track_caller]
pub fn clip_grad_norm(gradients: &[TensorFuture], norm_max: f64) -> (Vec<TensorFuture>, TensorFuture) {
    // Loops, not closures: errors name the caller's line.
    let mut sum: Option<TensorFuture> = None;
    for g in gradients {
        let square = g.square().sum_all();
        sum = Some(match sum {
            Some(sum) => sum + square,
            None => square,
        });
    }
    let Some(sum) = sum else { return (Vec::new(), Device::cpu().zeros(())) };
    let norm = sum.sqrt();
    // As PyTorch: never up, and a norm of 0 is no division by it.
    let scale = (norm_max / (&norm + 1e-6)).minimum(1.0);
    let mut scaled = Vec::with_capacity(gradients.len());
    for g in gradients {
        scaled.push((g * &scale).to_dtype(g.dtype()));
    }
    (scaled, norm)
}

/// Limits each element of the gradients to `-limit..=limit`.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, optim::clip_grad_value};
/// let gradients = [Device::cpu().from_vec(vec![-3.0f32, 0.5], [2])];
/// assert_eq!(clip_grad_value(&gradients, 1.0)[0].to_vec::<f32>().await?, [-1.0, 0.5]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[track_caller]
pub fn clip_grad_value(gradients: &[TensorFuture], limit: f64) -> Vec<TensorFuture> {
    let mut clipped = Vec::with_capacity(gradients.len());
    for g in gradients {
        clipped.push(g.clamp(-limit, limit));
    }
    clipped
}
