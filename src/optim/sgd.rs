//! Stochastic gradient descent.

use super::state::{State, Taken};
use super::{AMOUNT, Optimizer, Step, Update, checked, is_amount, trained, update};
use crate::error::{Error, ErrorKind};
use crate::nn::Parameter;
use crate::tensor::build::{self, At};
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// `p - lr * g`, with momentum, Nesterov's look-ahead and weight decay as in PyTorch
/// (Sutskever et al. 2013).
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
/// let device = Device::cpu();
/// let w = Parameter::new(device.ones([1]));
/// let mut sgd = Sgd::new(vec![w.clone()], 0.5).momentum(0.5);
/// sgd.step(&[device.ones([1])]).detach();
/// sgd.step(&[device.ones([1])]).detach();
/// assert_eq!(w.value().to_vec::<f32>().await?, [1.0 - 0.5 - 0.75]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Sgd {
    parameters: Vec<Parameter>,
    lr: f64,
    momentum: f64,
    dampening: f64,
    nesterov: bool,
    weight_decay: f64,
    velocities: Vec<Option<Velocity>>,
    at: At,
}

/// The velocity of one parameter, in the compute type.
#[derive(Debug)]
struct Velocity {
    value: TensorFuture,
    /// The share of the gradient that is added: all of the first one, without dampening. One
    /// element; only with dampening.
    share: Option<TensorFuture>,
}

impl Sgd {
    /// An optimizer of the trained ones of these parameters, with a learning rate.
    ///
    /// # Errors
    /// With a rate that is negative or not finite, no step is taken: see
    /// [`error`](Optimizer::error).
    #[track_caller]
    pub fn new(parameters: Vec<Parameter>, lr: f64) -> Sgd {
        let parameters = trained(parameters);
        let velocities = parameters.iter().map(|_| None).collect();
        let at = Location::caller();
        Sgd {
            parameters,
            lr,
            momentum: 0.0,
            dampening: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            velocities,
            at,
        }
    }

    /// The momentum: the share of the last velocity that goes into the next one.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
    /// let device = Device::cpu();
    /// let w = Parameter::new(device.ones([1]));
    /// let mut sgd = Sgd::new(vec![w.clone()], 0.25).momentum(0.5);
    /// sgd.step(&[device.ones([1])]).detach();                                 // 0.25
    /// sgd.step(&[device.ones([1])]).detach();                                 // and 0.25 * 1.5
    /// assert_eq!(w.value().to_vec::<f32>().await?, [1.0 - 0.25 - 0.375]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn momentum(self, momentum: f64) -> Sgd {
        Sgd { momentum, ..self }
    }

    /// The dampening: the share of the gradient that does not go into the velocity.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
    /// let device = Device::cpu();
    /// let w = Parameter::new(device.ones([1]));
    /// let mut sgd = Sgd::new(vec![w.clone()], 0.25).momentum(0.5).dampening(0.5);
    /// sgd.step(&[device.ones([1])]).detach();  // the first is not dampened
    /// sgd.step(&[device.ones([1])]).detach();  // 0.25 * (0.5 + 0.5)
    /// assert_eq!(w.value().to_vec::<f32>().await?, [0.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn dampening(self, dampening: f64) -> Sgd {
        Sgd { dampening, ..self }
    }

    /// Nesterov's momentum.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
    /// let device = Device::cpu();
    /// let w = Parameter::new(device.ones([1]));
    /// let mut sgd = Sgd::new(vec![w.clone()], 0.25).momentum(0.5).nesterov(true);
    /// sgd.step(&[device.ones([1])]).detach();                                 // 0.25 * (1 + 0.5)
    /// assert_eq!(w.value().to_vec::<f32>().await?, [0.625]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn nesterov(self, on: bool) -> Sgd {
        Sgd { nesterov: on, ..self }
    }

    /// The share of the parameter that is added to its gradient.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
    /// let device = Device::cpu();
    /// let w = Parameter::new(device.ones([1]));
    /// let mut sgd = Sgd::new(vec![w.clone()], 0.25).weight_decay(1.0);
    /// sgd.step(&[device.ones([1])]).detach();                                 // 0.25 * (1 + 1)
    /// assert_eq!(w.value().to_vec::<f32>().await?, [0.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn weight_decay(self, decay: f64) -> Sgd {
        Sgd { weight_decay: decay, ..self }
    }
}

