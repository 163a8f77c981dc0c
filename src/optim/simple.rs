//! Optimizers that keep at most two averages for each parameter: RMSprop, Adagrad, Lion.

use super::state::{State, Taken};
use super::{
    AMOUNT, Optimizer, SHARE, Step, Update, checked, is_amount, is_share, trained, update,
};
use crate::error::Error;
use crate::nn::Parameter;
use crate::tensor::build::{self, At};
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// How far a parameter moves, and what is kept of it from now on.
type Moved = (TensorFuture, Vec<TensorFuture>);

/// What is kept of each parameter, in the compute type, by the same names for all of them.
#[derive(Debug)]
struct Kept {
    parameters: Vec<Parameter>,
    names: &'static [&'static str],
    values: Vec<Option<Vec<TensorFuture>>>,
}

impl Kept {
    fn new(parameters: Vec<Parameter>) -> Kept {
        let parameters = trained(parameters);
        let values = parameters.iter().map(|_| None).collect();
        Kept { parameters, names: &[], values }
    }

    /// A step of all parameters: `new` of a value, its gradient and what is kept of it gives the
    /// step's length and what is kept from now on. At first that is `first`.
    #[track_caller]
    fn step(
        &mut self,
        name: &str,
        gradients: &[Option<TensorFuture>],
        at: At,
        first: f64,
        new: impl Fn(&TensorFuture, TensorFuture, &[TensorFuture]) -> Moved,
    ) -> Step {
        let kept = self.values.iter().map(|kept| kept.as_ref()?.first());
        let update = update::fits(name, &self.parameters, kept, at)
            .and_then(|()| Update::new(name, &self.parameters, gradients));
        let update = match update {
            Ok(update) => update,
            Err(refused) => return refused,
        };
        let each = self.parameters.iter().zip(gradients).zip(&mut self.values);
        for ((parameter, gradient), kept) in each {
            let Some(gradient) = gradient else { continue };
            let before = kept.take();
            parameter.update(|old| {
                let old = update.old(old);
                let p = old.wide();
                let before: Vec<TensorFuture> = match &before {
                    Some(before) => before.iter().map(|x| update.kept(x, &p)).collect(),
                    None => {
                        let begin = || p.device().full_dtype(p.shape(), first, p.dtype());
                        self.names.iter().map(|_| update.old(begin())).collect()
                    }
                };
                let (step, after) = new(&p, update.gradient(gradient).wide(), &before);
                let keep = |(new, old)| update.keep(new, old);
                *kept = Some(after.into_iter().zip(before).map(keep).collect());
                update.keep((p - step).to_dtype(old.dtype()), old)
            });
        }
        update.step()
    }

    fn state(&self) -> State {
        let all = self.values.iter().enumerate().filter_map(|(i, kept)| Some((i, kept.as_ref()?)));
        let named = |(i, kept): (usize, &Vec<TensorFuture>)| {
            let each = self.names.iter().zip(kept.clone());
            each.map(move |(name, value)| (format!("{i}.{name}"), value)).collect::<Vec<_>>()
        };
        all.flat_map(named).collect()
    }

    #[track_caller]
    fn load(&mut self, optimizer: &str, state: State) -> Result<(), Error> {
        let mut state = Taken::new(optimizer, &self.parameters, state)?;
        let take = |i: usize| {
            let each = self.names.iter().map(|name| state.take(&format!("{i}.{name}")));
            each.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())
        };
        let values = (0..self.parameters.len()).map(take).collect();
        state.end()?;
        self.values = values;
        Ok(())
    }
}

/// The methods that only look at what is kept.
macro_rules! kept {
    ($name:literal) => {
        fn parameters(&self) -> &[Parameter] {
            &self.kept.parameters
        }

        fn state(&self) -> State {
            self.kept.state()
        }

        #[track_caller]
        fn load_state(&mut self, state: State) -> Result<(), Error> {
            self.kept.load($name, state)
        }

        fn lr(&self) -> f64 {
            self.lr
        }

        fn set_lr(&mut self, lr: f64) {
            self.lr = lr;
        }
    };
}

/// The gradient divided by the root of a running average of its squares (Hinton 2012), with
/// PyTorch's options.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::Parameter, optim::{Optimizer, RmsProp}};
/// let device = Device::cpu();
/// let w = Parameter::new(device.ones([1]));
/// let mut rms = RmsProp::new(vec![w.clone()], 0.5).alpha(0.75).eps(0.0);
/// rms.step(&[device.full([1], 4.0)]).detach();                            // 0.5 * 4 / sqrt(4)
/// assert_eq!(w.value().to_vec::<f32>().await?, [0.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[doc(alias = "RMSprop")]
#[derive(Debug)]
pub struct RmsProp {
    kept: Kept,
    lr: f64,
    alpha: f64,
    eps: f64,
    weight_decay: f64,
    momentum: f64,
    centred: bool,
    at: At,
}

