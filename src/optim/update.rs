//! A step that applies to all parameters or to none.
//!
//! A gradient may turn out to have failed only when it is computed, and nothing here waits. So the
//! decision is a value like any other: true once all gradients are complete, false if one has
//! failed. It selects between each old and new value.
//!
//! The decision is a *predicate*, and each new value is *predicated* on it (`Op::Predicated`, the
//! only op that takes failed operands). Parameters, moments and counts are selected in the pass
//! that computes them, so that the old value's memory is still overwritten. A device that runs
//! ahead of its kernels postpones a predicated value while an operand may still fail. Inside a
//! region it does not, and there an index out of range fails all values that depend on it. If
//! memory for the selection itself runs out, that one value fails: keeping the old one would take a
//! second copy of every value.

use crate::dtype::DType;
use crate::error::{Error, ErrorKind, number_of};
use crate::graph::operation::Meta;
use crate::nn::Parameter;
use crate::tensor::build::{self, At};
use crate::tensor::device::Device;
use crate::tensor::future::{TensorFuture, Wait};
use std::future::IntoFuture;
use std::panic::Location;

/// The outcome of an optimizer's step. If a gradient failed, or the optimizer refused the step, all
/// parameters are unchanged, and this has the error. It need not be awaited.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
/// let device = Device::cpu();
/// let w = Parameter::new(device.ones([2]));
/// let mut sgd = Sgd::new(vec![w.clone()], 0.5);
/// let wrong = w.value() * device.ones([3]);                       // a batch of another size
/// assert!(sgd.minimize(&wrong.sum_all()).await.unwrap_err().is_shape());
/// sgd.minimize(&w.value().sum_all()).await?;                      // the next step works
/// assert_eq!(w.value().to_vec::<f32>().await?, [0.5, 0.5]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Cancel safety
/// Dropping a step, or the future that awaits it, gives up only the error: the step is still
/// taken.
#[must_use = "a failed step changes nothing, and only this reports it: await it, check its \
    `error`, or `detach` it \
              and `waitall` returns it"]
#[derive(Clone, Debug)]
pub struct Step(TensorFuture);

impl Step {
    /// A step that was not taken.
    fn failed(device: Device, error: Error, at: At) -> Step {
        Step(build::failed(device.port, Meta::new((), DType::Bool), error, at))
    }

    /// A step that is taken if all of these values complete, and the set of their devices.
    fn of<'a>(values: impl Iterator<Item = &'a TensorFuture>, at: At) -> (Step, Vec<Device>) {
        let mut devices: Vec<(Device, Vec<TensorFuture>)> = Vec::new();
        for value in values {
            let device = value.device();
            match devices.iter_mut().find(|(d, _)| *d == device) {
                Some((_, all)) => all.push(value.stop_gradient()),
                None => devices.push((device, vec![value.stop_gradient()])),
            }
        }
        let home = devices[0].0.clone();
        let there = |(device, all): &(Device, Vec<TensorFuture>)| {
            build::all_there(all, device, at).to_device(&home)
        };
        let each: Vec<TensorFuture> = devices.iter().map(there).collect();
        let all =
            if let [one] = &each[..] { one.clone() } else { build::all_there(&each, &home, at) };
        (Step(all), devices.into_iter().map(|(device, _)| device).collect())
    }

    /// A step that is taken if all of these are.
    pub(super) fn all(steps: &[Step], at: At) -> Step {
        let each: Vec<TensorFuture> = steps.iter().map(|step| step.0.clone()).collect();
        Step::of(each.iter(), at).0
    }

    /// Why the step was not taken, if that is already known. Does not wait.
    pub fn error(&self) -> Option<Error> {
        self.0.error()
    }

    /// Reports an error, if there is one, to the device's next [`waitall`](Device::waitall).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
    /// let device = Device::cpu_with(Default::default());
    /// let mut sgd = Sgd::new(vec![Parameter::new(device.ones([2]))], 0.5);
    /// sgd.minimize(&device.ones([1])).detach();                   // depends on no parameter
    /// assert!(device.waitall().await.unwrap_err().is_argument());
    /// # });
    /// ```
    pub fn detach(&self) {
        self.0.detach();
    }

    /// A value that fails if the step does.
    pub(crate) fn predicated(&self, x: &TensorFuture, at: At) -> TensorFuture {
        build::predicated(x, &[self.0.to_device(&x.device())], at)
    }
}

impl IntoFuture for Step {
    type Output = Result<(), Error>;
    type IntoFuture = Wait;
    #[track_caller]
    fn into_future(self) -> Wait {
        self.0.wait_to_read()
    }
}

impl IntoFuture for &Step {
    type Output = Result<(), Error>;
    type IntoFuture = Wait;
    #[track_caller]
    fn into_future(self) -> Wait {
        self.0.wait_to_read()
    }
}

