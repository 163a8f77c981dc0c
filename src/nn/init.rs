//! Initial values for weights: PyTorch's `nn.init`. Each draws from the device's generator.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::{Device, nn::{Parameter, init}};
//! let device = Device::cpu();
//! let weight = Parameter::new(init::xavier_uniform(&device, [6, 2], 1.0));
//! let bound = (6.0f32 / 8.0).sqrt();
//! assert!(weight.value().to_vec::<f32>().await?.iter().all(|x| x.abs() <= bound));
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```

use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::shape::Shape;
use crate::tensor::build;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::f64::consts::SQRT_2;
use std::panic::Location;

/// Uniform between minus and plus `bound`.
#[track_caller]
pub fn uniform(device: &Device, shape: impl Into<Shape>, bound: f64) -> TensorFuture {
    device.rand(shape) * (2.0 * bound) - bound
}

/// PyTorch's default bound for weights and biases of linear and convolution layers with `fan_in`
/// inputs: He et al.'s uniform distribution with `a = sqrt(5)` (arXiv:1502.01852), which gives
/// `1 / sqrt(fan_in)`.
pub(super) fn bound(fan_in: usize) -> f64 {
    1.0 / (fan_in.max(1) as f64).sqrt()
}

/// How many elements each output is made of, and each input goes into: the sizes of a weight
/// `[outputs, inputs, ..]`.
fn fans(shape: &Shape) -> [f64; 2] {
    let of = |d: usize| shape.get(d).copied().unwrap_or(1) as f64;
    let field = shape.iter().skip(2).map(|&n| n as f64).product::<f64>();
    [of(1) * field, of(0) * field].map(|fan| fan.max(1.0))
}

/// Glorot and Bengio's uniform distribution (2010): between minus and plus `gain * sqrt(6 / (inputs
/// + outputs))`, for a weight `[outputs, inputs, ..]`.
#[doc(alias("xavier_uniform_", "glorot"))]
#[track_caller]
pub fn xavier_uniform(device: &Device, shape: impl Into<Shape>, gain: f64) -> TensorFuture {
    let shape = shape.into();
    let [inputs, outputs] = fans(&shape);
    uniform(device, shape, gain * (6.0 / (inputs + outputs)).sqrt())
}

/// Glorot and Bengio's normal distribution: of deviation `gain * sqrt(2 / (inputs + outputs))`.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::init};
/// let x = init::xavier_normal(&Device::cpu(), [100, 100], 1.0);
/// assert!((x.std_all(1.0).item::<f32>().await? - 0.1).abs() < 0.005);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[doc(alias = "xavier_normal_")]
#[track_caller]
pub fn xavier_normal(device: &Device, shape: impl Into<Shape>, gain: f64) -> TensorFuture {
    let shape = shape.into();
    let [inputs, outputs] = fans(&shape);
    device.randn(shape) * (gain * (2.0 / (inputs + outputs)).sqrt())
}

/// He et al.'s uniform distribution (2015, arXiv:1502.01852) for the inputs of a weight `[outputs,
/// inputs, ..]`: between minus and plus `gain * sqrt(3 / inputs)`. The gain of a ReLU is `sqrt(2)`.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::init};
/// let x = init::kaiming_uniform(&Device::cpu(), [10, 12], 2.0);
/// assert!(x.to_vec::<f32>().await?.iter().all(|x| x.abs() <= 1.0));
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[doc(alias("kaiming_uniform_", "he"))]
#[track_caller]
pub fn kaiming_uniform(device: &Device, shape: impl Into<Shape>, gain: f64) -> TensorFuture {
    let shape = shape.into();
    let [inputs, _] = fans(&shape);
    uniform(device, shape, gain * (3.0 / inputs).sqrt())
}

/// He et al.'s normal distribution: of deviation `gain / sqrt(inputs)`.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::init};
/// let x = init::kaiming_normal(&Device::cpu(), [100, 100], 2.0);
/// assert!((x.std_all(1.0).item::<f32>().await? - 0.2).abs() < 0.01);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[doc(alias = "kaiming_normal_")]
#[track_caller]
pub fn kaiming_normal(device: &Device, shape: impl Into<Shape>, gain: f64) -> TensorFuture {
    let shape = shape.into();
    let [inputs, _] = fans(&shape);
    device.randn(shape) * (gain / inputs.sqrt())
}

/// The normal distribution of a mean and a deviation, cut off at `low` and `high`.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::init};
/// let x = init::trunc_normal(&Device::cpu(), [1000], 0.0, 1.0, -0.5, 2.0);
/// assert!(x.to_vec::<f32>().await?.iter().all(|x| (-0.5..=2.0).contains(x)));
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[doc(alias = "trunc_normal_")]
#[track_caller]
pub fn trunc_normal(
    device: &Device,
    shape: impl Into<Shape>,
    mean: f64,
    std: f64,
    low: f64,
    high: f64,
) -> TensorFuture {
    // By the inverse of the distribution function, from a uniform number between its values.
    let below = |x: f64| libm::erf((x - mean) / (std * SQRT_2));
    let (from, to) = (below(low), below(high));
    let part = device.rand(shape) * (to - from) + from;
    (part.erfinv() * (std * SQRT_2) + mean).clamp(low, high)
}

/// A matrix whose rows (or columns, if there are more rows) are orthogonal and of length `gain`;
/// dimensions behind the first count as one (Saxe et al. 2013, arXiv:1312.6120).
///
/// The matrix is the orthogonal factor of a normal one, by iterated products in float64.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::init};
/// let device = Device::cpu();
/// let x = init::orthogonal(&device, [3, 8], 1.0);
/// let apart = (x.matmul(x.t()) - device.eye(3)).abs().max_all();
/// assert!(apart.item::<f32>().await? < 1e-5);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// A shape error for less than two dimensions.
#[doc(alias = "orthogonal_")]
#[track_caller]
pub fn orthogonal(device: &Device, shape: impl Into<Shape>, gain: f64) -> TensorFuture {
    /// Enough for a square matrix of some thousands, whose smallest singular value is small.
    const STEPS: usize = 60;
    let (shape, at) = (shape.into(), Location::caller());
    let Some((&rows, rest)) = shape.split_first().filter(|(_, rest)| !rest.is_empty()) else {
        let text = format!("{shape} has no rows and columns");
        return device.refused("orthogonal", ErrorKind::Shape, text, DType::F32, at);
    };
    let _within = build::within("orthogonal", at);
    let columns = rest.iter().fold(1usize, |n, &size| n.saturating_mul(size));
    let normal = device.generator().randn_dtype(device, [rows, columns], DType::F64);
    let tall = rows > columns;
    let mut x = if tall { normal.t() } else { normal };
    // A singular value s becomes s (3 - s^2) / 2, which goes to 1 from below the root of 3.
    x = &x / x.norm_all(2.0);
    for _ in 0..STEPS {
        x = &x * 1.5 - x.matmul(x.t()).matmul(&x) * 0.5;
    }
    let x = if tall { x.t() } else { x };
    (x * gain).to_dtype(DType::F32).reshape(shape.dims())
}