impl Optimizer for Sgd {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    #[track_caller]
    fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step {
        let at = build::seen(Location::caller());
        if let Some(error) = self.error() {
            return update::refused(&self.parameters, error, at);
        }
        let (lr, mu, damp, decay) = (self.lr, self.momentum, self.dampening, self.weight_decay);
        let decayed = |g, p: &TensorFuture| if decay == 0.0 { g } else { g + p * decay };
        if mu == 0.0 {
            let new = |p: &TensorFuture, g| p - decayed(g, p) * lr;
            return update::replaced("Sgd", &self.parameters, gradients, at, new);
        }
        let kept = self.velocities.iter().map(|velocity| Some(&velocity.as_ref()?.value));
        let update = update::fits("Sgd", &self.parameters, kept, at)
            .and_then(|()| Update::new("Sgd", &self.parameters, gradients));
        let update = match update {
            Ok(update) => update,
            Err(refused) => return refused,
        };
        for ((parameter, gradient), velocity) in
            self.parameters.iter().zip(gradients).zip(&mut self.velocities)
        {
            let Some(gradient) = gradient else { continue };
            let before = velocity.take();
            parameter.update(|old| {
                let old = if decay == 0.0 { old } else { update.old(old) };
                let p = old.wide();
                let g = decayed(update.gradient(gradient).wide(), &p);
                let one = |number: f64| p.device().full_dtype((), number, p.dtype());
                let value = match &before {
                    Some(before) => update.kept(&before.value, &p),
                    None => update.old(p.device().zeros_dtype(p.shape(), p.dtype())),
                };
                let share = before.as_ref().and_then(|before| before.share.as_ref());
                let all = match share {
                    Some(share) => Some(update.kept(share, &p)),
                    None => (damp != 0.0).then(|| one(1.0)),
                };
                let new = match &all {
                    None => &value * mu + &g,
                    Some(share) => &value * mu + &g * share,
                };
                let step = if self.nesterov { g + &new * mu } else { new.clone() };
                let share = all.map(|all| update.keep(one(1.0 - damp), all));
                *velocity = Some(Velocity { value: update.keep(new, value), share });
                update.keep((p - step * lr).to_dtype(old.dtype()), old)
            });
        }
        update.step()
    }

    fn error(&self) -> Option<Error> {
        let numbers = [
            ("learning rate", self.lr, is_amount(self.lr), AMOUNT),
            ("momentum", self.momentum, is_amount(self.momentum), AMOUNT),
            ("dampening", self.dampening, self.dampening.is_finite(), "finite"),
            ("weight decay", self.weight_decay, is_amount(self.weight_decay), AMOUNT),
        ];
        let nesterov = || {
            let text = "Nesterov's momentum needs a momentum, and no dampening";
            let wrong = self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0);
            wrong.then(|| Error::new(ErrorKind::Argument, "Sgd", text, self.at))
        };
        checked("Sgd", &numbers, self.at).or_else(nesterov)
    }

    fn state(&self) -> State {
        let kept =
            self.velocities.iter().enumerate().filter_map(|(i, kept)| Some((i, kept.as_ref()?)));
        let all = kept.flat_map(|(i, Velocity { value, share })| {
            let share = share.iter().map(move |share| (format!("share.{i}"), share.clone()));
            share.chain([(format!("{i}.velocity"), value.clone())])
        });
        all.collect()
    }

    #[track_caller]
    fn load_state(&mut self, state: State) -> Result<(), Error> {
        let mut state = Taken::new("Sgd", &self.parameters, state)?;
        let velocities = (0..self.parameters.len()).map(|i| {
            let value = state.take(&format!("{i}.velocity"))?;
            Some(Velocity { value, share: state.take(&format!("share.{i}")) })
        });
        let velocities = velocities.collect();
        state.end()?;
        self.velocities = velocities;
        Ok(())
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }
}