/// An all-or-nothing step, for optimizers of your own: its [`gradient`](Self::gradient)s never
/// fail, and [`keep`](Self::keep) returns the new value if all gradients were complete, otherwise
/// the old one.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, TensorFuture, nn::Parameter};
/// use futensor::optim::{Optimizer, Step, Update};
///
/// /// Steps by the sign of the gradient.
/// struct Sign(Vec<Parameter>, f64);
///
/// impl Optimizer for Sign {
///     fn parameters(&self) -> &[Parameter] {
///         &self.0
///     }
///     fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step {
///         let update = match Update::new("Sign", &self.0, gradients) {
///             Ok(update) => update,
///             Err(refused) => return refused,
///         };
///         for (p, g) in self.0.iter().zip(gradients) {
///             let Some(g) = g else { continue };
///             p.update(|old| {
///                 let old = update.old(old);
///                 update.keep(&old - update.gradient(g).sign() * self.1, old)
///             });
///         }
///         update.step()
///     }
///     fn lr(&self) -> f64 {
///         self.1
///     }
///     fn set_lr(&mut self, lr: f64) {
///         self.1 = lr;
///     }
/// }
///
/// let w = Parameter::new(Device::cpu().ones([2]));
/// let mut sign = Sign(vec![w.clone()], 0.25);
/// sign.minimize(&(w.value() * 7.0).sum_all()).await?;
/// assert_eq!(w.value().to_vec::<f32>().await?, [0.75, 0.75]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Update {
    /// True on each device if every gradient is complete.
    whole: Vec<TensorFuture>,
    step: Step,
    at: At,
}

impl Update {
    /// A step of these parameters along these gradients; `None` leaves its parameter unchanged.
    /// `name` is the optimizer's name, for errors.
    ///
    /// # Errors
    /// A step that is not taken, with the reason: a gradient is known to have failed, or has
    /// another shape, type or device than its parameter; there are no gradients; or their number
    /// differs from that of the parameters.
    #[track_caller]
    pub fn new(
        name: &str,
        parameters: &[Parameter],
        gradients: &[Option<TensorFuture>],
    ) -> Result<Update, Step> {
        let at = build::seen(Location::caller());
        check(name, parameters, gradients, at).map_err(|error| refused(parameters, error, at))?;
        let (step, devices) = Step::of(gradients.iter().flatten(), at);
        let whole = build::predicated_or(false, &step.0, &[], at);
        let whole = devices.iter().map(|device| whole.to_device(device)).collect();
        Ok(Update { whole, step, at })
    }

    /// The decision, on the device of this value.
    fn whole(&self, beside: &TensorFuture) -> TensorFuture {
        let there = self.whole.iter().find(|whole| std::ptr::eq(whole.port(), beside.port()));
        there.cloned().unwrap_or_else(|| {
            let (own, other) = (self.home(), beside.device());
            let text = format!(
                "a value on {other} cannot take part in a step whose gradients are on {own}"
            );
            let error = Error::new(ErrorKind::Device, "Update", text, self.at);
            build::failed(beside.port(), Meta::new((), DType::Bool), error, self.at)
        })
    }

    /// The first gradient's device.
    pub(super) fn home(&self) -> Device {
        self.whole[0].device()
    }

    /// One of the step's gradients, off the tape; zeros if it has failed.
    pub fn gradient(&self, gradient: &TensorFuture) -> TensorFuture {
        // After the decision, so that later ops find it complete, and fuse with the selection.
        build::predicated_or(0, &gradient.stop_gradient(), &[&self.whole(gradient)], self.at)
    }

    /// A parameter's value off the tape, or another value to be replaced, after the decision: ops
    /// on it alone would otherwise run early, in a pass of their own.
    pub fn old(&self, value: TensorFuture) -> TensorFuture {
        build::predicated(&value.stop_gradient(), &[self.whole(&value)], self.at)
    }

    /// [`old`](Self::old) of an optimizer's state for a parameter: it follows the parameter to its
    /// device and type.
    pub(super) fn kept(&self, value: &TensorFuture, beside: &TensorFuture) -> TensorFuture {
        self.old(value.to_device(&beside.device()).to_dtype(beside.dtype()))
    }

    /// `new` if all gradients were complete, otherwise `old`.
    ///
    /// # Errors
    /// The value fails if the two differ in shape or type, or are on a device on which the step has
    /// no gradient.
    pub fn keep(&self, new: TensorFuture, old: TensorFuture) -> TensorFuture {
        build::choose(&self.whole(&old), new, old, self.at)
    }

    /// The outcome of the step.
    pub fn step(self) -> Step {
        self.step
    }
}

