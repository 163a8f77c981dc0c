//! Normalisation layers.

use super::module::{Mode, Module, Part};
use super::parameter::Parameter;
use crate::dtype::DType;
use crate::shape::Shape;
use crate::tensor::build;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// [`layer_norm`](TensorFuture::layer_norm) over the last dimensions, with a weight (initially
/// ones) and a bias (initially zeros).
///
/// ```
/// use futensor::{Device, nn, nn::Module};
/// let device = Device::cpu();
/// let norm = nn::LayerNorm::new([4], &device);
/// assert_eq!(norm.forward(&device.ones([2, 4])).dims(), [2, 4]);
/// ```
#[derive(Debug)]
pub struct LayerNorm {
    weight: Parameter,
    bias: Option<Parameter>,
    eps: f64,
}

impl LayerNorm {
    /// A layer over dimensions of this shape; `eps` is 1e-5.
    #[track_caller]
    pub fn new(shape: impl Into<Shape>, device: &Device) -> LayerNorm {
        let shape = shape.into();
        LayerNorm {
            weight: Parameter::new(device.ones(shape.clone())),
            bias: Some(Parameter::new(device.zeros(shape))),
            eps: 1e-5,
        }
    }

    /// A layer without a bias; `eps` is 1e-5.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let norm = nn::LayerNorm::without_bias([2], &device).eps(0.0);
    /// assert_eq!(norm.named_parameters().len(), 1);
    /// let x = device.from_vec(vec![1.0f32, 3.0], [1, 2]);
    /// assert_eq!(norm.forward(&x).to_vec::<f32>().await?, [-1.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn without_bias(shape: impl Into<Shape>, device: &Device) -> LayerNorm {
        LayerNorm { weight: Parameter::new(device.ones(shape)), bias: None, eps: 1e-5 }
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

    /// Sets `eps`, which is added to the variance.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 3.0], [1, 2]);                 // of variance 1
    /// let norm = nn::LayerNorm::new([2], &device).eps(3.0);
    /// assert_eq!(norm.forward(&x).to_vec::<f32>().await?, [-0.5, 0.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn eps(self, eps: f64) -> LayerNorm {
        LayerNorm { eps, ..self }
    }
}

impl Module for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        match &self.bias {
            Some(bias) => x.layer_norm(&self.weight.value(), &bias.value(), self.eps),
            None => x.layer_norm_weighted(&self.weight.value(), self.eps),
        }
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("weight", Part::Parameter(&self.weight));
        if let Some(bias) = &self.bias {
            visit("bias", Part::Parameter(bias));
        }
    }
}

/// [`rms_norm`](TensorFuture::rms_norm) over the last dimensions, with a weight (initially ones).
#[derive(Debug)]
pub struct RmsNorm {
    weight: Parameter,
    eps: f64,
}

impl RmsNorm {
    /// A layer over dimensions of this shape.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// assert_eq!(nn::RmsNorm::new([4], 1e-6, &device).forward(&device.ones([2, 4])).dims(),
    ///     [2, 4]);
    /// ```
    #[track_caller]
    pub fn new(shape: impl Into<Shape>, eps: f64, device: &Device) -> RmsNorm {
        RmsNorm { weight: Parameter::new(device.ones(shape)), eps }
    }

    /// The weight's value.
    #[track_caller]
    pub fn weight(&self) -> TensorFuture {
        self.weight.value()
    }
}

impl Module for RmsNorm {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        x.rms_norm(&self.weight.value(), self.eps)
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("weight", Part::Parameter(&self.weight));
    }
}

/// Batch norm over all dimensions except the channels (dimension 1): PyTorch's `BatchNorm1d`, `2d`
/// and `3d`. In training it normalises with the batch's own mean and variance, and keeps running
/// averages of them; in evaluation ([`Module::eval`]) it uses the averages. Batches of concurrent
/// tasks all count.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn, nn::Module};
/// let device = Device::cpu();
/// let norm = nn::BatchNorm::new(2, &device);
/// let x = device.from_vec(vec![1.0f32, 2.0, 3.0, 6.0], [2, 2]);
/// let _ = norm.forward(&x);
/// let mean = norm.parameter("running_mean").unwrap();
/// assert_eq!(mean.value().to_vec::<f32>().await?, [0.2, 0.4]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct BatchNorm {
    weight: Parameter,
    bias: Parameter,
    running_mean: Parameter,
    running_var: Parameter,
    batches: Parameter,
    eps: f64,
    momentum: f64,
    mode: Mode,
}

