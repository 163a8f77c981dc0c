//! Products of matrices.

use crate::dtype::Scalar;
use crate::graph::operation::Refusal;
use crate::ops::products::matmul::MatMul;
use crate::ops::products::turned::Turned;
use crate::shape::Shape;
use crate::tensor::build::{self, At, mixed};
use crate::tensor::future::TensorFuture;
use std::panic::Location;
use std::sync::Arc;

/// # Products
///
/// Nothing waits.
impl TensorFuture {
    /// Matrix product, as PyTorch's `matmul`: over the last two dimensions, with the others
    /// broadcast; a vector is a row on the left and a column on the right.
    ///
    /// Halves are accumulated in float32 and rounded once at the end. Both operands have the same
    /// type.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let a = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    /// assert_eq!(a.matmul(&a).to_vec::<f32>().await?, [7.0, 10.0, 15.0, 22.0]);
    /// assert!(a.matmul(&device.ones([3])).error().unwrap().is_shape());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "mv")]
    #[track_caller]
    pub fn matmul(&self, other: impl AsRef<TensorFuture>) -> TensorFuture {
        let (other, at): (_, At) = (other.as_ref(), Location::caller());
        if let Some([Some(a), Some(b)]) = mixed::narrowed([Some(self), Some(other)], at) {
            return a.matmul(b);
        }
        build::custom(Arc::new(MatMul::default()), &[self, other], at)
    }

    /// [`matmul`](Self::matmul) with either operand optionally transposed in its last two
    /// dimensions.
    #[track_caller]
    pub(crate) fn matmul_turned(&self, a: bool, other: &TensorFuture, b: bool) -> TensorFuture {
        self.multiplied(a, other, b, MatMul::default())
    }