/// A step for optimizers without state: `new` of a parameter's value and gradient replaces the
/// value. `new` computes in the [wide](DType::wide) type, and is rounded here. It is computed
/// immediately, fused with the gradient and in the gradient's memory, and the selection, once all
/// are complete, touches no element; so a step is not taken if `new` fails either. If another step
/// of one of the parameters intervenes, it is detected, and this step is redone. An optimizer with
/// state would need second copies of the state: it uses [`Update`].
pub(super) fn replaced(
    name: &str,
    parameters: &[Parameter],
    gradients: &[Option<TensorFuture>],
    at: At,
    new: impl Fn(&TensorFuture, TensorFuture) -> TensorFuture,
) -> Step {
    if let Err(error) = check(name, parameters, gradients, at) {
        return refused(parameters, error, at);
    }
    loop {
        let stepped = parameters.iter().zip(gradients).filter_map(|(parameter, gradient)| {
            let (old, gradient) =
                (parameter.value().stop_gradient(), gradient.as_ref()?.stop_gradient());
            let new = new(&old.wide(), gradient.wide()).to_dtype(old.dtype());
            Some((parameter, old, new))
        });
        let mut stepped: Vec<(&Parameter, TensorFuture, TensorFuture)> = stepped.collect();
        let (step, _) = Step::of(stepped.iter().map(|(.., new)| new), at);
        for (_, old, new) in &mut stepped {
            *new = build::predicated_else(new, old, &step.0.to_device(&old.device()), at);
        }
        if Parameter::exchange(&stepped) {
            return step;
        }
    }
}

/// A step whose new values are already queued: taken by all of them, or by none if one of them
/// fails or another step is not taken.
#[cfg(all(feature = "ranks", unix))]
pub(super) fn taken(
    parameters: &[Parameter],
    new: &[Option<TensorFuture>],
    after: &Step,
    at: At,
) -> Step {
    let (step, _) = Step::of(new.iter().flatten().chain([&after.0]), at);
    for (parameter, new) in parameters.iter().zip(new) {
        let Some(new) = new else { continue };
        parameter
            .update(|old| build::predicated_else(new, &old, &step.0.to_device(&old.device()), at));
    }
    step
}

/// A step of these parameters that is not taken.
pub(super) fn refused(parameters: &[Parameter], error: Error, at: At) -> Step {
    let device = parameters.iter().find_map(Parameter::device);
    Step::failed(device.unwrap_or_else(Device::cpu), error, at)
}

/// Checks that an optimizer's state still has the shapes of its parameters.
///
/// # Errors
/// A step that is not taken: a parameter has changed its shape since the last step.
pub(super) fn fits<'a>(
    name: &str,
    parameters: &[Parameter],
    kept: impl Iterator<Item = Option<&'a TensorFuture>>,
    at: At,
) -> Result<(), Step> {
    for (k, (parameter, kept)) in parameters.iter().zip(kept).enumerate() {
        let Some(kept) = kept else { continue };
        let value = parameter.value();
        if value.shape() != kept.shape() {
            let text = format!(
                "parameter {k} has shape {}, but had {} in the last step",
                value.shape(),
                kept.shape()
            );
            return Err(refused(parameters, Error::new(ErrorKind::Shape, name, text, at), at));
        }
    }
    Ok(())
}

/// The message for a number of gradients that differs from that of the parameters.
pub(super) fn miscounted(gradients: usize, parameters: usize) -> String {
    let gradients = number_of(gradients, "gradient", "gradients");
    format!("{gradients} for {}", number_of(parameters, "parameter", "parameters"))
}

pub(super) fn check(
    name: &str,
    parameters: &[Parameter],
    gradients: &[Option<TensorFuture>],
    at: At,
) -> Result<(), Error> {
    let error = |kind, text: String| Err(Error::new(kind, name, text, at));
    let (n, m) = (parameters.len(), gradients.len());
    if n != m {
        return error(ErrorKind::Argument, miscounted(m, n));
    }
    if let Some(failed) = gradients.iter().flatten().find_map(TensorFuture::error) {
        return Err(failed);
    }
    if gradients.iter().all(Option::is_none) {
        return error(ErrorKind::Argument, "there are no gradients to step along".into());
    }
    for (k, (parameter, gradient)) in parameters.iter().zip(gradients).enumerate() {
        let Some(gradient) = gradient else { continue };
        let value = parameter.value();
        if value.shape() != gradient.shape() {
            let (own, other) = (value.shape(), gradient.shape());
            let text = format!("parameter {k} has shape {own}, but its gradient has {other}");
            return error(ErrorKind::Shape, text);
        }
        if value.dtype() != gradient.dtype() {
            let (own, other) = (value.dtype(), gradient.dtype());
            let text = format!("parameter {k} is {own}, but its gradient is {other}");
            return error(ErrorKind::DType, text);
        }
        if value.device() != gradient.device() {
            let (own, other) = (value.device(), gradient.device());
            let text = format!("parameter {k} is on {own}, but its gradient is on {other}");
            return error(ErrorKind::Device, text);
        }
    }
    Ok(())
}