impl BatchNorm {
    /// A layer for this number of channels; `eps` is 1e-5, `momentum` 0.1.
    #[track_caller]
    pub fn new(channels: usize, device: &Device) -> BatchNorm {
        BatchNorm {
            weight: Parameter::new(device.ones([channels])),
            bias: Parameter::new(device.zeros([channels])),
            running_mean: Parameter::buffer(device.zeros([channels])),
            running_var: Parameter::buffer(device.ones([channels])),
            batches: Parameter::buffer(device.zeros_dtype((), DType::I64)),
            eps: 1e-5,
            momentum: 0.1,
            mode: Mode::default(),
        }
    }

    /// The weight's value.
    #[track_caller]
    pub fn weight(&self) -> TensorFuture {
        self.weight.value()
    }

    /// The bias's value.
    #[track_caller]
    pub fn bias(&self) -> TensorFuture {
        self.bias.value()
    }

    /// Sets `eps`, which is added to the variance.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 3.0], [2, 1]);                 // of variance 1
    /// let norm = nn::BatchNorm::new(1, &device).eps(3.0);
    /// assert_eq!(norm.forward(&x).to_vec::<f32>().await?, [-0.5, 0.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn eps(self, eps: f64) -> BatchNorm {
        BatchNorm { eps, ..self }
    }

    /// Sets `momentum`, the weight of a new batch in the running averages.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let norm = nn::BatchNorm::new(1, &device).momentum(0.5);
    /// let _ = norm.forward(&device.from_vec(vec![1.0f32, 3.0], [2, 1]));
    /// let mean = norm.parameter("running_mean").unwrap();
    /// assert_eq!(mean.value().to_vec::<f32>().await?, [1.0]);             // half of 0, half of 2
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn momentum(self, momentum: f64) -> BatchNorm {
        BatchNorm { momentum, ..self }
    }
}

impl Module for BatchNorm {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        let (weight, bias) = (self.weight.value(), self.bias.value());
        if !self.mode.is_training() {
            let (mean, var) = (self.running_mean.value(), self.running_var.value());
            return x.batch_norm(&mean, &var, Some(&weight), Some(&bias), self.eps);
        }
        let (y, batch_mean, batch_var) = x.batch_norm_train(Some(&weight), Some(&bias), self.eps);
        if y.error().is_none() {
            // A batch that fails, even later on the device, leaves the averages unchanged.
            let at = Location::caller();
            let (batch_mean, batch_var) = (batch_mean.stop_gradient(), batch_var.stop_gradient());
            let there = build::all_there(&[batch_mean.clone(), batch_var.clone()], &x.device(), at);
            let whole = build::predicated_or(false, &there, &[], at);
            let blend = |running: &Parameter, new: TensorFuture| {
                let new = build::predicated_or(0, &new, &[&whole], at).to_dtype(DType::F32);
                running.update(|old| {
                    let old = old.to_dtype(DType::F32);
                    build::choose(
                        &whole,
                        &old * (1.0 - self.momentum) + &new * self.momentum,
                        old,
                        at,
                    )
                });
            };
            blend(&self.running_mean, batch_mean);
            blend(&self.running_var, batch_var);
            self.batches.update(|batches| build::choose(&whole, &batches + 1, batches, at));
        }
        y
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("weight", Part::Parameter(&self.weight));
        visit("bias", Part::Parameter(&self.bias));
        visit("running_mean", Part::Buffer(&self.running_mean));
        visit("running_var", Part::Buffer(&self.running_var));
        visit("num_batches_tracked", Part::Buffer(&self.batches));
        visit("mode", Part::Mode(&self.mode));
    }
}
