//! Element types.

use crate::dtype::DType;
use crate::graph::node::Op;
use crate::graph::operation::Meta;
use crate::tensor::build::{self, At};
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// # Types and devices
impl TensorFuture {
    /// Converts to another element type; a value that already has the type is returned as it is.
    /// Floats are truncated to integers: int32 and int64 saturate; uint8 takes the low eight bits
    /// of the int64 result, as in any conversion to a narrower integer (PyTorch's `c10::convert`
    /// goes through int64 as well). The conversion to bool is `!= 0`.
    ///
    /// [Types for storage](crate::DType#types-for-storage) follow the same rules. float8 is rounded
    /// to nearest, ties to even, and a number that is too large becomes 448 in float8_e4m3fn,
    /// infinity in float8_e5m2. A gradient through float8 is rounded to it, and none goes through
    /// integers.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{DType, Device};
    /// let x = Device::cpu().from_vec(vec![1.9f32, -0.5], [2]);
    /// assert_eq!(x.to_dtype(DType::I32).to_vec::<i32>().await?, [1, 0]);
    /// let y = Device::cpu().from_vec(vec![-1.0f32, 258.0], [2]);
    /// assert_eq!(y.to_dtype(DType::U8).to_vec::<u8>().await?, [255, 2]);
    /// let stored = (&y * 0.3).to_dtype(DType::F8E4M3);
    /// let message = (&stored + 1.0).error().unwrap().message().to_owned();
    /// assert_eq!(
    ///     message,
    ///     "float8_e4m3fn is for storage and has no arithmetic: convert with to_dtype"
    /// );
    /// let back = stored.to_dtype(DType::F32);
    /// assert_eq!(back.to_vec::<f32>().await?, [-0.3125, 80.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("to", "float", "half", "cast", "double", "long", "astype"))]
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> TensorFuture {
        self.cast(dtype, Location::caller())
    }

    /// [`to_dtype`](Self::to_dtype) for a caller whose line is known.
    pub(crate) fn cast(&self, dtype: DType, at: At) -> TensorFuture {
        if dtype == self.dtype() {
            return self.clone();
        }
        let rule = || Ok(Meta { shape: self.shape().clone(), dtype });
        build::apply(Op::Cast, &[self], rule, at)
    }

    /// Applies `f`; halves are computed in float32 and rounded once.
    #[track_caller]
    pub(crate) fn rounded_once(
        &self,
        f: impl FnOnce(&TensorFuture) -> TensorFuture,
    ) -> TensorFuture {
        match self.dtype().is_half() {
            true => f(&self.wide()).to_dtype(self.dtype()),
            false => f(self),
        }
    }

    /// The value in its compute type: halves in float32.
    #[track_caller]
    pub(crate) fn wide(&self) -> TensorFuture {
        self.to_dtype(self.dtype().wide())
    }
}
