//! Scaling of the loss, which keeps small gradients out of the zeros of float16.

use super::state::{State, Taken};
use super::{Optimizer, Step, checked, update};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind};
use crate::nn::values;
use crate::ops::checks::finite::CheckFinite;
use crate::tensor::build::{self, At, found, predicated, predicated_else};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::some_gradients;
use std::panic::Location;
use std::sync::Arc;

/// Multiplies the loss by a factor, and divides the gradients by it. If a gradient is not finite,
/// the step is skipped and the factor falls; after many good steps it rises. The factor is a value
/// on the device, so nothing waits. Numbers and rules are PyTorch's (`torch.amp.GradScaler`).
///
/// A skipped step leaves parameters and moments unchanged, and its [`Step`] has an error that
/// [is not finite](Error::is_not_finite). The first steps of a training are often skipped, until
/// the factor fits: a loss that is a sum needs a smaller one. A gradient that failed for another
/// reason leaves the factor unchanged as well. So does an overflow under
/// [`check_finite`](crate::finite::check_finite), which makes it an error of its op: leave the
/// gradients of a scaled loss unchecked.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::Parameter, optim::{GradScaler, Optimizer, Sgd}};
/// use futensor::mixed::{Half, autocast};
/// let device = Device::cpu();
/// let w = Parameter::new(device.ones([1, 1]));
/// let mut sgd = Sgd::new(vec![w.clone()], 0.5);
/// let mut scaler = GradScaler::new(&device).initial(1024.0);
/// let loss = |x: f64| autocast(Half::F16, || device.full([1, 1], x).matmul(w.value()).sum_all());
/// scaler.minimize(&mut sgd, &loss(1e-6)).await?;
/// let skipped = scaler.minimize(&mut sgd, &loss(60_000.0)).await.unwrap_err();
/// assert!(skipped.is_not_finite());                       // 60,000 * 1,024 is infinite in float16
/// assert_eq!(scaler.factor().item::<f32>().await?, 512.0);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[doc(alias = "amp")]
#[derive(Clone, Debug)]
pub struct GradScaler {
    /// 0-d, float32.
    factor: TensorFuture,
    /// The good steps since the factor has changed; 0-d, int64.
    good: TensorFuture,
    growth: f64,
    backoff: f64,
    interval: u32,
}

impl GradScaler {
    /// A factor of 65,536, which doubles after 2,000 good steps in a row and halves at a bad one.
    #[track_caller]
    pub fn new(device: &Device) -> GradScaler {
        let (factor, good) = (device.full((), 65536.0), device.full((), 0i64));
        GradScaler { factor, good, growth: 2.0, backoff: 0.5, interval: 2000 }
    }

    /// Sets the first factor.
    #[track_caller]
    pub fn initial(mut self, factor: f64) -> GradScaler {
        self.factor = self.factor.device().full_dtype((), factor, DType::F32);
        self
    }

    /// Sets what the factor is multiplied by after `interval` good steps in a row; more than 1.
    pub fn growth(mut self, by: f64, interval: u32) -> GradScaler {
        (self.growth, self.interval) = (by, interval);
        self
    }

    /// Sets what the factor is multiplied by at a bad step; more than 0, and less than 1.
    pub fn backoff(mut self, by: f64) -> GradScaler {
        self.backoff = by;
        self
    }

    /// The present factor, a 0-d value in float32.
    pub fn factor(&self) -> &TensorFuture {
        &self.factor
    }

    /// The factor and the good steps since it has changed, to be saved with the optimizer's state.
    #[doc(alias = "state_dict")]
    pub fn state(&self) -> State {
        vec![("factor".into(), self.factor.clone()), ("good".into(), self.good.clone())]
    }

    /// Restores a [`state`](Self::state).
    ///
    /// # Errors
    /// An entry that is missing, is unknown, or has another shape or type.
    #[doc(alias = "load_state_dict")]
    #[track_caller]
    pub fn load_state(&mut self, state: State) -> Result<(), Error> {
        let mut taken = Taken::new("load_state", &[], state)?;
        let both = taken.take_both("factor", "good")?;
        taken.end()?;
        let wrong = |text: &str| {
            Error::new(ErrorKind::Argument, "load_state", text, build::seen(Location::caller()))
        };
        let Some((factor, good)) = both else { return Err(wrong("factor is missing")) };
        if factor.rank() != 0 || good.rank() != 0 {
            return Err(wrong("factor and good are 0-d values"));
        }
        let device = self.factor.device();
        self.factor = factor.to_device(&device).to_dtype(DType::F32);
        self.good = good.to_device(&device).to_dtype(DType::I64);
        Ok(())
    }

