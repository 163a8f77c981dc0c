//! Losses of values beside targets, element by element, and of pairs of vectors.

use super::losses::{LossOptions, reduced};
use crate::graph::operation::Refusal;
use crate::tensor::build::{self, At, mixed};
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::reduce::stats::float;
use std::panic::Location;

/// Half the square up to `delta`, `delta` times the distance less half of `delta` beyond: with the
/// distance cut at `delta`, `cut (d - cut / 2)` is both.
fn huber(d: &TensorFuture, delta: f64) -> TensorFuture {
    let cut = d.clamp(-delta, delta);
    &cut * (d - &cut * 0.5)
}

/// Losses of distances and of distributions.
impl TensorFuture {
    /// Mean absolute difference.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let (x, y) = (device.from_vec(vec![1.0f32, 2.0], [2]), device.full([2], 4.0));
    /// assert_eq!(x.l1_loss(&y, ()).item::<f32>().await?, 2.5);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "L1Loss")]
    #[track_caller]
    pub fn l1_loss(
        &self,
        target: impl AsRef<TensorFuture>,
        options: impl Into<LossOptions>,
    ) -> TensorFuture {
        self.apart("l1_loss", target.as_ref(), options.into(), Location::caller(), |d| d.abs())
    }

    /// Half the squared difference over `beta` where the difference is below `beta`, the difference
    /// less half of `beta` elsewhere (Girshick 2015, arXiv:1504.08083).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Reduction};
    /// let device = Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 4.0], [2]);
    /// let loss = x.smooth_l1_loss(device.zeros([2]), 2.0, Reduction::None);
    /// assert_eq!(loss.to_vec::<f32>().await?, [0.25, 3.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "SmoothL1Loss")]
    #[track_caller]
    pub fn smooth_l1_loss(
        &self,
        target: impl AsRef<TensorFuture>,
        beta: f64,
        options: impl Into<LossOptions>,
    ) -> TensorFuture {
        let at = Location::caller();
        if beta.is_nan() || beta < 0.0 {
            let refusal = Refusal::argument(format!("a beta of {beta} is negative"));
            return build::refused("smooth_l1_loss", self, refusal, at);
        }
        self.apart("smooth_l1_loss", target.as_ref(), options.into(), at, |d| {
            // Below, its reciprocal is infinite in float32, and the loss is the distance.
            if beta < f32::MIN_POSITIVE as f64 { d.abs() } else { huber(&d, beta) * (1.0 / beta) }
        })
    }

    /// Half the squared difference up to `delta`, `delta` times the difference less half of `delta`
    /// beyond (Huber 1964).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Reduction};
    /// let device = Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 4.0], [2]);
    /// let loss = x.huber_loss(device.zeros([2]), 2.0, Reduction::None);
    /// assert_eq!(loss.to_vec::<f32>().await?, [0.5, 6.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "HuberLoss")]
    #[track_caller]
    pub fn huber_loss(
        &self,
        target: impl AsRef<TensorFuture>,
        delta: f64,
        options: impl Into<LossOptions>,
    ) -> TensorFuture {
        let at = Location::caller();
        if delta.is_nan() || delta <= 0.0 {
            let refusal = Refusal::argument(format!("a delta of {delta} is not positive"));
            return build::refused("huber_loss", self, refusal, at);
        }
        self.apart("huber_loss", target.as_ref(), options.into(), at, |d| huber(&d, delta))
    }

    /// A loss of the differences from the targets.
    #[track_caller]
    fn apart(
        &self,
        name: &'static str,
        target: &TensorFuture,
        options: LossOptions,
        at: At,
        loss: impl FnOnce(TensorFuture) -> TensorFuture,
    ) -> TensorFuture {
        if let Some(x) = mixed::widened(self, at) {
            return x.apart(name, target, options, at, loss);
        }
        if let Err(refusal) = float(self).and_then(|()| float(target)) {
            return build::refused(name, self, refusal, at);
        }
        let _within = build::within(name, at);
        let dtype = self.dtype().promote_ranked(self.rank(), target.dtype(), target.rank());
        reduced(&loss(self.wide() - target.wide()), options.reduction, dtype)
    }

    /// Kullback-Leibler divergence of these log probabilities from a target distribution:
    /// `target * (log target - self)`. With `log_target` the targets are log probabilities too. The
    /// sum over the batch, divided by its size, is PyTorch's `batchmean`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Reduction};
    /// let device = Device::cpu();
    /// let (x, target) = (device.full([2], 0.5).log(), device.from_vec(vec![1.0f32, 0.0], [2]));
    /// let loss = x.kl_div(&target, false, Reduction::Sum);
    /// assert!((loss.item::<f32>().await? - 2f32.ln()).abs() < 1e-6);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "KLDivLoss")]
    #[track_caller]
    pub fn kl_div(
        &self,
        target: impl AsRef<TensorFuture>,
        log_target: bool,
        options: impl Into<LossOptions>,
    ) -> TensorFuture {
        let (target, options, at): (_, _, At) =
            (target.as_ref(), options.into(), Location::caller());
        if let Some(x) = mixed::widened(self, at) {
            return x.kl_div(target, log_target, options);
        }
        if let Err(refusal) = float(self).and_then(|()| float(target)) {
            return build::refused("kl_div", self, refusal, at);
        }
        let _within = build::within("kl_div", at);
        let dtype = self.dtype().promote_ranked(self.rank(), target.dtype(), target.rank());
        let (x, t) = (self.wide(), target.wide());
        let loss = match log_target {
            true => t.exp() * (t - x),
            false => t.xlogy(&t) - &t * x,
        };
        reduced(&loss, options.reduction, dtype)
    }

