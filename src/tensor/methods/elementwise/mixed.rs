//! Elementwise ops that are composed of the rows of the tables: interpolation, comparison within a
//! tolerance, replacement of what is not finite.

use crate::dtype::DType;
use crate::graph::operation::{Needs, Refusal};
use crate::tensor::build;
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::ruled::ruled;
use crate::tensor::methods::reduce::stats::float;
use crate::tensor::operand::{Operand, OperandRef};
use std::panic::Location;

/// The largest number of a float type.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F16 => 65504.0,
        DType::BF16 => 3.389_531_389_251_535_5e38,
        _ => f32::MAX as f64,
    }
}

/// Composed of other ops.
impl TensorFuture {
    /// `self + weight * (end - self)`, in the form that is exact at both ends; `weight` is a number
    /// or a value.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let (a, b) = (device.full([2], 1.0), device.full([2], 5.0));
    /// assert_eq!(a.lerp(&b, 0.25).to_vec::<f32>().await?, [2.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "mix")]
    #[track_caller]
    pub fn lerp(&self, end: impl AsRef<TensorFuture>, weight: impl Operand) -> TensorFuture {
        let (end, at) = (end.as_ref(), Location::caller());
        if let Err(refusal) = float(self).and_then(|()| float(end)) {
            return build::refused("lerp", self, refusal, at);
        }
        let _within = build::within("lerp", at);
        let dtype = self.dtype().promote_ranked(self.rank(), end.dtype(), end.rank());
        match weight.operand() {
            OperandRef::Scalar(w) => {
                let w = w.as_f64();
                let compute = || {
                    let (a, b) = (self.wide(), end.wide());
                    let y =
                        if w.abs() < 0.5 { (&b - &a) * w + a } else { (&b - a) * (w - 1.0) + b };
                    y.to_dtype(dtype)
                };
                ruled("lerp", &[self, end], Needs::NOTHING, compute, move |call| {
                    call.give(0, |call| call.upstream() * (1.0 - w));
                    call.give(1, |call| call.upstream() * w);
                })
            }
            OperandRef::Tensor(weight) => {
                let dtype = dtype.promote_ranked(self.rank(), weight.dtype(), weight.rank());
                let compute = || {
                    let (a, b, w) = (self.wide(), end.wide(), weight.wide());
                    let near = w.abs().lt(0.5);
                    let part = near.where_cond(&w, &w - 1.0) * (&b - &a);
                    (part + near.where_cond(a, b)).to_dtype(dtype)
                };
                let needs = if weight.is_on_tape() { &[0, 1, 2][..] } else { &[2] };
                let operands = [self, end, weight];
                ruled("lerp", &operands, Needs::inputs(needs), compute, |call| {
                    call.give(0, |call| (1.0 - call.input(2)) * call.upstream());
                    call.give(1, |call| call.input(2) * call.upstream());
                    call.give(2, |call| (call.input(1) - call.input(0)) * call.upstream());
                })
            }
        }
    }

