//! The convolution layer.

use super::init::{bound, uniform};
use super::module::{Module, Part};
use super::parameter::Parameter;
use crate::tensor::conv::ConvOptions;
use crate::tensor::device::Device;
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;

/// Convolution over images `[batch, inputs, height, width]`: `weight` is `[outputs, inputs / groups, kernel
/// height, kernel width]`, `bias` is `[outputs]`.
///
/// ```
/// use futensor::{ConvOptions, Device, nn, nn::Module};
/// let device = Device::cpu();
/// let layer = nn::Conv2d::new(1, 8, 3, ConvOptions::default().padding(1), &device);
/// assert_eq!(layer.forward(&device.ones([2, 1, 8, 8])).dims(), [2, 8, 8, 8]);
/// assert_eq!(layer.weight().dims(), [8, 1, 3, 3]);
/// ```
#[derive(Debug)]
pub struct Conv2d {
    weight: Parameter,
    bias: Option<Parameter>,
    options: ConvOptions,
}

impl Conv2d {
    /// A layer with random weights and biases from the device's generator: uniform between minus and plus one
    /// over the root of the number of values that each output is made of. `kernel` is one number, or height
    /// and width.
    ///
    /// # Panics
    /// Where `kernel` is neither one number nor two, or is negative; where there are no groups.
    #[track_caller]
    pub fn new(
        inputs: usize,
        outputs: usize,
        kernel: impl Dims,
        options: impl Into<ConvOptions>,
        device: &Device,
    ) -> Conv2d {
        Conv2d::made(inputs, outputs, kernel, options.into(), true, device)
    }

    /// A layer without biases, as before a batch norm.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn without_bias(
        inputs: usize,
        outputs: usize,
        kernel: impl Dims,
        options: impl Into<ConvOptions>,
        device: &Device,
    ) -> Conv2d {
        Conv2d::made(inputs, outputs, kernel, options.into(), false, device)
    }

    #[track_caller]
    fn made(
        inputs: usize,
        outputs: usize,
        kernel: impl Dims,
        options: ConvOptions,
        bias: bool,
        device: &Device,
    ) -> Conv2d {
        let kernel = kernel.dims();
        let size = |d: isize| usize::try_from(d).expect("a kernel size is not negative");
        let (height, width) = match kernel[..] {
            [n] => (size(n), size(n)),
            [h, w] => (size(h), size(w)),
            _ => panic!("a kernel has one size or two, not {}", kernel.len()),
        };
        let channels = inputs / options.groups_of();
        let bound = bound(channels * height * width);
        Conv2d {
            weight: Parameter::new(uniform(device, [outputs, channels, height, width], bound)),
            bias: bias.then(|| Parameter::new(uniform(device, [outputs], bound))),
            options,
        }
    }
}

impl Module for Conv2d {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        let bias = self.bias.as_ref().map(Parameter::value);
        x.conv2d(self.weight.value(), bias.as_ref(), self.options.clone())
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("weight", Part::Parameter(&self.weight));
        if let Some(bias) = &self.bias {
            visit("bias", Part::Parameter(bias));
        }
    }
}