    /// The loss times the factor, whose gradients go to [`unscale`](Self::unscale).
    #[track_caller]
    pub fn scale(&self, loss: &TensorFuture) -> TensorFuture {
        loss * &self.factor
    }

    /// The gradients divided by the factor, for clipping and for the optimizer. If one is not
    /// finite, all of them fail, so that a step along them is skipped. Adapts the factor: call it
    /// once a step, with the gradients of all parameters on the scaler's device.
    ///
    /// With several ranks, sum the gradients over the ranks first: then all of them skip the same
    /// steps.
    ///
    /// # Errors
    /// Failed gradients: a number of the scaler's is out of range, or a gradient is on another
    /// device.
    #[track_caller]
    pub fn unscale(&mut self, gradients: &[Option<TensorFuture>]) -> Vec<Option<TensorFuture>> {
        let at: At = build::seen(Location::caller());
        if let Some(error) = self.error(at) {
            let failed =
                |g: &TensorFuture| build::failed(g.port(), g.node.meta.clone(), error.clone(), at);
            return gradients.iter().map(|g| g.as_ref().map(failed)).collect();
        }
        let _within = build::within("unscale", at);
        let given: Vec<&TensorFuture> = gradients.iter().flatten().collect();
        let Some((first, others)) = given.split_first() else { return gradients.to_vec() };
        let all = others.iter().fold(found(first), |sum, g| sum + found(g));
        let check = build::custom(Arc::new(CheckFinite::of_gradients(given.len())), &[&all], at);
        let inverse = 1.0 / &self.factor;
        self.adapt(&all.eq(0), at);
        let unscaled = |g: &TensorFuture| {
            predicated(&(g.wide() * &inverse).to_dtype(g.dtype()), std::slice::from_ref(&check), at)
        };
        gradients.iter().map(|g| g.as_ref().map(unscaled)).collect()
    }

    /// The next factor, after gradients that are all finite or not.
    fn adapt(&mut self, sound: &TensorFuture, at: At) {
        let (factor, good) = (&self.factor, &self.good);
        let grows = (good + 1).ge(self.interval as i64);
        let next =
            sound.where_cond(grows.where_cond(factor * self.growth, factor), factor * self.backoff);
        let count = sound.where_cond(grows.where_cond(0i64, good + 1), 0i64);
        // A gradient that failed says nothing about the factor.
        let next = predicated_else(&next, factor, sound, at);
        self.good = predicated_else(&count, good, sound, at);
        self.factor = next;
    }

    /// Takes a step along the gradients of a loss that was not scaled yet: [`scale`](Self::scale),
    /// `grad`, [`unscale`](Self::unscale), and the optimizer's step.
    ///
    /// # Errors
    /// As [`Optimizer::minimize`]; an error that is not finite if the step is skipped; and an
    /// argument error for an optimizer that sums over ranks itself.
    #[doc(alias = "step")]
    #[track_caller]
    pub fn minimize(
        &mut self,
        optimizer: &mut (impl Optimizer + ?Sized),
        loss: &TensorFuture,
    ) -> Step {
        let at: At = build::seen(Location::caller());
        if optimizer.sums_over_ranks() {
            let text = "its optimizer sums over ranks: sum the gradients first, then unscale them";
            let error = Error::new(ErrorKind::Argument, "GradScaler", text, at);
            return update::refused(optimizer.parameters(), error, at);
        }
        if let Some(error) = self.error(at) {
            return update::refused(optimizer.parameters(), error, at);
        }
        match some_gradients(&self.scale(loss), &values(optimizer.parameters())) {
            Ok(gradients) => {
                let gradients = self.unscale(&gradients);
                optimizer.step_some(&gradients)
            }
            Err(error) => update::refused(optimizer.parameters(), error, at),
        }
    }

    /// The first number that is out of range.
    fn error(&self, at: At) -> Option<Error> {
        let (growth, backoff) = (self.growth, self.backoff);
        checked(
            "GradScaler",
            &[
                ("growth", growth, growth > 1.0 && growth.is_finite(), "finite, and more than 1"),
                ("backoff", backoff, backoff > 0.0 && backoff < 1.0, "between 0 and 1"),
                ("interval", self.interval as f64, self.interval > 0, "1 or more"),
            ],
            at,
        )
    }
}