impl RmsProp {
    /// An optimizer of the trained ones of these parameters, with a learning rate (PyTorch's
    /// default is 0.01). `alpha` is 0.99, `eps` 1e-8.
    ///
    /// # Errors
    /// With a rate that is negative or not finite, no step is taken: see
    /// [`error`](Optimizer::error).
    #[track_caller]
    pub fn new(parameters: Vec<Parameter>, lr: f64) -> RmsProp {
        RmsProp {
            kept: Kept::new(parameters),
            lr,
            alpha: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            momentum: 0.0,
            centred: false,
            at: Location::caller(),
        }
    }

    /// The share of the last average that goes into the next one.
    pub fn alpha(self, alpha: f64) -> RmsProp {
        RmsProp { alpha, ..self }
    }

    /// What is added to the root.
    pub fn eps(self, eps: f64) -> RmsProp {
        RmsProp { eps, ..self }
    }

    /// The share of the parameter that is added to its gradient.
    pub fn weight_decay(self, decay: f64) -> RmsProp {
        RmsProp { weight_decay: decay, ..self }
    }

    /// The share of the last step that goes into the next one.
    pub fn momentum(self, momentum: f64) -> RmsProp {
        RmsProp { momentum, ..self }
    }

    /// Whether the root is of the variance: the square of an average of the gradients is subtracted
    /// (Graves 2013, arXiv:1308.0850).
    pub fn centred(self, centred: bool) -> RmsProp {
        RmsProp { centred, ..self }
    }
}

impl Optimizer for RmsProp {
    #[track_caller]
    fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step {
        let at = build::seen(Location::caller());
        if let Some(error) = self.error() {
            return update::refused(&self.kept.parameters, error, at);
        }
        let &mut RmsProp { lr, alpha, eps, weight_decay: decay, momentum, centred, .. } = self;
        self.kept.names = match (momentum > 0.0, centred) {
            (false, false) => &["square"],
            (true, false) => &["square", "momentum"],
            (false, true) => &["square", "mean"],
            (true, true) => &["square", "momentum", "mean"],
        };
        self.kept.step("RmsProp", gradients, at, 0.0, |p, g, before| {
            let g = if decay == 0.0 { g } else { g + p * decay };
            let square = &before[0] * alpha + g.square() * (1.0 - alpha);
            let mean = centred.then(|| &before[before.len() - 1] * alpha + &g * (1.0 - alpha));
            let root = match &mean {
                None => square.sqrt() + eps,
                Some(mean) => (&square - mean.square()).sqrt() + eps,
            };
            let mut step = g / root;
            let mut after = vec![square];
            if momentum > 0.0 {
                step = &before[1] * momentum + step;
                after.push(step.clone());
            }
            after.extend(mean);
            (step * lr, after)
        })
    }

    fn error(&self) -> Option<Error> {
        let numbers = [
            ("learning rate", self.lr, is_amount(self.lr), AMOUNT),
            ("alpha", self.alpha, is_amount(self.alpha), AMOUNT),
            ("eps", self.eps, is_amount(self.eps), AMOUNT),
            ("weight decay", self.weight_decay, is_amount(self.weight_decay), AMOUNT),
            ("momentum", self.momentum, is_amount(self.momentum), AMOUNT),
        ];
        checked("RmsProp", &numbers, self.at)
    }

    kept!("RmsProp");
}

/// The gradient divided by the root of the sum of all its squares (Duchi et al. 2011), as PyTorch's
/// `Adagrad` without a decay of the rate.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::Parameter, optim::{Adagrad, Optimizer}};
/// let device = Device::cpu();
/// let w = Parameter::new(device.ones([1]));
/// let mut adagrad = Adagrad::new(vec![w.clone()], 0.5).eps(0.0);
/// adagrad.step(&[device.full([1], 4.0)]).detach();                        // 0.5 * 4 / sqrt(16)
/// adagrad.step(&[device.full([1], 3.0)]).detach();                        // 0.5 * 3 / sqrt(25)
/// assert!((w.value().item::<f32>().await? - 0.2).abs() < 1e-6);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Adagrad {
    kept: Kept,
    lr: f64,
    eps: f64,
    weight_decay: f64,
    initial: f64,
    at: At,
}

