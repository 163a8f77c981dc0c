//! `Weight`: a dense tensor or a quantised matrix, with their common methods.

use super::Quantized;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;

/// A weight of a file: dense or quantised.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, quant::{Format, Quantized, Weight}};
/// let x = Device::cpu().ones([2, 32]);
/// let all = [Weight::from(Quantized::from_tensor(&x, Format::Q4_1)?), x.clone().into()];
/// for weight in all {
///     assert_eq!(weight.linear(&x).to_vec::<f32>().await?, [32.0; 4]);
/// }
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub enum Weight {
    /// A tensor of any shape.
    Dense(TensorFuture),
    /// A quantised matrix.
    Quantized(Quantized),
}

impl From<TensorFuture> for Weight {
    fn from(x: TensorFuture) -> Weight {
        Weight::Dense(x)
    }
}

impl From<&TensorFuture> for Weight {
    fn from(x: &TensorFuture) -> Weight {
        Weight::Dense(x.clone())
    }
}

impl From<Quantized> for Weight {
    fn from(x: Quantized) -> Weight {
        Weight::Quantized(x)
    }
}

impl From<&Quantized> for Weight {
    fn from(x: &Quantized) -> Weight {
        Weight::Quantized(x.clone())
    }
}

impl Weight {
    /// `x w^T`, in the type of `x`: see [`TensorFuture::linear`] and [`Quantized::linear`]. If a
    /// dense weight has another type, `x` is converted to it.
    #[track_caller]
    pub fn linear(&self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        let x = x.as_ref();
        match self {
            Weight::Quantized(w) => w.linear(x),
            Weight::Dense(w) if w.dtype() == x.dtype() => x.linear(w, None),
            Weight::Dense(w) => x.to_dtype(w.dtype()).linear(w, None).to_dtype(x.dtype()),
        }
    }

    /// Looks up rows of this table by indices of any shape: in float32 if it is quantised,
    /// otherwise in its own type.
    #[track_caller]
    pub fn embedding(&self, index: impl AsRef<TensorFuture>) -> TensorFuture {
        match self {
            Weight::Quantized(w) => w.embedding(index),
            Weight::Dense(w) => w.embedding(index),
        }
    }

    /// All weights as a tensor: in float32 if they are quantised.
    #[track_caller]
    pub fn dense(&self) -> TensorFuture {
        match self {
            Weight::Quantized(w) => w.dequantize(),
            Weight::Dense(w) => w.clone(),
        }
    }

    /// Sizes of the dimensions.
    pub fn dims(&self) -> Vec<usize> {
        match self {
            Weight::Quantized(w) => w.dims().to_vec(),
            Weight::Dense(w) => w.dims().to_vec(),
        }
    }

    /// The bytes that it takes in the device's memory.
    pub fn bytes(&self) -> usize {
        match self {
            Weight::Quantized(w) => w.bytes(),
            Weight::Dense(w) => w.node.meta.bytes(),
        }
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.value().device()
    }

    /// A copy on another device; a weight that is already there is returned as it is.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Weight {
        match self {
            Weight::Quantized(w) => w.to_device(device).into(),
            Weight::Dense(w) => w.to_device(device).into(),
        }
    }

    /// The value to await: the tensor, or the packed bytes of the quantised matrix.
    pub fn value(&self) -> &TensorFuture {
        match self {
            Weight::Quantized(w) => w.packed(),
            Weight::Dense(w) => w,
        }
    }
}
