//! Linear layers.

use super::init::{bound, uniform};
use super::module::{Module, Part};
use super::parameter::Parameter;
use crate::sync::{Mutex, lock};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;

/// `x weight^T + bias`: `weight` is `[outputs, inputs]`, `bias` is `[outputs]`; `x` is `[...,
/// inputs]`.
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
    /// A layer with random weights and biases from the device's generator: uniform between minus
    /// and plus `1 / sqrt(inputs)`.
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
    /// assert!(layer.bias().is_none());
    /// ```
    #[track_caller]
    pub fn without_bias(inputs: usize, outputs: usize, device: &Device) -> Linear {
        Linear {
            weight: Parameter::new(uniform(device, [outputs, inputs], bound(inputs))),
            bias: None,
        }
    }

    /// A layer with these parameters, which other modules may share.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module, nn::Parameter};
    /// let device = Device::cpu();
    /// let table = nn::Embedding::new(10, 4, &device);
    /// let shared = table.parameter("weight").unwrap();
    /// let out = nn::Linear::from_parameters(shared.clone(), None);  // logits over the ten rows
    /// shared.set(device.full([10, 4], 0.5));
    /// let logits = out.forward(&device.ones([1, 4]));
    /// assert_eq!(logits.to_vec::<f32>().await?, [2.0; 10]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn from_parameters(weight: Parameter, bias: Option<Parameter>) -> Linear {
        Linear { weight, bias }
    }

    /// The weight's value.
    #[track_caller]
    pub fn weight(&self) -> TensorFuture {
        self.weight.value()
    }

    /// The bias's value, if there is a bias.
    #[track_caller]
    pub fn bias(&self) -> Option<TensorFuture> {
        self.bias.as_ref().map(Parameter::value)
    }

    fn cells(&self) -> impl Iterator<Item = &Parameter> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        x.linear(self.weight.value(), self.bias.as_ref().map(Parameter::value).as_ref())
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("weight", Part::Parameter(&self.weight));
        if let Some(bias) = &self.bias {
            visit("bias", Part::Parameter(bias));
        }
    }
}

/// A [`Linear`] that takes its number of inputs, and its device, from the first valid input;
/// [`to`](Module::to) may set the device before. Its parameters exist from the start, for
/// optimizers and for [`to`](Module::to), but are [without values](Parameter::lazy) until the first
/// input, or until [`load_state`](Module::load_state).
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn, nn::Module, optim::{Optimizer, Sgd}};
/// let device = Device::cpu();
/// let layer = nn::LazyLinear::new(2);
/// let mut sgd = Sgd::new(layer.parameters(), 0.1);
/// let y = layer.forward(&device.ones([5, 3]));
/// assert_eq!((y.dims(), layer.weight().dims()), (&[5, 2][..], &[2, 3][..]));
/// let before = layer.weight().to_vec::<f32>().await?;
/// sgd.minimize(&y.sum_all()).await?;
/// assert_ne!(layer.weight().to_vec::<f32>().await?, before);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct LazyLinear {
    outputs: usize,
    linear: Linear,
    /// Ensures that one thread creates the weights.
    making: Mutex<()>,
}

impl LazyLinear {
    /// A layer with this number of outputs.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let (device, layer) = (Device::cpu(), nn::LazyLinear::new(2));
    /// let failed = device.ones([5, 3]) * device.ones([4]);
    /// // a failed input does not set the sizes
    /// assert!(layer.forward(&failed).error().unwrap().is_shape());
    /// assert_eq!(layer.forward(&device.ones([5, 7])).dims(), [5, 2]);
    /// assert_eq!(layer.weight().dims(), [2, 7]);
    /// ```
    pub fn new(outputs: usize) -> LazyLinear {
        let weight = Parameter::lazy([Some(outputs), None]);
        let linear = Linear { weight, bias: Some(Parameter::lazy([Some(outputs)])) };
        LazyLinear { outputs, linear, making: Mutex::new(()) }
    }

    /// The weight's value; a failed value before the first forward pass.
    #[track_caller]
    pub fn weight(&self) -> TensorFuture {
        self.linear.weight()
    }

    /// The bias's value, if there is a bias; a failed value before the first forward pass.
    #[track_caller]
    pub fn bias(&self) -> Option<TensorFuture> {
        self.linear.bias()
    }

    /// The result for the first input, which creates the weights; `None` if they exist.
    #[track_caller]
    fn first(&self, x: &TensorFuture) -> Option<TensorFuture> {
        let _one = lock(&self.making);
        let weight = &self.linear.weight;
        if !weight.is_lazy() {
            return None;
        }
        let inputs = x.dims().last().copied().unwrap_or(1);
        let made =
            Linear::new(inputs, self.outputs, &weight.device().unwrap_or_else(|| x.device()));
        for (lazy, made) in self.linear.cells().zip(made.cells()) {
            made.to_dtype(lazy.lazy_dtype());
            made.train(lazy.is_trained());
        }
        let y = made.forward(x);
        // An invalid or failed input does not set the sizes.
        if y.error().is_none() {
            for (lazy, made) in self.linear.cells().zip(made.cells()) {
                lazy.take_from(made);
            }
        }
        Some(y)
    }
}

impl Module for LazyLinear {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        if self.linear.weight.is_lazy()
            && let Some(y) = self.first(x)
        {
            return y;
        }
        self.linear.forward(x)
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        self.linear.parts(visit);
    }
}
