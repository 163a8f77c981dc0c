//! Linear layers.

use super::init::{bound, uniform};
use super::module::{Module, Part};
use super::parameter::Parameter;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::sync::OnceLock;

/// `x weight^T + bias`: `weight` is `[outputs, inputs]`, `bias` is `[outputs]`; `x` is `[..., inputs]`.
///
/// ```
/// use futensor::{Device, nn, nn::Module};
/// let device = Device::cpu();
/// let layer = nn::Linear::new(3, 2, &device);
/// assert_eq!(layer.forward(&device.ones([5, 3])).dims(), [5, 2]);
/// assert_eq!(layer.weight().dims(), [2, 3]);
/// ```
#[derive(Debug)]
pub struct Linear {
    weight: Parameter,
    bias: Option<Parameter>,
}

impl Linear {
    /// A layer with random weights and biases from the device's generator: uniform between minus and plus
    /// `1 / sqrt(inputs)`.
    #[track_caller]
    pub fn new(inputs: usize, outputs: usize, device: &Device) -> Linear {
        let bound = bound(inputs);
        Linear {
            weight: Parameter::new(uniform(device, [outputs, inputs], bound)),
            bias: Some(Parameter::new(uniform(device, [outputs], bound))),
        }
    }

    /// A layer without biases.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let layer = nn::Linear::without_bias(3, 2, &Device::cpu());
    /// assert!(layer.parameter("weight").is_some() && layer.parameter("bias").is_none());
    /// ```
    #[track_caller]
    pub fn without_bias(inputs: usize, outputs: usize, device: &Device) -> Linear {
        Linear { weight: Parameter::new(uniform(device, [outputs, inputs], bound(inputs))), bias: None }
    }

    /// A layer with these weights; cells that others may share.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module, nn::Parameter};
    /// let device = Device::cpu();
    /// let table = nn::Embedding::new(10, 4, &device);
    /// let shared = table.parameter("weight").unwrap();
    /// let out = nn::Linear::from_parameters(shared.clone(), None);        // logits over the same ten
    /// shared.set(device.full([10, 4], 0.5));
    /// let logits = out.forward(&device.ones([1, 4]));
    /// assert_eq!(logits.to_vec::<f32>().await?, [2.0; 10]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn from_parameters(weight: Parameter, bias: Option<Parameter>) -> Linear {
        Linear { weight, bias }
    }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        let y = x.matmul_turned(false, &self.weight.value(), true);
        match &self.bias {
            Some(bias) => y + bias.value(),
            None => y,
        }
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("weight", Part::Parameter(&self.weight));
        if let Some(bias) = &self.bias {
            visit("bias", Part::Parameter(bias));
        }
    }
}

/// A [`Linear`] that learns its number of inputs, and its device, from the first input that it can take. Until then
/// it has no parameters: make the optimizer after the first forward pass.
///
/// ```
/// use futensor::{Device, nn, nn::Module};
/// let layer = nn::LazyLinear::new(2);
/// assert!(layer.parameters().is_empty());
/// assert_eq!(layer.forward(&Device::cpu().ones([5, 3])).dims(), [5, 2]);
/// assert_eq!(layer.weight().dims(), [2, 3]);
/// ```
#[derive(Debug)]
pub struct LazyLinear {
    outputs: usize,
    linear: OnceLock<Linear>,
}

impl LazyLinear {
    /// A layer of so many outputs.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let (device, layer) = (Device::cpu(), nn::LazyLinear::new(2));
    /// let failed = device.ones([5, 3]) * device.ones([4]);
    /// assert!(layer.forward(&failed).error().unwrap().is_shape());         // and nothing is decided by it
    /// assert_eq!(layer.forward(&device.ones([5, 7])).dims(), [5, 2]);
    /// assert_eq!(layer.weight().dims(), [2, 7]);
    /// ```
    pub fn new(outputs: usize) -> LazyLinear {
        LazyLinear { outputs, linear: OnceLock::new() }
    }
}

impl Module for LazyLinear {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        if let Some(linear) = self.linear.get() {
            return linear.forward(x);
        }
        let inputs = x.dims().last().copied().unwrap_or(1);
        let made = Linear::new(inputs, self.outputs, &x.device());
        let y = made.forward(x);
        // An input that it cannot take, or that failed before, does not decide what it is.
        if y.error().is_some() || self.linear.set(made).is_ok() {
            return y;
        }
        // Another thread was first.
        match self.linear.get() {
            Some(linear) => linear.forward(x),
            None => y,
        }
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        if let Some(linear) = self.linear.get() {
            linear.parts(visit);
        }
    }
}
