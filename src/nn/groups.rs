//! Normalisation of groups of channels.

use super::module::{Module, Part};
use super::parameter::Parameter;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;

/// [`group_norm`](TensorFuture::group_norm) with a weight (initially ones) and a bias (initially
/// zeros) for each channel.
///
/// ```
/// use futensor::{Device, nn, nn::Module};
/// let device = Device::cpu();
/// let norm = nn::GroupNorm::new(2, 4, &device);
/// assert_eq!(norm.forward(&device.ones([1, 4, 3, 3])).dims(), [1, 4, 3, 3]);
/// assert_eq!(norm.named_parameters()[0].0, "weight");
/// ```
#[derive(Debug)]
pub struct GroupNorm {
    groups: usize,
    weight: Parameter,
    bias: Parameter,
    eps: f64,
}

impl GroupNorm {
    /// A layer of this many groups and channels; `eps` is 1e-5.
    #[track_caller]
    pub fn new(groups: usize, channels: usize, device: &Device) -> GroupNorm {
        GroupNorm {
            groups,
            weight: Parameter::new(device.ones([channels])),
            bias: Parameter::new(device.zeros([channels])),
            eps: 1e-5,
        }
    }

    /// Sets `eps`, which is added to the variance.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 3.0], [1, 1, 2]);              // of variance 1
    /// let norm = nn::GroupNorm::new(1, 1, &device).eps(3.0);
    /// assert_eq!(norm.forward(&x).to_vec::<f32>().await?, [-0.5, 0.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn eps(self, eps: f64) -> GroupNorm {
        GroupNorm { eps, ..self }
    }
}

impl Module for GroupNorm {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        let (weight, bias) = (self.weight.value(), self.bias.value());
        x.group_norm(self.groups, Some(&weight), Some(&bias), self.eps)
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("weight", Part::Parameter(&self.weight));
        visit("bias", Part::Parameter(&self.bias));
    }
}

/// [`instance_norm`](TensorFuture::instance_norm), by default without parameters, as PyTorch's
/// `InstanceNorm1d`, `2d` and `3d`.
///
/// ```
/// use futensor::{Device, nn, nn::Module};
/// let device = Device::cpu();
/// let norm = nn::InstanceNorm::new();
/// assert_eq!(norm.forward(&device.ones([1, 4, 3, 3])).dims(), [1, 4, 3, 3]);
/// assert!(norm.parameters().is_empty());
/// ```
#[derive(Debug)]
pub struct InstanceNorm {
    affine: Option<(Parameter, Parameter)>,
    eps: f64,
}

impl Default for InstanceNorm {
    fn default() -> InstanceNorm {
        InstanceNorm::new()
    }
}

impl InstanceNorm {
    /// A layer without parameters; `eps` is 1e-5.
    pub fn new() -> InstanceNorm {
        InstanceNorm { affine: None, eps: 1e-5 }
    }

    /// With a weight (initially ones) and a bias (initially zeros) for each channel.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let norm = nn::InstanceNorm::affine(4, &Device::cpu());
    /// assert_eq!(norm.parameters().len(), 2);
    /// ```
    #[track_caller]
    pub fn affine(channels: usize, device: &Device) -> InstanceNorm {
        let weight = Parameter::new(device.ones([channels]));
        let affine = Some((weight, Parameter::new(device.zeros([channels]))));
        InstanceNorm { affine, eps: 1e-5 }
    }

    /// Sets `eps`, which is added to the variance.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn, nn::Module};
    /// let x = Device::cpu().from_vec(vec![1.0f32, 3.0], [1, 1, 2]);       // of variance 1
    /// let norm = nn::InstanceNorm::new().eps(3.0);
    /// assert_eq!(norm.forward(&x).to_vec::<f32>().await?, [-0.5, 0.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn eps(self, eps: f64) -> InstanceNorm {
        InstanceNorm { eps, ..self }
    }
}

impl Module for InstanceNorm {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        match &self.affine {
            None => x.instance_norm(None, None, self.eps),
            Some((weight, bias)) => {
                x.instance_norm(Some(&weight.value()), Some(&bias.value()), self.eps)
            }
        }
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        if let Some((weight, bias)) = &self.affine {
            visit("weight", Part::Parameter(weight));
            visit("bias", Part::Parameter(bias));
        }
    }
}
