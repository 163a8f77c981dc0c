//! Convolution layers.

use super::init::{bound, uniform};
use super::module::{Module, Part};
use super::parameter::Parameter;
use crate::dtype::DType;
use crate::tensor::device::Device;
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::windows::conv::ConvOptions;
use std::panic::Location;

macro_rules! convolutions {
    ($(
        $(#[$doc:meta])*
        $Name:ident $method:ident $spatial:literal $turned:literal, $(#[$new:meta])*;
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $Name {
            weight: Parameter,
            bias: Option<Parameter>,
            options: ConvOptions,
        }

        impl $Name {
            /// A layer with random weights and biases from the device's generator: uniform between
            /// -b and b, where b is one over the square root of the number of inputs of each
            /// output. `kernel` is one number, or one for each spatial dimension.
            ///
            /// # Errors
            /// The weights and the layer's results are failed values if `kernel` has another length
            /// or is not positive, or if channels are not divisible by groups.
            $(#[$new])*
            #[track_caller]
            pub fn new(
                inputs: usize,
                outputs: usize,
                kernel: impl Dims,
                options: impl Into<ConvOptions>,
                device: &Device,
            ) -> $Name {
                $Name::made(inputs, outputs, kernel, options.into(), true, device)
            }

            /// A layer without biases, for example before a batch norm.
            ///
            /// # Errors
            /// As [`new`](Self::new).
            #[track_caller]
            pub fn without_bias(
                inputs: usize,
                outputs: usize,
                kernel: impl Dims,
                options: impl Into<ConvOptions>,
                device: &Device,
            ) -> $Name {
                $Name::made(inputs, outputs, kernel, options.into(), false, device)
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

            #[track_caller]
            fn made(
                inputs: usize,
                outputs: usize,
                kernel: impl Dims,
                options: ConvOptions,
                bias: bool,
                device: &Device,
            ) -> $Name {
                let (rows, columns) = if $turned { (inputs, outputs) } else { (outputs, inputs) };
                let shape = match options.weight_shape($spatial, columns, rows, &kernel.dims()) {
                    Ok(shape) => shape,
                    Err(refusal) => {
                        let at = Location::caller();
                        let name = stringify!($Name);
                        let failed = device
                            .refused(name, refusal.kind, refusal.message, DType::F32, at);
                        let bias = bias.then(|| Parameter::new(&failed));
                        return $Name { weight: Parameter::new(&failed), bias, options };
                    }
                };
                let bound = bound(shape[1..].iter().fold(1, |n, &d| n.saturating_mul(d)));
                $Name {
                    weight: Parameter::new(uniform(device, shape, bound)),
                    bias: bias.then(|| Parameter::new(uniform(device, [outputs], bound))),
                    options,
                }
            }
        }

        impl Module for $Name {
            #[track_caller]
            fn forward(&self, x: &TensorFuture) -> TensorFuture {
                let bias = self.bias.as_ref().map(Parameter::value);
                x.$method(self.weight.value(), bias.as_ref(), self.options.clone())
            }
            fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
                visit("weight", Part::Parameter(&self.weight));
                if let Some(bias) = &self.bias {
                    visit("bias", Part::Parameter(bias));
                }
            }
        }
    )*};
}
convolutions! {
    /// Convolution over sequences `[batch, inputs, length]`: `weight` is `[outputs, inputs /
    /// groups, kernel]`, `bias` is `[outputs]`.
    ///
    /// ```
    /// use futensor::{ConvOptions, Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let layer = nn::Conv1d::new(2, 8, 3, ConvOptions::default().padding_sides(2, 0), &device);
    /// assert_eq!(layer.forward(&device.ones([4, 2, 9])).dims(), [4, 8, 9]);
    /// ```
    Conv1d conv1d 1 false,;
    /// Convolution over images `[batch, inputs, height, width]`: `weight` is `[outputs, inputs /
    /// groups, kernel height, kernel width]`, `bias` is `[outputs]`.
    ///
    /// ```
    /// use futensor::{ConvOptions, Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let layer = nn::Conv2d::new(1, 8, 3, ConvOptions::default().padding(1), &device);
    /// assert_eq!(layer.forward(&device.ones([2, 1, 8, 8])).dims(), [2, 8, 8, 8]);
    /// assert_eq!(layer.weight().dims(), [8, 1, 3, 3]);
    /// let bare = nn::Conv2d::without_bias(1, 8, 3, (), &device);
    /// assert!(bare.bias().is_none());
    /// ```
    Conv2d conv2d 2 false,
    ///
    /// ```
    /// use futensor::{ConvOptions, Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let layer = nn::Conv2d::new(4, 6, [3, 1], ConvOptions::default().groups(2), &device);
    /// assert_eq!((layer.weight().dims(), layer.bias().unwrap().dims()),
    ///     (&[6, 2, 3, 1][..], &[6][..]));
    /// let wrong = nn::Conv2d::new(4, 6, 3, ConvOptions::default().groups(3), &device);
    /// let error = wrong.forward(&device.ones([1, 4, 8, 8])).error().unwrap();
    /// assert_eq!((error.op(), error.message()),
    ///     ("Conv2d", "4 channels to 6 do not divide into 3 groups"));
    /// ```
    ;
    /// Convolution over volumes `[batch, inputs, depth, height, width]`: `weight` is `[outputs,
    /// inputs / groups, kernel depth, kernel height, kernel width]`, `bias` is `[outputs]`.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let layer = nn::Conv3d::new(1, 4, [1, 3, 3], (), &device);
    /// assert_eq!(layer.forward(&device.ones([2, 1, 5, 8, 8])).dims(), [2, 4, 5, 6, 6]);
    /// ```
    Conv3d conv3d 3 false,;
    /// Transposed convolution over sequences: `weight` is `[inputs, outputs / groups, kernel]`,
    /// `bias` is `[outputs]`.
    ///
    /// ```
    /// use futensor::{ConvOptions, Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let layer = nn::ConvTranspose1d::new(2, 8, 3, ConvOptions::default().stride(2), &device);
    /// assert_eq!(layer.forward(&device.ones([4, 2, 9])).dims(), [4, 8, 19]);
    /// ```
    ConvTranspose1d conv_transpose1d 1 true,;
    /// Transposed convolution over images: `weight` is `[inputs, outputs / groups, kernel height,
    /// kernel width]`, `bias` is `[outputs]`.
    ///
    /// ```
    /// use futensor::{ConvOptions, Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let options = ConvOptions::default().stride(2).groups(2);
    /// let layer = nn::ConvTranspose2d::new(4, 6, 2, options, &device);
    /// assert_eq!(layer.weight().dims(), [4, 3, 2, 2]);
    /// assert_eq!(layer.forward(&device.ones([1, 4, 8, 8])).dims(), [1, 6, 16, 16]);
    /// ```
    ConvTranspose2d conv_transpose2d 2 true,;
    /// Transposed convolution over volumes: `weight` is `[inputs, outputs / groups, kernel depth,
    /// kernel height, kernel width]`, `bias` is `[outputs]`.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let layer = nn::ConvTranspose3d::new(1, 4, [1, 3, 3], (), &device);
    /// assert_eq!(layer.forward(&device.ones([2, 1, 5, 8, 8])).dims(), [2, 4, 5, 10, 10]);
    /// ```
    ConvTranspose3d conv_transpose3d 3 true,;
}
