//! Gradient clipping.

use crate::dtype::DType;
use crate::graph::operation::Refusal;
use crate::tensor::build;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// Scales gradients down so that their joint 2-norm is at most `norm_max`; returns them, and the
/// norm before scaling. The norm is a future like any other value: nothing waits for it. All
/// gradients must be on one device. Halves are squared, summed and scaled in float32, and the norm
/// has their type.
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
/// Without gradients the norm is 0, on the CPU.
///
/// # Errors
/// A limit that is negative or NaN makes failed values.
#[doc(alias = "clip_grad_norm_")]
#[track_caller]
pub fn clip_grad_norm(
    gradients: &[TensorFuture],
    norm_max: f64,
) -> (Vec<TensorFuture>, TensorFuture) {
    if norm_max.is_nan() || norm_max < 0.0 {
        let refused = refused("clip_grad_norm", gradients, norm_max);
        let norm = refused.first().cloned().unwrap_or_else(|| Device::cpu().zeros(()));
        return (refused, norm);
    }
    let _within = build::within("clip_grad_norm", Location::caller());
    let mut sum: Option<TensorFuture> = None;
    let mut dtype = None;
    for g in gradients {
        dtype = Some(dtype.map_or(g.dtype(), |dtype: DType| dtype.promote(g.dtype())));
        let square = g.wide().square().sum_all();
        sum = Some(match sum {
            Some(sum) => sum + square,
            None => square,
        });
    }
    let (Some(sum), Some(dtype)) = (sum, dtype) else {
        return (Vec::new(), Device::cpu().zeros(()));
    };
    let norm = sum.sqrt();
    // As PyTorch: never scales up, and never divides by 0.
    let scale = (norm_max / (&norm + 1e-6)).minimum(1.0);
    let mut scaled = Vec::with_capacity(gradients.len());
    for g in gradients {
        scaled.push((g.wide() * &scale).to_dtype(g.dtype()));
    }
    (scaled, norm.to_dtype(dtype))
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
///
/// # Errors
/// A limit that is negative or NaN makes failed values.
#[doc(alias = "clip_grad_value_")]
#[track_caller]
pub fn clip_grad_value(gradients: &[TensorFuture], limit: f64) -> Vec<TensorFuture> {
    if limit.is_nan() || limit < 0.0 {
        return refused("clip_grad_value", gradients, limit);
    }
    let mut clipped = Vec::with_capacity(gradients.len());
    for g in gradients {
        clipped.push(g.clamp(-limit, limit));
    }
    clipped
}

/// The failed gradients of an invalid limit.
#[track_caller]
fn refused(op: &str, gradients: &[TensorFuture], limit: f64) -> Vec<TensorFuture> {
    let refusal = Refusal::argument(format!("the limit is {limit}: it has to be 0 or more"));
    let at = Location::caller();
    gradients.iter().map(|g| build::refused(op, g, refusal.clone(), at)).collect()
}