impl Adagrad {
    /// An optimizer of the trained ones of these parameters, with a learning rate (PyTorch's
    /// default is 0.01). `eps` is 1e-10.
    ///
    /// # Errors
    /// With a rate that is negative or not finite, no step is taken: see
    /// [`error`](Optimizer::error).
    #[track_caller]
    pub fn new(parameters: Vec<Parameter>, lr: f64) -> Adagrad {
        let (kept, at) = (Kept::new(parameters), Location::caller());
        Adagrad { kept, lr, eps: 1e-10, weight_decay: 0.0, initial: 0.0, at }
    }

    /// What is added to the root.
    pub fn eps(self, eps: f64) -> Adagrad {
        Adagrad { eps, ..self }
    }

    /// The share of the parameter that is added to its gradient.
    pub fn weight_decay(self, decay: f64) -> Adagrad {
        Adagrad { weight_decay: decay, ..self }
    }

    /// What the sums begin with.
    pub fn initial(self, initial: f64) -> Adagrad {
        Adagrad { initial, ..self }
    }
}

impl Optimizer for Adagrad {
    #[track_caller]
    fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step {
        let at = build::seen(Location::caller());
        if let Some(error) = self.error() {
            return update::refused(&self.kept.parameters, error, at);
        }
        let (lr, eps, decay) = (self.lr, self.eps, self.weight_decay);
        self.kept.names = &["sum"];
        self.kept.step("Adagrad", gradients, at, self.initial, |p, g, before| {
            let g = if decay == 0.0 { g } else { g + p * decay };
            let sum = &before[0] + g.square();
            (g * lr / (sum.sqrt() + eps), vec![sum])
        })
    }

    fn error(&self) -> Option<Error> {
        let numbers = [
            ("learning rate", self.lr, is_amount(self.lr), AMOUNT),
            ("eps", self.eps, is_amount(self.eps), AMOUNT),
            ("weight decay", self.weight_decay, is_amount(self.weight_decay), AMOUNT),
            ("initial sum", self.initial, is_amount(self.initial), AMOUNT),
        ];
        checked("Adagrad", &numbers, self.at)
    }

    kept!("Adagrad");
}

/// The sign of an average of the gradients, with decoupled weight decay (Chen et al. 2023,
/// arXiv:2302.06675).
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::Parameter, optim::{Lion, Optimizer}};
/// let device = Device::cpu();
/// let w = Parameter::new(device.ones([2]));
/// let mut lion = Lion::new(vec![w.clone()], 0.25);
/// lion.step(&[device.from_vec(vec![7.0f32, -0.1], [2])]).detach();
/// assert_eq!(w.value().to_vec::<f32>().await?, [0.75, 1.25]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Lion {
    kept: Kept,
    lr: f64,
    betas: (f64, f64),
    weight_decay: f64,
    at: At,
}

impl Lion {
    /// An optimizer of the trained ones of these parameters, with a learning rate (the paper's are
    /// about 1e-4). The betas are 0.9 and 0.99.
    ///
    /// # Errors
    /// With a rate that is negative or not finite, no step is taken: see
    /// [`error`](Optimizer::error).
    #[track_caller]
    pub fn new(parameters: Vec<Parameter>, lr: f64) -> Lion {
        let (kept, at) = (Kept::new(parameters), Location::caller());
        Lion { kept, lr, betas: (0.9, 0.99), weight_decay: 0.0, at }
    }

    /// The share of the average in a step, and in the next average.
    pub fn betas(self, step: f64, average: f64) -> Lion {
        Lion { betas: (step, average), ..self }
    }

    /// The share of the parameter that a step takes away, times the rate.
    pub fn weight_decay(self, decay: f64) -> Lion {
        Lion { weight_decay: decay, ..self }
    }
}

impl Optimizer for Lion {
    #[track_caller]
    fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step {
        let at = build::seen(Location::caller());
        if let Some(error) = self.error() {
            return update::refused(&self.kept.parameters, error, at);
        }
        let (lr, (b1, b2), decay) = (self.lr, self.betas, self.weight_decay);
        self.kept.names = &["mean"];
        self.kept.step("Lion", gradients, at, 0.0, |p, g, before| {
            let sign = (&before[0] * b1 + &g * (1.0 - b1)).sign();
            let step = if decay == 0.0 { sign } else { sign + p * decay };
            (step * lr, vec![&before[0] * b2 + g * (1.0 - b2)])
        })
    }

    fn error(&self) -> Option<Error> {
        let (b1, b2) = self.betas;
        let numbers = [
            ("learning rate", self.lr, is_amount(self.lr), AMOUNT),
            ("first beta", b1, is_share(b1), SHARE),
            ("second beta", b2, is_share(b2), SHARE),
            ("weight decay", self.weight_decay, is_amount(self.weight_decay), AMOUNT),
        ];
        checked("Lion", &numbers, self.at)
    }

    kept!("Lion");
}
