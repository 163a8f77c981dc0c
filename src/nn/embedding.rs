//! Embedding tables.

use super::module::{Module, Part};
use super::parameter::Parameter;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;

/// A table of `count` vectors of size `width`: indices `[...]` become `[..., width]`.
///
/// ```
/// use futensor::{Device, nn, nn::Module};
/// let device = Device::cpu();
/// let table = nn::Embedding::new(10, 4, &device);
/// assert_eq!(table.forward(&device.arange(0, 6, 1).reshape([2, 3])).dims(), [2, 3, 4]);
/// ```
#[derive(Debug)]
pub struct Embedding {
    weight: Parameter,
}

impl Embedding {
    /// A table of standard normal numbers from the device's generator.
    #[track_caller]
    pub fn new(count: usize, width: usize, device: &Device) -> Embedding {
        Embedding { weight: Parameter::new(device.randn([count, width])) }
    }

    /// A layer on an existing table, which other modules may share.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module, nn::Parameter};
    /// let device = Device::cpu();
    /// let rows = Parameter::new(device.arange(0.0, 6.0, 1.0).reshape([3, 2]));
    /// let table = nn::Embedding::from_parameter(rows);
    /// assert_eq!(table.forward(&device.full([1], 2)).to_vec::<f32>().await?, [4.0, 5.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn from_parameter(weight: Parameter) -> Embedding {
        Embedding { weight }
    }

    /// The weight's value.
    #[track_caller]
    pub fn weight(&self) -> TensorFuture {
        self.weight.value()
    }
}

impl Module for Embedding {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        self.weight.value().embedding(x)
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("weight", Part::Parameter(&self.weight));
    }
}