    #[track_caller]
    fn multiplied(&self, a: bool, other: &TensorFuture, b: bool, of: MatMul) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("matmul", at);
        let op = Turned { a, b, of };
        if self.rank() == 2 && other.rank() == 2 && (a || b) && self.port().runner.has_kernel(&op) {
            return build::custom(Arc::new(op), &[self, other], at);
        }
        let turned =
            |x: &TensorFuture, turn: bool| if turn { x.transpose(-1, -2) } else { x.clone() };
        build::custom(Arc::new(of), &[&turned(self, a), &turned(other, b)], at)
    }

    /// `self weight^T + bias`: `self` is `[..., inputs]`, `weight` `[outputs, inputs]`, `bias`
    /// `[outputs]`. [`nn::Linear`](crate::nn::Linear) computes this. It is faster than
    /// [`matmul`](Self::matmul) by a transposed weight, since no view is made. Halves are rounded
    /// once, after the bias.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let weight = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    /// let y = device.ones([1, 2]).linear(&weight, Some(&device.full([2], 10)));
    /// assert_eq!(y.to_vec::<f32>().await?, [13.0, 17.0]);
    /// let wrong = device.ones([1, 3]).linear(&weight, None).error().unwrap();
    /// assert_eq!((wrong.op(), wrong.message()), ("linear", "[1, 3] by a weight of [2, 2]"));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn linear(
        &self,
        weight: impl AsRef<TensorFuture>,
        bias: Option<&TensorFuture>,
    ) -> TensorFuture {
        let (weight, at): (_, At) = (weight.as_ref(), Location::caller());
        let narrowed = mixed::narrowed([Some(self), Some(weight), bias], at);
        if let Some([Some(x), Some(weight), bias]) = narrowed {
            return x.linear(weight, bias.as_ref());
        }
        let fits = matches!((self.dims(), weight.dims()), (&[.., k], &[_, inputs]) if k == inputs);
        if !fits && self.error().is_none() && weight.error().is_none() {
            // The shapes as the caller gave them: the weight is transposed internally.
            let text = format!("{} by a weight of {}", self.shape(), weight.shape());
            return build::refused("linear", self, Refusal::shape(text), at);
        }
        let _within = build::within("linear", at);
        let Some(bias) = bias else { return self.matmul_turned(false, weight, true) };
        let y = self.multiplied(false, weight, true, MatMul { wide: true }) + bias;
        match self.dtype().is_half() {
            true => y.to_dtype(self.dtype().promote_ranked(self.rank(), bias.dtype(), bias.rank())),
            false => y,
        }
    }

    /// The product of two matrices `[m, k]` and `[k, n]`; for other shapes use
    /// [`matmul`](Self::matmul).
    ///
    /// ```
    /// let device = futensor::Device::cpu();
    /// assert_eq!(device.ones([3, 4]).mm(device.ones([4, 5])).dims(), [3, 5]);
    /// assert!(device.ones([2, 3, 4]).mm(device.ones([4, 5])).error().unwrap().is_shape());
    /// ```
    #[track_caller]
    pub fn mm(&self, other: impl AsRef<TensorFuture>) -> TensorFuture {
        let (other, at): (_, At) = (other.as_ref(), Location::caller());
        if let Some([Some(a), Some(b)]) = mixed::narrowed([Some(self), Some(other)], at) {
            return a.mm(b);
        }
        let _within = build::within("mm", at);
        match (self.dims(), other.dims()) {
            (&[_, k], &[k2, _]) if k == k2 => {
                build::custom(Arc::new(MatMul::default()), &[self, other], at)
            }
            (a, b) => build::refused("mm", self, Refusal::shape(format!("{a:?} and {b:?}")), at),
        }
    }

    /// The matrix products of two batches `[batch, m, k]` and `[batch, k, n]`, without
    /// broadcasting; for other shapes use [`matmul`](Self::matmul).
    ///
    /// ```
    /// let device = futensor::Device::cpu();
    /// assert_eq!(device.ones([2, 3, 4]).bmm(device.ones([2, 4, 5])).dims(), [2, 3, 5]);
    /// assert!(device.ones([2, 3, 4]).bmm(device.ones([1, 4, 5])).error().unwrap().is_shape());
    /// ```
    #[track_caller]
    pub fn bmm(&self, other: impl AsRef<TensorFuture>) -> TensorFuture {
        let (other, at): (_, At) = (other.as_ref(), Location::caller());
        if let Some([Some(a), Some(b)]) = mixed::narrowed([Some(self), Some(other)], at) {
            return a.bmm(b);
        }
        let _within = build::within("bmm", at);
        match (self.dims(), other.dims()) {
            (&[b, _, k], &[b2, k2, _]) if b == b2 && k == k2 => {
                build::custom(Arc::new(MatMul::default()), &[self, other], at)
            }
            (a, b) => build::refused("bmm", self, Refusal::shape(format!("{a:?} and {b:?}")), at),
        }
    }

    /// `beta * self + alpha * (a b)`, with `self` broadcast to the product of the two matrices. If
    /// `beta` is 0, `self` is ignored, even NaN in it. Halves are rounded once, at
    /// the end.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let (a, b) = (device.ones([1, 3]), device.ones([3, 2]));
    /// let y = device.from_vec(vec![10.0f32, 20.0], [2]).addmm(&a, &b, 1.0, 2.0);
    /// assert_eq!(y.to_vec::<f32>().await?, [16.0, 26.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn addmm(
        &self,
        a: impl AsRef<TensorFuture>,
        b: impl AsRef<TensorFuture>,
        beta: impl Into<Scalar>,
        alpha: impl Into<Scalar>,
    ) -> TensorFuture {
        let given = [a.as_ref(), b.as_ref()];
        self.beside_product("addmm", 2, given, [beta.into(), alpha.into()], Location::caller())
    }

    /// [`addmm`](Self::addmm) of two batches of matrices: `beta * self + alpha * (a b)`, with
    /// `self` broadcast to the products.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let (a, b) = (device.ones([2, 1, 3]), device.ones([2, 3, 1]));
    /// let y = device.full([1], 10.0).baddbmm(&a, &b, 1.0, 2.0);
    /// assert_eq!(y.to_vec::<f32>().await?, [16.0, 16.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn baddbmm(
        &self,
        a: impl AsRef<TensorFuture>,
        b: impl AsRef<TensorFuture>,
        beta: impl Into<Scalar>,
        alpha: impl Into<Scalar>,
    ) -> TensorFuture {
        let given = [a.as_ref(), b.as_ref()];
        self.beside_product("baddbmm", 3, given, [beta.into(), alpha.into()], Location::caller())
    }

    /// [`addmm`](Self::addmm) of a matrix and a vector: `beta * self + alpha * (matrix vector)`,
    /// with `self` broadcast to the product.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let y = device.full([2], 10.0).addmv(device.ones([2, 3]), device.ones([3]), 1.0, 2.0);
    /// assert_eq!(y.to_vec::<f32>().await?, [16.0, 16.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn addmv(
        &self,
        matrix: impl AsRef<TensorFuture>,
        vector: impl AsRef<TensorFuture>,
        beta: impl Into<Scalar>,
        alpha: impl Into<Scalar>,
    ) -> TensorFuture {
        let (matrix, vector, at): (_, _, At) =
            (matrix.as_ref(), vector.as_ref(), Location::caller());
        let narrowed = mixed::narrowed([Some(self), Some(matrix), Some(vector)], at);
        if let Some([Some(own), Some(matrix), Some(vector)]) = narrowed {
            return own.addmv(matrix, vector, beta, alpha);
        }
        if vector.rank() != 1 || matrix.rank() != 2 || self.rank() > 1 {
            let text = format!(
                "{} and the product of {} and {}",
                self.shape(),
                matrix.shape(),
                vector.shape()
            );
            return build::refused("addmv", self, Refusal::shape(text), at);
        }
        let _within = build::within("addmv", at);
        let (own, given) = (self.unsqueeze(-1), [matrix, &vector.unsqueeze(1)]);
        own.beside_product("addmv", 2, given, [beta.into(), alpha.into()], at).squeeze(1)
    }

    #[track_caller]
    fn beside_product(
        &self,
        name: &'static str,
        rank: usize,
        [a, b]: [&TensorFuture; 2],
        [beta, alpha]: [Scalar; 2],
        at: At,
    ) -> TensorFuture {
        let narrowed = mixed::narrowed([Some(self), Some(a), Some(b)], at);
        if let Some([Some(own), Some(a), Some(b)]) = narrowed {
            return own.beside_product(name, rank, [&a, &b], [beta, alpha], at);
        }
        let refuse = |refusal| build::refused(name, self, refusal, at);
        let (&[.., m, k], &[.., k2, n]) = (a.dims(), b.dims()) else {
            return refuse(Refusal::shape(format!(
                "{} and {}: not two matrices",
                a.shape(),
                b.shape()
            )));
        };
        let ranked = a.rank() == rank && b.rank() == rank;
        let batches = (&a.dims()[..a.rank() - 2], &b.dims()[..b.rank() - 2]);
        let product: Shape = [batches.0, &[m, n]].concat().into();
        if !ranked
            || batches.0 != batches.1
            || k != k2
            || self.shape().broadcast(&product) != Some(product)
        {
            let text =
                format!("{} and the product of {} and {}", self.shape(), a.shape(), b.shape());
            return refuse(Refusal::shape(text));
        }
        let dtype = self.dtype();
        if a.dtype() != dtype || b.dtype() != dtype {
            let text = format!("types differ: {dtype}, {} and {}", a.dtype(), b.dtype());
            return refuse(Refusal::dtype(text));
        }
        if !dtype.is_float()
            && [beta, alpha].iter().any(|s| matches!(s, Scalar::Float(x) if x.fract() != 0.0))
        {
            return refuse(Refusal::argument(format!(
                "factors of {beta} and {alpha} beside {dtype}"
            )));
        }
        // Factors are converted to integers, so that integers stay integers.
        let factor = |s: Scalar| if dtype.is_float() { s } else { Scalar::Int(s.as_i64()) };
        let is = |s: Scalar, x: f64| s.as_f64() == x;
        let is_product = is(alpha, 1.0) && is(beta, 0.0);
        let mut y = build::custom(Arc::new(MatMul { wide: !is_product }), &[a, b], at);
        if !is(alpha, 1.0) {
            y = y * factor(alpha);
        }
        let y = match () {
            () if is(beta, 0.0) => y,
            () if is(beta, 1.0) => y + self,
            () => y + self.wide().mul(factor(beta)),
        };
        y.to_dtype(dtype)
    }
}
