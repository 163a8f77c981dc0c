//! Optimizers: from parameters and gradients to new parameters. Nothing in here waits.
//!
//! Values are immutable, so a step replaces what the [`Parameter`]s hold. The arithmetic of one
//! parameter fuses into one pass, which writes over the old value where nobody else holds it.
//!
//! A step is taken by all parameters or by none: one whose gradients fail, now or on the device
//! later, leaves parameters, moments and counts as they were. The [`Step`] that it returns has the
//! error. So does that of an optimizer whose rate, or another number, makes no sense (`Sgd::new(p,
//! -1.0)`): it takes no step until it is given another.
//!
//! A step of halves is computed in float32 and rounded once, and what an optimizer keeps of them is
//! float32. Steps are counted for each parameter, as in PyTorch: those in which it had a gradient.
//! Several optimizers may step one parameter, from several threads: none of their steps is lost.

mod adam;
mod clip;
mod schedule;
mod sgd;
#[cfg(all(feature = "ranks", unix))]
mod sharded;
mod state;
mod update;

pub use adam::{Adam, AdamW};
pub use clip::{clip_grad_norm, clip_grad_value};
pub use schedule::{Constant, Cosine, Schedule, StepDecay, Warmup};
pub use sgd::Sgd;
#[cfg(all(feature = "ranks", unix))]
pub use sharded::Sharded;
pub use state::State;
pub use update::{Step, Update};

use crate::error::{Error, ErrorKind};
use crate::nn::{Parameter, values};
use crate::tensor::build::{self, called_from};
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::some_gradients;
use state::Taken;
use std::panic::Location;

/// Replaces a model's parameters, step by step, by what lowers the loss.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, grad, nn::Parameter, optim::{Optimizer, Sgd}};
/// let w = Parameter::new(Device::cpu().from_vec(vec![4.0f32], [1]));
/// let mut sgd = Sgd::new(vec![w.clone()], 0.25);
/// for _ in 0..3 {
///     let loss = w.value().square().sum_all();
///     let gradients = grad(&loss, &[&w.value()]);
///     sgd.step(&gradients).detach();  // or all of it: sgd.minimize(&loss).detach()
/// }
/// assert_eq!(w.value().to_vec::<f32>().await?, [0.5]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
pub trait Optimizer {
    /// What it optimizes, in the order of the gradients.
    fn parameters(&self) -> &[Parameter];

    /// Replaces each parameter that has a gradient, by it: all of them, or none where one of the
    /// gradients fails. Those without keep their values. [`Update`] is how.
    ///
    /// # Errors
    /// They stay with the step that is returned.
    #[track_caller]
    fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step;

    /// Replaces each parameter, by its gradient: all of them, or none where one of the gradients
    /// fails.
    ///
    /// # Errors
    /// They stay with the step that is returned: that of the first gradient that fails; where there
    /// are not as many gradients as parameters, or one has another shape; [`error`](Self::error).
    #[track_caller]
    fn step(&mut self, gradients: &[TensorFuture]) -> Step {
        let gradients: Vec<Option<TensorFuture>> = gradients.iter().cloned().map(Some).collect();
        self.step_some(&gradients)
    }

    /// Why it takes no step: a rate, or another number that it was given, which makes no sense.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module, optim::{Optimizer, Sgd}};
    /// let net = nn::Linear::new(2, 1, &Device::cpu());
    /// let mut sgd = Sgd::new(net.parameters(), -1.0);
    /// assert!(sgd.error().unwrap().to_string().starts_with("Sgd: the learning rate is -1"));
    /// sgd.set_lr(0.1);
    /// assert!(sgd.error().is_none());
    /// ```
    fn error(&self) -> Option<Error> {
        None
    }