    /// `nan` in place of NaN, `posinf` and `neginf` in place of the infinities: by default 0, and
    /// the largest and the smallest number of the type. Integers and bool are returned unchanged.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![f32::NAN, f32::INFINITY, 2.0], [3]);
    /// assert_eq!(x.nan_to_num(None, None, None).to_vec::<f32>().await?, [0.0, f32::MAX, 2.0]);
    /// assert_eq!(x.nan_to_num(7.0, 9.0, None).to_vec::<f32>().await?, [7.0, 9.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn nan_to_num(
        &self,
        nan: impl Into<Option<f64>>,
        posinf: impl Into<Option<f64>>,
        neginf: impl Into<Option<f64>>,
    ) -> TensorFuture {
        if !self.dtype().is_float() && !self.dtype().is_storage() {
            return self.clone();
        }
        let _within = build::within("nan_to_num", Location::caller());
        let most = largest(self.dtype());
        let (high, low) = (posinf.into().unwrap_or(most), neginf.into().unwrap_or(-most));
        let (nan, is_usual) = (nan.into().unwrap_or(0.0), (high, low) == (most, -most));
        let compute = || {
            let finite = if is_usual && self.dtype().is_float() {
                self.maximum(low).minimum(high)
            } else {
                let below = self.eq(f64::NEG_INFINITY).where_cond(low, self);
                self.eq(f64::INFINITY).where_cond(high, below)
            };
            self.isnan().where_cond(nan, finite)
        };
        let needs = Needs::inputs(&[0]).as_they_are();
        ruled("nan_to_num", &[self], needs, compute, |call| {
            call.give(0, |call| call.input(0).isfinite().where_cond(call.upstream(), 0.0))
        })
    }

    /// True where the values are equal, or differ by at most `atol + rtol * |other|` (PyTorch's
    /// defaults are 1e-8 and 1e-5). NaN is equal to NaN if `equal_nan` says so.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let (a, b) = (device.full([1], 1.0), device.full([1], 1.000001));
    /// assert_eq!(a.isclose(&b, 1e-5, 1e-8, false).to_vec::<bool>().await?, [true]);
    /// assert_eq!(a.isclose(&b, 1e-7, 1e-8, false).to_vec::<bool>().await?, [false]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn isclose(
        &self,
        other: impl AsRef<TensorFuture>,
        rtol: f64,
        atol: f64,
        equal_nan: bool,
    ) -> TensorFuture {
        let (other, at) = (other.as_ref(), Location::caller());
        if !(rtol >= 0.0 && atol >= 0.0) {
            let text = format!("tolerances of {rtol} and {atol}: they are not negative");
            return build::refused("isclose", self, Refusal::argument(text), at);
        }
        if self.dtype() != other.dtype() {
            let text = format!("types differ: {} and {}", self.dtype(), other.dtype());
            return build::refused("isclose", self, Refusal::dtype(text), at);
        }
        let _within = build::within("isclose", at);
        let mut close = self.eq(other);
        if equal_nan {
            close = close.logical_or(self.isnan().logical_and(other.isnan()));
        }
        if rtol == 0.0 && atol == 0.0 || self.dtype() == DType::Bool {
            return close;
        }
        let size =
            if other.dtype().is_float() { other.clone() } else { other.to_dtype(DType::F32) };
        let apart = self.sub(other).abs();
        let allowed = size.mul(rtol).abs() + atol;
        close.logical_or(apart.isfinite().logical_and(apart.le(allowed)))
    }

    /// True, as a 0-d value, if [`isclose`](Self::isclose) is true of all elements.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().full([2], 1.0);
    /// assert!(x.allclose(&(&x + 1e-7), 1e-5, 1e-8, false).item::<bool>().await?);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn allclose(
        &self,
        other: impl AsRef<TensorFuture>,
        rtol: f64,
        atol: f64,
        equal_nan: bool,
    ) -> TensorFuture {
        let _within = build::within("allclose", Location::caller());
        self.isclose(other, rtol, atol, equal_nan).all_all()
    }

    /// Rounds to this number of decimal places, ties to even: PyTorch's `round` with `decimals`. A
    /// negative number rounds to tens, hundreds and so on.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![1.234f32, 15.0], [2]);
    /// assert_eq!(x.round_decimals(2).to_vec::<f32>().await?, [1.23, 15.0]);
    /// assert_eq!(x.round_decimals(-1).to_vec::<f32>().await?, [0.0, 20.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn round_decimals(&self, decimals: i32) -> TensorFuture {
        let at = Location::caller();
        if let Err(refusal) = float(self) {
            return build::refused("round_decimals", self, refusal, at);
        }
        let _within = build::within("round_decimals", at);
        let ten = 10f64.powi(decimals.saturating_abs());
        self.rounded_once(|x| match decimals {
            0 => x.round(),
            1.. => x.mul(ten).round().div(ten),
            _ => x.div(ten).round().mul(ten),
        })
    }
}
