//! Maximum and minimum with an initial value, for reductions that may be empty.

use crate::dtype::{DType, Scalar};
use crate::graph::operation::Refusal;
use crate::op::{BinaryOp, ReduceOp};
use crate::tensor::build;
use crate::tensor::dims::Dims;
use crate::tensor::future::TensorFuture;
use std::panic::Location;

const MAX: (ReduceOp, BinaryOp) = (ReduceOp::Max, BinaryOp::Maximum);
const MIN: (ReduceOp, BinaryOp) = (ReduceOp::Min, BinaryOp::Minimum);

/// Reductions with an initial value.
impl TensorFuture {
    /// The largest of `initial` and the elements over dimensions; NaN if an element is NaN. An
    /// empty reduction gives `initial`. NumPy's `initial`, converted to this value's type; an
    /// integer type takes the nearest number in its range.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// assert_eq!(device.zeros([2, 0]).max_initial(1, 7).to_vec::<f32>().await?, [7.0, 7.0]);
    /// let x = device.from_vec(vec![5, 9], [2]);
    /// assert_eq!(x.max_initial(0, i64::MIN).item::<i32>().await?, x.max(0).item::<i32>().await?);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn max_initial(&self, dims: impl Dims, initial: impl Into<Scalar>) -> TensorFuture {
        self.beside_initial("max_initial", MAX, Some(&dims.dims()), false, initial.into())
    }

    /// As [`max_initial`](Self::max_initial), with the dimensions kept at size 1.
    #[track_caller]
    pub fn max_initial_keepdim(&self, dims: impl Dims, initial: impl Into<Scalar>) -> TensorFuture {
        self.beside_initial("max_initial_keepdim", MAX, Some(&dims.dims()), true, initial.into())
    }

    /// As [`max_initial`](Self::max_initial) over everything: a 0-d result.
    #[track_caller]
    pub fn max_initial_all(&self, initial: impl Into<Scalar>) -> TensorFuture {
        self.beside_initial("max_initial_all", MAX, None, false, initial.into())
    }

    /// The smallest of `initial` and the elements over dimensions; NaN if an element is NaN. An
    /// empty reduction gives `initial`. NumPy's `initial`, converted to this value's type; an
    /// integer type takes the nearest number in its range.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// assert_eq!(device.zeros([2, 0]).min_initial(1, 7).to_vec::<f32>().await?, [7.0, 7.0]);
    /// let x = device.from_vec(vec![5, 9], [2]);
    /// assert_eq!(x.min_initial(0, i64::MAX).item::<i32>().await?, x.min(0).item::<i32>().await?);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn min_initial(&self, dims: impl Dims, initial: impl Into<Scalar>) -> TensorFuture {
        self.beside_initial("min_initial", MIN, Some(&dims.dims()), false, initial.into())
    }

    /// As [`min_initial`](Self::min_initial), with the dimensions kept at size 1.
    #[track_caller]
    pub fn min_initial_keepdim(&self, dims: impl Dims, initial: impl Into<Scalar>) -> TensorFuture {
        self.beside_initial("min_initial_keepdim", MIN, Some(&dims.dims()), true, initial.into())
    }

    /// As [`min_initial`](Self::min_initial) over everything: a 0-d result.
    #[track_caller]
    pub fn min_initial_all(&self, initial: impl Into<Scalar>) -> TensorFuture {
        self.beside_initial("min_initial_all", MIN, None, false, initial.into())
    }

    #[track_caller]
    fn beside_initial(
        &self,
        name: &'static str,
        (op, join): (ReduceOp, BinaryOp),
        dims: Option<&[isize]>,
        keepdim: bool,
        initial: Scalar,
    ) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within(name, at);
        let initial = match held(initial, self.dtype()) {
            Ok(initial) => initial,
            Err(refusal) => return build::refused(name, self, refusal, at),
        };
        // An empty value is reduced only for the shape of the result, so `any` will do.
        let empty = self.numel() == 0;
        let reduced =
            build::reduce(if empty { ReduceOp::Any } else { op }, self, dims, keepdim, at);
        if reduced.error().is_some() {
            return reduced;
        }
        let initial = self.device().full_dtype(reduced.dims(), initial, self.dtype());
        if empty { initial } else { build::binary(join, &reduced, &initial, at) }
    }
}

/// A number converted to a type: for integers, the nearest number in range.
fn held(number: Scalar, dtype: DType) -> Result<Scalar, Refusal> {
    let (low, high) = match dtype {
        DType::I64 => (i64::MIN, i64::MAX),
        DType::I32 => (i32::MIN as i64, i32::MAX as i64),
        DType::U8 => (0, 255),
        DType::Bool => (0, 1),
        _ => return Ok(number),
    };
    match number {
        Scalar::Float(x) if x.is_nan() => {
            Err(Refusal::argument(format!("NaN is not a valid initial value of {dtype}")))
        }
        Scalar::Float(x) => Ok(Scalar::Int((x as i64).clamp(low, high))),
        Scalar::Int(x) => Ok(Scalar::Int(x.clamp(low, high))),
        Scalar::Bool(x) => Ok(Scalar::Bool(x)),
    }
}