    /// Binary cross entropy of these probabilities with targets from 0 to 1; logarithms are at
    /// least -100 and have a slope of 1e12 there, as in PyTorch.
    /// [`bce_with_logits`](Self::bce_with_logits) is exact. A weight is an option.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![0.5f32, 0.0], [2]);
    /// let loss = x.binary_cross_entropy(device.ones([2]), ());
    /// assert!((loss.item::<f32>().await? - (2f32.ln() + 100.0) / 2.0).abs() < 1e-5);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "BCELoss")]
    #[track_caller]
    pub fn binary_cross_entropy(
        &self,
        target: impl AsRef<TensorFuture>,
        options: impl Into<LossOptions>,
    ) -> TensorFuture {
        let (target, options, at): (_, _, At) =
            (target.as_ref(), options.into(), Location::caller());
        if let Some(x) = mixed::widened(self, at) {
            return x.binary_cross_entropy(target, options);
        }
        let checked = float(self).and_then(|()| match target.shape() == self.shape() {
            true => float(target),
            false => {
                Err(Refusal::shape(format!("targets of {} for {}", target.shape(), self.shape())))
            }
        });
        if let Err(refusal) = checked {
            return build::refused("binary_cross_entropy", self, refusal, at);
        }
        let _within = build::within("binary_cross_entropy", at);
        let (x, t) = (self.wide(), target.wide());
        // Where a logarithm is held at -100 its slope is that of PyTorch's loss, 1e12: a zero would
        // keep a share of 0 that should be 1 for ever.
        let (low, high) = (x.log().le(-100.0), (-&x).log1p().le(-100.0));
        let log_x = low.where_cond(&x * 1e12 - 100.0, low.where_cond(1.0, &x).log());
        let other = 1.0 - &x;
        let log_other = high.where_cond(other * 1e12 - 100.0, high.where_cond(0.0, -&x).log1p());
        let mut loss = (&t - 1.0) * log_other - t * log_x;
        if let Some(weight) = &options.weight {
            let weight = weight.to_dtype(loss.dtype());
            loss = loss * weight;
        }
        reduced(&loss, options.reduction, self.dtype())
    }

    /// `1 - cos` of two vectors that belong together (a target of 1), `cos - margin` or 0 of two
    /// that do not (-1). The vectors are rows `[batch, width]`, or one pair `[width]`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 0.0, 0.0, 2.0], [2, 2]);
    /// let target = device.from_vec(vec![1.0f32, -1.0], [2]);
    /// let loss = x.cosine_embedding_loss(&x, &target, 0.5, ());
    /// assert!((loss.item::<f32>().await? - 0.25).abs() < 1e-6);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "CosineEmbeddingLoss")]
    #[track_caller]
    pub fn cosine_embedding_loss(
        &self,
        other: impl AsRef<TensorFuture>,
        target: impl AsRef<TensorFuture>,
        margin: f64,
        options: impl Into<LossOptions>,
    ) -> TensorFuture {
        let (other, target) = (other.as_ref(), target.as_ref());
        let (options, at): (LossOptions, At) = (options.into(), Location::caller());
        if let Some(x) = mixed::widened(self, at) {
            return x.cosine_embedding_loss(other, target, margin, options);
        }
        let checked = float(self).and_then(|()| float(other)).and_then(|()| {
            let batch = match (self.dims(), other.dims()) {
                (&[_], &[_]) => self.shape().is(other.shape()).then_some(&[][..]),
                (&[_, _], &[_, _]) if self.shape() == other.shape() => Some(&self.dims()[..1]),
                _ => None,
            };
            match batch {
                Some(batch) if target.dims() == batch => Ok(()),
                _ => Err(Refusal::shape(format!(
                    "targets of {} for {} and {}",
                    target.shape(),
                    self.shape(),
                    other.shape()
                ))),
            }
        });
        if let Err(refusal) = checked {
            return build::refused("cosine_embedding_loss", self, refusal, at);
        }
        let _within = build::within("cosine_embedding_loss", at);
        let dtype = self.dtype().promote(other.dtype());
        let (x, y) = (self.wide(), other.wide());
        let length = |x: &TensorFuture| x.square().sum(-1) + 1e-12;
        let cosine = (&x * &y).sum(-1) / (length(&x) * length(&y)).sqrt();
        let apart = (&cosine - margin).clamp_min(0.0);
        let loss = target.eq(1).where_cond(1.0 - cosine, target.eq(-1).where_cond(apart, 0.0));
        reduced(&loss, options.reduction, dtype)
    }
}
