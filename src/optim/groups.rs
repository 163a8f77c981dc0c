//! Several optimizers as one, and averages of weights.

use super::{Optimizer, State, Step, update};
use crate::error::Error;
use crate::nn::Parameter;
use crate::tensor::build::{self, At};
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// Groups of parameters, each with an optimizer of its own: other rates, no weight decay for
/// biases, another method. Their parameters are one list, and a rate that is set scales that of
/// each group alike.
///
/// A group takes its step whole or not at all; if the gradients of one group fail, the others have
/// taken theirs.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::Parameter, optim::{Groups, Optimizer, Sgd}};
/// let device = Device::cpu();
/// let (w, b) = (Parameter::new(device.ones([2])), Parameter::new(device.ones([1])));
/// let mut groups = Groups::new()
///     .with(Sgd::new(vec![w.clone()], 0.5).weight_decay(1.0))
///     .with(Sgd::new(vec![b.clone()], 0.25));
/// groups.minimize(&(w.value().sum_all() + b.value().sum_all())).await?;
/// assert_eq!(w.value().to_vec::<f32>().await?, [0.0, 0.0]);
/// assert_eq!(b.value().to_vec::<f32>().await?, [0.75]);
/// groups.set_lr(1.0);                                             // twice the rates
/// assert_eq!(groups.rates(), [1.0, 0.5]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[doc(alias = "param_groups")]
#[derive(Default)]
pub struct Groups {
    groups: Vec<Box<dyn Optimizer + Send + Sync>>,
    parameters: Vec<Parameter>,
}

impl Groups {
    /// No groups yet.
    pub fn new() -> Groups {
        Groups::default()
    }

    /// One more group.
    pub fn with(mut self, optimizer: impl Optimizer + Send + Sync + 'static) -> Groups {
        self.parameters.extend(optimizer.parameters().iter().cloned());
        self.groups.push(Box::new(optimizer));
        self
    }

    /// The rate of each group.
    pub fn rates(&self) -> Vec<f64> {
        self.groups.iter().map(|group| group.lr()).collect()
    }
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups").field("rates", &self.rates()).finish_non_exhaustive()
    }
}

impl Optimizer for Groups {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    #[track_caller]
    fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step {
        let at: At = build::seen(Location::caller());
        if let Some(error) = self.error() {
            return update::refused(&self.parameters, error, at);
        }
        if let Err(error) = update::check("Groups", &self.parameters, gradients, at) {
            return update::refused(&self.parameters, error, at);
        }
        let (mut rest, mut steps) = (gradients, Vec::new());
        for group in &mut self.groups {
            let (own, others) = rest.split_at(group.parameters().len());
            rest = others;
            if own.iter().any(Option::is_some) {
                steps.push(group.step_some(own));
            }
        }
        Step::all(&steps, at)
    }

    fn error(&self) -> Option<Error> {
        self.groups.iter().find_map(|group| group.error())
    }

    fn state(&self) -> State {
        let mut first = 0;
        let mut all = State::new();
        for (k, group) in self.groups.iter().enumerate() {
            let named = group.state().into_iter().map(|(name, value)| match of_parameter(&name) {
                Some((i, rest)) => (format!("{}.{rest}", first + i), value),
                None => (format!("group{k}.{name}"), value),
            });
            all.extend(named);
            first += group.parameters().len();
        }
        all
    }

    #[track_caller]
    fn load_state(&mut self, state: State) -> Result<(), Error> {
        let counts: Vec<usize> = self.groups.iter().map(|g| g.parameters().len()).collect();
        let mut parts: Vec<State> = counts.iter().map(|_| State::new()).collect();
        for (name, value) in state {
            let (mut k, mut own) = (0, name.clone());
            if let Some((mut i, rest)) = of_parameter(&name) {
                while k + 1 < counts.len() && i >= counts[k] {
                    i -= counts[k];
                    k += 1;
                }
                own = format!("{i}.{rest}");
            } else if let Some((group, rest)) =
                name.strip_prefix("group").and_then(|rest| rest.split_once('.'))
            {
                k = group.parse().unwrap_or(0).min(counts.len().saturating_sub(1));
                own = rest.to_owned();
            }
            if let Some(part) = parts.get_mut(k) {
                part.push((own, value));
            }
        }
        self.groups.iter_mut().zip(parts).try_for_each(|(group, part)| group.load_state(part))
    }

    /// That of the first group.
    fn lr(&self) -> f64 {
        self.groups.first().map_or(0.0, |group| group.lr())
    }

    fn set_lr(&mut self, lr: f64) {
        let before = self.lr();
        for group in &mut self.groups {
            let own = group.lr();
            group.set_lr(if before == 0.0 { lr } else { own / before * lr });
        }
    }
}

/// The number of the parameter that a state's name begins with, and the rest of the name.
fn of_parameter(name: &str) -> Option<(usize, &str)> {
    let (number, rest) = name.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// Running averages of parameters: after each step, `decay` of the old average and the rest of the
/// new value (Polyak and Juditsky 1992). The average is another set of parameters, for evaluation.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::Parameter, optim::Ema};
/// let device = Device::cpu();
/// let w = Parameter::new(device.zeros([1]));
/// let ema = Ema::new(vec![w.clone()], 0.75);
/// w.set(device.full([1], 4.0));
/// ema.update();
/// assert_eq!(ema.averages()[0].value().to_vec::<f32>().await?, [1.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[doc(alias("AveragedModel", "EMA"))]
#[derive(Debug)]
pub struct Ema {
    parameters: Vec<Parameter>,
    averages: Vec<Parameter>,
    decay: f64,
}

impl Ema {
    /// Averages that begin with the values of these parameters.
    #[track_caller]
    pub fn new(parameters: Vec<Parameter>, decay: f64) -> Ema {
        let average = |p: &Parameter| Parameter::new(p.value().stop_gradient());
        let averages = parameters.iter().map(average).collect();
        Ema { parameters, averages, decay }
    }

    /// Moves the averages towards the values that the parameters have now. Nothing waits; a value
    /// that fails leaves its average as it is.
    #[track_caller]
    pub fn update(&self) {
        let at: At = build::seen(Location::caller());
        for (parameter, average) in self.parameters.iter().zip(&self.averages) {
            let value = parameter.value().stop_gradient();
            average.update(|old| {
                let moved = old.wide().lerp(value.wide(), 1.0 - self.decay).to_dtype(old.dtype());
                build::predicated_else(&moved, &old, &moved, at)
            });
        }
    }

    /// The averages, in the order of the parameters.
    pub fn averages(&self) -> &[Parameter] {
        &self.averages
    }

    /// Puts the averages in the place of the parameters' values.
    #[track_caller]
    pub fn copy_to(&self, parameters: &[Parameter]) {
        for (average, parameter) in self.averages.iter().zip(parameters) {
            parameter.set(average.value());
        }
    }
}
