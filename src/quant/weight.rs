//! `Weight`: a dense tensor or a quantised matrix, behind what both can do.

use super::Quantized;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;

/// A weight as a file has it: dense, or quantised.
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
    /// `x w^T`, of the type of `x`: see [`TensorFuture::linear`] and [`Quantized::linear`]. Beside
    /// a dense weight of another type, `x` is converted to that.
    #[track_caller]
    pub fn linear(&self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        let x = x.as_ref();
        match self {
            Weight::Quantized(w) => w.linear(x),
            Weight::Dense(w) if w.dtype() == x.dtype() => x.linear(w, None),
            Weight::Dense(w) => x.to_dtype(w.dtype()).linear(w, None).to_dtype(x.dtype()),
        }
    }

    /// Rows of this table, for indices of any shape; float32 where it is quantised, else of its own
    /// type.
    #[track_caller]
    pub fn embedding(&self, index: impl AsRef<TensorFuture>) -> TensorFuture {
        match self {
            Weight::Quantized(w) => w.embedding(index),
            Weight::Dense(w) => w.embedding(index),
        }
    }

    /// All weights as a tensor: in float32 where they are quantised.
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

    /// Bytes of the device's memory.
    pub fn bytes(&self) -> usize {
        match self {
            Weight::Quantized(w) => w.bytes(),
            Weight::Dense(w) => w.node.meta.bytes(),
        }
    }

    /// Where it lives.
    pub fn device(&self) -> Device {
        self.value().device()
    }

    /// A copy on another device; itself where it is there already.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Weight {
        match self {
            Weight::Quantized(w) => w.to_device(device).into(),
            Weight::Dense(w) => w.to_device(device).into(),
        }
    }

    /// What there is to await: the tensor, or the packed bytes of the quantised matrix.
    pub fn value(&self) -> &TensorFuture {
        match self {
            Weight::Quantized(w) => w.packed(),
            Weight::Dense(w) => w,
        }
    }
}