    /// What it keeps beside the parameters, by name: to be saved with them, and to go on from.
    /// Names are those of this library's optimizers, and of a parameter's elements there is as much
    /// as the parameter has.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Adam, Optimizer}};
    /// let device = Device::cpu();
    /// let (w, v) = (Parameter::new(device.ones([2])), Parameter::new(device.ones([2])));
    /// let (mut a, mut b) = (Adam::new(vec![w.clone()], 0.1), Adam::new(vec![v.clone()], 0.1));
    /// a.step(&[device.full([2], 3.0)]).detach();
    /// v.set(w.value());
    /// b.load_state(a.state())?;                                       // or what was saved of it
    /// a.step(&[device.ones([2])]).detach();
    /// b.step(&[device.ones([2])]).detach();
    /// assert_eq!(v.value().to_vec::<f32>().await?, w.value().to_vec::<f32>().await?);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "state_dict")]
    fn state(&self) -> State {
        State::new()
    }

    /// Goes on from a [`state`](Self::state), of this optimizer or another one of its kind.
    ///
    /// # Errors
    /// What is of another shape than its parameter, or nothing that it keeps.
    #[doc(alias = "load_state_dict")]
    #[track_caller]
    fn load_state(&mut self, state: State) -> Result<(), Error> {
        Taken::new("load_state", self.parameters(), state)?.end()
    }

    /// It sums the gradients of a group's ranks by itself: `Sharded` does.
    fn sums_over_ranks(&self) -> bool {
        false
    }

    /// The learning rate.
    fn lr(&self) -> f64;

    /// Sets the learning rate, from a [`Schedule`] say.
    fn set_lr(&mut self, lr: f64);

    /// A step along the gradients of `loss`, whose tape it uses up. A parameter that the loss does
    /// not depend on (one that is frozen, or not initialised yet) stays as it is.
    ///
    /// # Errors
    /// As for [`step`](Self::step); and where the loss depends on none of the parameters.
    #[track_caller]
    fn minimize(&mut self, loss: &TensorFuture) -> Step {
        let at = build::seen(Location::caller());
        match some_gradients(loss, &values(self.parameters())) {
            Ok(gradients) => self.step_some(&gradients),
            Err(error) => update::refused(self.parameters(), error, at),
        }
    }
}

impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    fn parameters(&self) -> &[Parameter] {
        (**self).parameters()
    }
    #[track_caller]
    fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step {
        called_from(Location::caller(), || (**self).step_some(gradients))
    }
    fn error(&self) -> Option<Error> {
        (**self).error()
    }
    fn state(&self) -> State {
        (**self).state()
    }
    #[track_caller]
    fn load_state(&mut self, state: State) -> Result<(), Error> {
        called_from(Location::caller(), || (**self).load_state(state))
    }
    fn sums_over_ranks(&self) -> bool {
        (**self).sums_over_ranks()
    }
    fn lr(&self) -> f64 {
        (**self).lr()
    }
    fn set_lr(&mut self, lr: f64) {
        (**self).set_lr(lr);
    }
}

/// Only those that are trained.
fn trained(parameters: Vec<Parameter>) -> Vec<Parameter> {
    parameters.into_iter().filter(Parameter::is_trained).collect()
}

/// An optimizer's numbers, by name: each with whether it makes sense, and what it has to be.
type Checks<'a> = &'a [(&'a str, f64, bool, &'a str)];

/// The first number that makes no sense.
fn checked(name: &str, checks: Checks<'_>, at: build::At) -> Option<Error> {
    let (what, number, _, rule) = checks.iter().find(|(.., fine, _)| !fine)?;
    Some(Error::new(
        ErrorKind::Argument,
        name,
        format!("the {what} is {number}: it has to be {rule}"),
        at,
    ))
}

/// Finite, and not negative.
fn is_amount(number: f64) -> bool {
    number.is_finite() && number >= 0.0
}
const AMOUNT: &str = "finite, and 0 or more";

/// A part of something, less than all of it.
fn is_share(number: f64) -> bool {
    (0.0..1.0).contains(&number)
}
const SHARE: &str = "0 or more, and less than 1";
