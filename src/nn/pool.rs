//! Pooling and resizing layers.

use super::module::Module;
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::windows::interpolate::InterpolateOptions;
use crate::tensor::methods::windows::pool::PoolOptions;
use smallvec::SmallVec;

macro_rules! layers {
    ($($(#[$doc:meta])* $Name:ident($Options:ident) $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $Name($Options);

        impl $Name {
            #[doc = concat!("A layer with these [`", stringify!($Options), "`], or a size.")]
            pub fn new(options: impl Into<$Options>) -> $Name {
                $Name(options.into())
            }
        }

        impl Module for $Name {
            #[track_caller]
            fn forward(&self, x: &TensorFuture) -> TensorFuture {
                x.$method(self.0.clone())
            }
        }
    )*};
}
layers! {
    /// The largest element under a window over one dimension.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let x = Device::cpu().ones([1, 3, 8]);
    /// assert_eq!(nn::MaxPool1d::new(2).forward(&x).dims(), [1, 3, 4]);
    /// ```
    MaxPool1d(PoolOptions) max_pool1d;
    /// The largest element under a window.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let x = Device::cpu().ones([1, 3, 8, 8]);
    /// assert_eq!(nn::MaxPool2d::new(2).forward(&x).dims(), [1, 3, 4, 4]);
    /// ```
    MaxPool2d(PoolOptions) max_pool2d;
    /// The largest element under a window over three dimensions.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let x = Device::cpu().ones([1, 3, 4, 8, 8]);
    /// assert_eq!(nn::MaxPool3d::new([1, 2, 2]).forward(&x).dims(), [1, 3, 4, 4, 4]);
    /// ```
    MaxPool3d(PoolOptions) max_pool3d;
    /// The mean under a window over one dimension.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let x = Device::cpu().ones([1, 3, 8]);
    /// assert_eq!(nn::AvgPool1d::new(4).forward(&x).dims(), [1, 3, 2]);
    /// ```
    AvgPool1d(PoolOptions) avg_pool1d;
    /// The mean under a window.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, PoolOptions, nn, nn::Module};
    /// let x = Device::cpu().from_vec(vec![1.0f32, 2.0, 3.0, 6.0], [1, 1, 2, 2]);
    /// assert_eq!(nn::AvgPool2d::new(2).forward(&x).to_vec::<f32>().await?, [3.0]);
    /// let rows = nn::AvgPool2d::new(PoolOptions::new([1, 2]));
    /// assert_eq!(rows.forward(&x).to_vec::<f32>().await?, [1.5, 4.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    AvgPool2d(PoolOptions) avg_pool2d;
    /// The mean under a window over three dimensions.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let x = Device::cpu().ones([1, 3, 4, 8, 8]);
    /// assert_eq!(nn::AvgPool3d::new(4).forward(&x).dims(), [1, 3, 1, 2, 2]);
    /// ```
    AvgPool3d(PoolOptions) avg_pool3d;
    /// Resizes, by [`interpolate`](TensorFuture::interpolate).
    ///
    /// ```
    /// use futensor::{Device, InterpolateMode, InterpolateOptions, nn, nn::Module};
    /// let x = Device::cpu().ones([1, 3, 8, 8]);
    /// let twice = InterpolateOptions::scale(2.0).mode(InterpolateMode::Linear);
    /// assert_eq!(nn::Upsample::new(twice).forward(&x).dims(), [1, 3, 16, 16]);
    /// ```
    Upsample(InterpolateOptions) interpolate;
}

macro_rules! adaptive {
    ($($Name:ident $method:ident $inputs:literal $size:literal $outputs:literal;)*) => {$(
        #[doc = concat!("[`", stringify!($method), "`](TensorFuture::", stringify!($method), ") ")]
        #[doc = "as a layer."]
        ///
        /// ```
        /// use futensor::{Device, nn, nn::Module};
        #[doc = concat!("let x = Device::cpu().ones(", $inputs, ");")]
        #[doc = concat!("let pool = nn::", stringify!($Name), "::new(", $size, ");")]
        #[doc = concat!("assert_eq!(pool.forward(&x).dims(), ", $outputs, ");")]
        /// ```
        #[derive(Clone, Debug)]
        pub struct $Name(SmallVec<[isize; 8]>);

        impl $Name {
            /// A layer to this size: one number, or one for each spatial dimension.
            pub fn new(size: impl Dims) -> $Name {
                $Name(size.dims())
            }
        }

        impl Module for $Name {
            #[track_caller]
            fn forward(&self, x: &TensorFuture) -> TensorFuture {
                x.$method(&self.0[..])
            }
        }
    )*};
}
adaptive! {
    AdaptiveAvgPool1d adaptive_avg_pool1d "[2, 3, 8]" "5" "[2, 3, 5]";
    AdaptiveAvgPool2d adaptive_avg_pool2d "[2, 3, 8, 7]" "[1, 2]" "[2, 3, 1, 2]";
    AdaptiveAvgPool3d adaptive_avg_pool3d "[2, 3, 8, 7, 4]" "2" "[2, 3, 2, 2, 2]";
    AdaptiveMaxPool1d adaptive_max_pool1d "[2, 3, 8]" "5" "[2, 3, 5]";
    AdaptiveMaxPool2d adaptive_max_pool2d "[2, 3, 8, 7]" "[1, 2]" "[2, 3, 1, 2]";
    AdaptiveMaxPool3d adaptive_max_pool3d "[2, 3, 8, 7, 4]" "2" "[2, 3, 2, 2, 2]";
}

macro_rules! pixels {
    ($($Name:ident $method:ident;)*) => {$(
        #[doc = concat!("[`", stringify!($method), "`](TensorFuture::", stringify!($method), ") ")]
        #[doc = "by a factor, as a layer."]
        #[derive(Clone, Copy, Debug)]
        pub struct $Name(pub usize);

        impl Module for $Name {
            #[track_caller]
            fn forward(&self, x: &TensorFuture) -> TensorFuture {
                x.$method(self.0)
            }
        }
    )*};
}
pixels! {
    PixelShuffle pixel_shuffle;
    PixelUnshuffle pixel_unshuffle;
}
