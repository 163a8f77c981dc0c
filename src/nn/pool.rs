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
    /// The largest element under a window.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let x = Device::cpu().ones([1, 3, 8, 8]);
    /// assert_eq!(nn::MaxPool2d::new(2).forward(&x).dims(), [1, 3, 4, 4]);
    /// ```
    MaxPool2d max_pool2d;
    /// The mean under a window.
    AvgPool2d avg_pool2d;
}
