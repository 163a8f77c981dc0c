//! Pooling layers.

use super::module::Module;
use crate::tensor::future::TensorFuture;
use crate::tensor::pool::PoolOptions;

macro_rules! pools {
    ($($(#[$doc:meta])* $Name:ident $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $Name(PoolOptions);

        impl $Name {
            /// A layer with this window: a size, or [`PoolOptions`].
            pub fn new(window: impl Into<PoolOptions>) -> $Name {
                $Name(window.into())
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
pools! {
    /// The largest element under a window over one dimension.
    MaxPool1d max_pool1d;
    /// The largest element under a window over three dimensions.
    MaxPool3d max_pool3d;
    /// The mean under a window over one dimension.
    AvgPool1d avg_pool1d;
    /// The mean under a window over three dimensions.
    AvgPool3d avg_pool3d;
    /// The largest element under a window.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let x = Device::cpu().ones([1, 3, 8, 8]);
    /// assert_eq!(nn::MaxPool2d::new(2).forward(&x).dims(), [1, 3, 4, 4]);
    /// ```
    MaxPool2d max_pool2d;
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
    AvgPool2d avg_pool2d;
}
