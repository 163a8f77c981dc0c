//! Optimizers: from parameters and gradients to new parameters. Nothing in here waits.
//!
//! Values are immutable, so a step replaces what the [`Parameter`]s hold. The arithmetic of one parameter fuses
//! into one pass, which writes over the old value where nobody else holds it.

mod adam;
mod clip;
mod schedule;
mod sgd;

pub use adam::{Adam, AdamW};
pub use clip::{clip_grad_norm, clip_grad_value};
pub use schedule::{Constant, Cosine, Schedule, StepDecay, Warmup};
pub use sgd::Sgd;

use crate::nn::{Parameter, values};
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::grad;

/// What replaces parameters by better ones.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, grad, nn::Parameter, optim::{Optimizer, Sgd}};
/// let w = Parameter::new(Device::cpu().from_vec(vec![4.0f32], [1]));
/// let mut sgd = Sgd::new(vec![w.clone()], 0.25);
/// for _ in 0..3 {
///     let loss = w.value().square().sum_all();
///     let gradients = grad(&loss, &[&w.value()]);     // or all of it: sgd.minimize(&loss)
///     sgd.step(&gradients);
/// }
/// assert_eq!(w.value().to_vec::<f32>().await?, [0.5]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
pub trait Optimizer {
    /// What it optimizes, in the order of the gradients.
    fn parameters(&self) -> &[Parameter];

    /// Replaces each parameter, by its gradient. A gradient that has failed makes a failed parameter, and
    /// so everything made from it names the root.
    ///
    /// # Panics
    /// Where there are not as many gradients as parameters.
    fn step(&mut self, gradients: &[TensorFuture]);

    /// The learning rate.
    fn lr(&self) -> f64;

    /// Sets the learning rate, from a [`Schedule`] say.
    fn set_lr(&mut self, lr: f64);

    /// A step along the gradients of `loss`, whose tape it uses up.
    #[track_caller]
    fn minimize(&mut self, loss: &TensorFuture) {
        let gradients = grad(loss, &values(self.parameters()));
        self.step(&gradients);
    }
}

/// Only those that are trained.
fn trained(parameters: Vec<Parameter>) -> Vec<Parameter> {
    parameters.into_iter().filter(Parameter::is_trained).collect()
}

/// Calls `f` with each parameter, its value off the tape, and its gradient.
fn each(
    parameters: &[Parameter],
    gradients: &[TensorFuture],
    mut f: impl FnMut(usize, TensorFuture, TensorFuture),
) {
    let (n, m) = (parameters.len(), gradients.len());
    assert!(n == m, "{m} gradients for {n} parameters");
    for (i, (parameter, gradient)) in parameters.iter().zip(gradients).enumerate() {
        f(i, parameter.value().stop_gradient(), gradient.stop_gradient());
    }
}
