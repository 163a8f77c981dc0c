//! Stochastic gradient descent.

use super::{Optimizer, each, trained};
use crate::nn::Parameter;
use crate::tensor::future::TensorFuture;

/// `p - lr * g`, with momentum, Nesterov's look ahead and weight decay as PyTorch has them (Sutskever et al.
/// 2013).
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
/// let device = Device::cpu();
/// let w = Parameter::new(device.ones([1]));
/// let mut sgd = Sgd::new(vec![w.clone()], 0.5).momentum(0.5);
/// sgd.step(&[device.ones([1])]);
/// sgd.step(&[device.ones([1])]);
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
    velocities: Vec<Option<TensorFuture>>,
}

impl Sgd {
    /// Of these parameters, as far as they are trained, with a learning rate.
    pub fn new(parameters: Vec<Parameter>, lr: f64) -> Sgd {
        let parameters = trained(parameters);
        let velocities = vec![None; parameters.len()];
        Sgd { parameters, lr, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0, velocities }
    }

    /// How much of the last step goes into this one.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
    /// let device = Device::cpu();
    /// let w = Parameter::new(device.ones([1]));
    /// let mut sgd = Sgd::new(vec![w.clone()], 0.25).momentum(0.5);
    /// sgd.step(&[device.ones([1])]);                                      // 0.25
    /// sgd.step(&[device.ones([1])]);                                      // and 0.25 * 1.5
    /// assert_eq!(w.value().to_vec::<f32>().await?, [1.0 - 0.25 - 0.375]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn momentum(self, momentum: f64) -> Sgd {
        Sgd { momentum, ..self }
    }

    /// How much of the gradient does not go into the momentum.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
    /// let device = Device::cpu();
    /// let w = Parameter::new(device.ones([1]));
    /// let mut sgd = Sgd::new(vec![w.clone()], 0.25).momentum(0.5).dampening(0.5);
    /// sgd.step(&[device.ones([1])]);                                      // the first is not dampened
    /// sgd.step(&[device.ones([1])]);                                      // 0.25 * (0.5 + 0.5)
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
    /// sgd.step(&[device.ones([1])]);                                      // 0.25 * (1 + 0.5)
    /// assert_eq!(w.value().to_vec::<f32>().await?, [0.625]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn nesterov(self, on: bool) -> Sgd {
        Sgd { nesterov: on, ..self }
    }

    /// So much of the parameter is added to its gradient.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Optimizer, Sgd}};
    /// let device = Device::cpu();
    /// let w = Parameter::new(device.ones([1]));
    /// let mut sgd = Sgd::new(vec![w.clone()], 0.25).weight_decay(1.0);
    /// sgd.step(&[device.ones([1])]);                                      // 0.25 * (1 + 1)
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

    fn step(&mut self, gradients: &[TensorFuture]) {
        let (lr, mu) = (self.lr, self.momentum);
        let velocities = &mut self.velocities;
        each(&self.parameters, gradients, |i, p, g| {
            let g = if self.weight_decay == 0.0 { g } else { g + &p * self.weight_decay };
            let step = if mu == 0.0 {
                g
            } else {
                let velocity = match velocities[i].take() {
                    None => g.clone(),
                    Some(v) => v * mu + &g * (1.0 - self.dampening),
                };
                let step = if self.nesterov { g + &velocity * mu } else { velocity.clone() };
                velocities[i] = Some(velocity);
                step
            };
            self.parameters[i].set(p - step * lr);
        });
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }
}
