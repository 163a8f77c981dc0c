//! Optimizers: they compute new parameters from parameters and gradients. Nothing here waits.
//!
//! Values are immutable, so a step replaces the values in the [`Parameter`]s. The arithmetic for
//! one parameter fuses into one pass, which overwrites the old value if it has no other handle.
//!
//! A step applies to all parameters or to none: if a gradient fails, at the call or later on the
//! device, parameters, moments and counts stay unchanged. The returned [`Step`] has the error. An
//! optimizer with an invalid rate, or another invalid number (`Sgd::new(p, -1.0)`), takes no step
//! until the number is corrected; its `Step` has the error as well.
//!
//! A step on halves is computed in float32 and rounded once, and the optimizer's state for them is
//! float32. As in PyTorch, each parameter counts the steps in which it had a gradient. Several
//! optimizers may step one parameter from several threads: no step is lost.

mod adam;
mod clip;
mod groups;
mod scaler;
mod schedule;
mod sgd;
#[cfg(all(feature = "ranks", unix))]
mod sharded;
mod simple;
mod state;
mod update;

pub use adam::{Adam, AdamW};
pub use clip::{clip_grad_norm, clip_grad_value};
pub use groups::{Ema, Groups};
pub use scaler::GradScaler;
pub use schedule::{Constant, Cosine, Schedule, StepDecay, Warmup};
pub use sgd::Sgd;
#[cfg(all(feature = "ranks", unix))]
pub use sharded::Sharded;
pub use simple::{Adagrad, Lion, RmsProp};
pub use state::State;
pub use update::{Step, Update};

use crate::error::{Error, ErrorKind};
use crate::nn::{Parameter, values};
use crate::tensor::build::{self, called_from};
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::some_gradients;
use state::Taken;
use std::panic::Location;

/// Updates a model's parameters step by step to lower the loss.
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
    /// The parameters, in the order of the gradients.
    fn parameters(&self) -> &[Parameter];

    /// Updates each parameter that has a gradient: all of them, or none if one of the gradients
    /// fails. Parameters without a gradient keep their values. Implement it with [`Update`].
    ///
    /// # Errors
    /// The returned step has the error.
    #[track_caller]
    fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step;

    /// Updates each parameter by its gradient: all of them, or none if one of the gradients
    /// fails.
    ///
    /// # Errors
    /// The returned step has the error: that of the first gradient that fails; an error if the
    /// number of gradients, or the shape of one, does not match the parameters; or the optimizer's
    /// own [`error`](Self::error).
    #[track_caller]
    fn step(&mut self, gradients: &[TensorFuture]) -> Step {
        let gradients: Vec<Option<TensorFuture>> = gradients.iter().cloned().map(Some).collect();
        self.step_some(&gradients)
    }

    /// Why the optimizer takes no step: an invalid rate, or another invalid number.
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

    /// The optimizer's state by name, to be saved with the parameters and restored later. The names
    /// are this library's own; state for a parameter's elements has the parameter's shape.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Adam, Optimizer}};
    /// let device = Device::cpu();
    /// let (w, v) = (Parameter::new(device.ones([2])), Parameter::new(device.ones([2])));
    /// let (mut a, mut b) = (Adam::new(vec![w.clone()], 0.1), Adam::new(vec![v.clone()], 0.1));
    /// a.step(&[device.full([2], 3.0)]).detach();
    /// v.set(w.value());
    /// b.load_state(a.state())?;                                       // or a saved state
    /// a.step(&[device.ones([2])]).detach();
    /// b.step(&[device.ones([2])]).detach();
    /// assert_eq!(v.value().to_vec::<f32>().await?, w.value().to_vec::<f32>().await?);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "state_dict")]
    fn state(&self) -> State {
        State::new()
    }

    /// Restores a [`state`](Self::state) of this optimizer, or of another one of its kind.
    ///
    /// # Errors
    /// An entry that has another shape than its parameter, or that the optimizer does not keep.
    #[doc(alias = "load_state_dict")]
    #[track_caller]
    fn load_state(&mut self, state: State) -> Result<(), Error> {
        Taken::new("load_state", self.parameters(), state)?.end()
    }

    /// Whether the optimizer sums the gradients over ranks itself, as `Sharded` does.
    fn sums_over_ranks(&self) -> bool {
        false
    }

    /// The learning rate.
    fn lr(&self) -> f64;

    /// Sets the learning rate, for example from a [`Schedule`].
    fn set_lr(&mut self, lr: f64);

    /// Takes a step along the gradients of `loss`, and consumes its tape. A parameter that the loss
    /// does not depend on (for example a frozen or uninitialised one) stays unchanged.
    ///
    /// # Errors
    /// As [`step`](Self::step); and if the loss depends on none of the parameters.
    #[doc(alias("backward", "zero_grad"))]
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

/// The parameters that are trained.
fn trained(parameters: Vec<Parameter>) -> Vec<Parameter> {
    parameters.into_iter().filter(Parameter::is_trained).collect()
}

/// An optimizer's numbers: name, number, whether it is valid, and the rule.
type Checks<'a> = &'a [(&'a str, f64, bool, &'a str)];

/// The error of the first invalid number.
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

/// A share, at least 0 and less than 1.
fn is_share(number: f64) -> bool {
    (0.0..1.0).contains(&number)
}
const SHARE: &str = "0 or more, and less than 1";
