//! Layers without parameters: activations, flattening, closures.

use super::module::{Module, Part};
use super::parameter::Parameter;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;

macro_rules! activations {
    ($($Name:ident $method:ident;)*) => {$(
        #[doc = concat!("[`", stringify!($method), "`](TensorFuture::", stringify!($method), ") ")]
        #[doc = "as a layer."]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $Name;

        impl Module for $Name {
            #[track_caller]
            fn forward(&self, x: &TensorFuture) -> TensorFuture {
                x.$method()
            }
        }
    )*};
}
activations! {
    Relu relu;
    Gelu gelu;
    Hardswish hardswish;
    Mish mish;
    Selu selu;
    Silu silu;
    Sigmoid sigmoid;
    Softplus softplus;
    Tanh tanh;
}

/// `x` where `x > 0`, `slope * x` elsewhere.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn, nn::Module};
/// let x = Device::cpu().from_vec(vec![-2.0f32, 3.0], [2]);
/// assert_eq!(nn::LeakyRelu(0.5).forward(&x).to_vec::<f32>().await?, [-1.0, 3.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LeakyRelu(pub f64);

impl Module for LeakyRelu {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        x.gt(0).where_cond(x, x.mul(self.0))
    }
}

/// [`prelu`](TensorFuture::prelu) with a learned slope (initially 0.25), or one for each channel.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn, nn::Module};
/// let device = Device::cpu();
/// let layer = nn::Prelu::new(1, &device);
/// let x = device.from_vec(vec![-2.0f32, 3.0], [2]);
/// assert_eq!(layer.forward(&x).to_vec::<f32>().await?, [-0.5, 3.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Prelu {
    weight: Parameter,
}

impl Prelu {
    /// A layer with this number of slopes: one, or the number of channels.
    #[track_caller]
    pub fn new(slopes: usize, device: &Device) -> Prelu {
        Prelu { weight: Parameter::new(device.full([slopes], 0.25)) }
    }
}

impl Module for Prelu {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        x.prelu(self.weight.value())
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("weight", Part::Parameter(&self.weight));
    }
}

/// [`glu`](TensorFuture::glu) along a dimension, as a layer.
///
/// ```
/// use futensor::{Device, nn, nn::Module};
/// assert_eq!(nn::Glu(-1).forward(&Device::cpu().ones([2, 6])).dims(), [2, 3]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Glu(pub isize);

impl Module for Glu {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        x.glu(self.0)
    }
}

/// [`softmax`](TensorFuture::softmax) along a dimension, as a layer.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn, nn::Module};
/// let x = Device::cpu().zeros([1, 4]);
/// assert_eq!(nn::Softmax(-1).forward(&x).to_vec::<f32>().await?, [0.25; 4]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Softmax(pub isize);

impl Module for Softmax {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        x.softmax(self.0)
    }
}

/// [`log_softmax`](TensorFuture::log_softmax) along a dimension, as a layer.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn, nn::Module};
/// let x = Device::cpu().zeros([2, 1]);
/// assert_eq!(nn::LogSoftmax(-1).forward(&x).to_vec::<f32>().await?, [0.0; 2]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LogSoftmax(pub isize);

impl Module for LogSoftmax {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        x.log_softmax(self.0)
    }
}

/// Flattens `[batch, ...]` to `[batch, elements]`.
///
/// ```
/// use futensor::{Device, nn, nn::Module};
/// assert_eq!(nn::Flatten.forward(&Device::cpu().ones([2, 3, 4])).dims(), [2, 12]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Module for Flatten {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        match x.dims() {
            [batch, rest @ ..] => x.reshape([*batch, crate::Shape::from(rest).numel()]),
            [] => x.reshape([1]),
        }
    }
}

/// A closure as a layer: see [`from_fn`].
#[derive(Clone, Copy, Debug)]
pub struct Func<F>(F);

/// A closure as a layer, without parameters.
///
/// ```
/// use futensor::{Device, nn, nn::Module};
/// let scale = nn::from_fn(|x| x * 2.0);
/// assert_eq!(scale.forward(&Device::cpu().ones([2])).dims(), [2]);
/// ```
#[doc(alias = "Lambda")]
pub fn from_fn<F: Fn(&TensorFuture) -> TensorFuture + Send + Sync>(f: F) -> Func<F> {
    Func(f)
}

impl<F: Fn(&TensorFuture) -> TensorFuture + Send + Sync> Module for Func<F> {
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        (self.0)(x)
    }
}
