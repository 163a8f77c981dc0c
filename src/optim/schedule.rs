//! Learning rate schedules: pure functions of the step.
//!
//! If a number is invalid (a rate or a factor that is negative or not finite), the rate is NaN from
//! the first step on, and an optimizer refuses to step with it: see
//! [`Optimizer::error`](super::Optimizer::error).

use super::is_amount;
#[cfg(feature = "serde")]
use crate::configuration::at_least_one;

/// The rate of a schedule with these numbers.
fn sound(lr: f64, others: &[f64]) -> f64 {
    if is_amount(lr) && others.iter().all(|&n| is_amount(n)) { lr } else { f64::NAN }
}

/// A learning rate for each step, counted from 0. With invalid numbers the rate is NaN at every
/// step, which optimizers refuse.
///
/// ```
/// use futensor::optim::{Cosine, Schedule, StepDecay, Warmup};
/// assert_eq!(StepDecay::new(1.0, 10, 0.5).lr(25), 0.25);
/// let schedule = Warmup::new(10, Cosine::new(1.0, 100));
/// assert_eq!((schedule.lr(4), schedule.lr(10), schedule.lr(60)), (0.5, 1.0, 0.5));
/// assert!(StepDecay::new(1.0, 10, -0.5).lr(0).is_nan());
/// ```
pub trait Schedule: Send + Sync {
    /// The rate of a step.
    fn lr(&self, step: u64) -> f64;
}

/// A constant rate.
///
/// ```
/// use futensor::optim::{Constant, Schedule};
/// assert_eq!(Constant(0.1).lr(1000), 0.1);
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Constant(pub f64);

impl Schedule for Constant {
    fn lr(&self, _: u64) -> f64 {
        sound(self.0, &[])
    }
}

/// Multiplies the rate by a factor every `every` steps: PyTorch's `StepLR`.
#[doc(alias = "StepLR")]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct StepDecay {
    lr: f64,
    #[cfg_attr(feature = "serde", serde(deserialize_with = "at_least_one"))]
    every: u64,
    factor: f64,
}

impl StepDecay {
    /// Starts at `lr`, and multiplies by `factor` every `every` steps.
    ///
    /// ```
    /// use futensor::optim::{Schedule, StepDecay};
    /// let schedule = StepDecay::new(1.0, 2, 0.5);
    /// assert_eq!([0, 1, 2, 3, 4].map(|step| schedule.lr(step)), [1.0, 1.0, 0.5, 0.5, 0.25]);
    /// ```
    pub fn new(lr: f64, every: u64, factor: f64) -> StepDecay {
        StepDecay { lr, every: every.max(1), factor }
    }
}

impl Schedule for StepDecay {
    fn lr(&self, step: u64) -> f64 {
        let times = (step / self.every).min(i32::MAX as u64);
        sound(self.lr, &[self.factor]) * self.factor.powi(times as i32)
    }
}

/// Half a cosine from the first rate to the last, which then stays: PyTorch's `CosineAnnealingLR`
/// without the rise that follows (Loshchilov and Hutter 2017, arXiv:1608.03983).
#[doc(alias = "CosineAnnealingLR")]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Cosine {
    lr: f64,
    #[cfg_attr(feature = "serde", serde(deserialize_with = "at_least_one"))]
    steps: u64,
    #[cfg_attr(feature = "serde", serde(default))]
    last: f64,
}

impl Cosine {
    /// From `lr` to 0 in `steps` steps.
    pub fn new(lr: f64, steps: u64) -> Cosine {
        Cosine { lr, steps: steps.max(1), last: 0.0 }
    }

    /// Sets the last rate, which is 0 by default.
    ///
    /// ```
    /// use futensor::optim::{Cosine, Schedule};
    /// let schedule = Cosine::new(1.0, 10).down_to(0.5);
    /// assert_eq!((schedule.lr(0), schedule.lr(5), schedule.lr(10), schedule.lr(99)),
    ///     (1.0, 0.75, 0.5, 0.5));
    /// ```
    pub fn down_to(self, last: f64) -> Cosine {
        Cosine { last, ..self }
    }
}

impl Schedule for Cosine {
    fn lr(&self, step: u64) -> f64 {
        let done = step.min(self.steps) as f64 / self.steps as f64;
        let sound = sound(self.lr, &[self.last]);
        self.last + (sound - self.last) * (1.0 + (std::f64::consts::PI * done).cos()) / 2.0
    }
}

/// Rises linearly to the first rate of another schedule, which then follows.
#[doc(alias = "LinearLR")]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Warmup<S> {
    steps: u64,
    then: S,
}

impl<S: Schedule> Warmup<S> {
    /// Warms up for `steps` steps, then runs `then` from its beginning.
    ///
    /// ```
    /// use futensor::optim::{Constant, Schedule, Warmup};
    /// let schedule = Warmup::new(4, Constant(1.0));
    /// assert_eq!([0, 1, 3, 4, 5].map(|step| schedule.lr(step)), [0.25, 0.5, 1.0, 1.0, 1.0]);
    /// ```
    pub fn new(steps: u64, then: S) -> Warmup<S> {
        Warmup { steps, then }
    }
}

impl<S: Schedule> Schedule for Warmup<S> {
    fn lr(&self, step: u64) -> f64 {
        match step.checked_sub(self.steps) {
            Some(after) => self.then.lr(after),
            None => self.then.lr(0) * (step + 1) as f64 / self.steps as f64,
        }
    }
}
