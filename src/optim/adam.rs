//! Adam and AdamW.

use super::state::{State, Taken};
use super::{
    AMOUNT, Optimizer, SHARE, Step, Update, checked, is_amount, is_share, trained, update,
};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, number_of};
use crate::nn::Parameter;
use crate::tensor::build::{self, At};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::collections::HashMap;
use std::panic::Location;

/// The moments of one parameter's gradients, in the compute type.
#[derive(Debug)]
struct Moments {
    mean: TensorFuture,
    square: TensorFuture,
}

/// The betas to the power of each parameter's steps, for the bias correction: float64, one element
/// per parameter. They are values on the device, not counts on the host, since the call does not
/// know whether a step will be taken. They are stored together, so that a step takes a few small
/// ops however many parameters there are.
#[derive(Debug)]
struct Powers {
    mean: TensorFuture,
    square: TensorFuture,
}

/// The bias corrections of a step, for one type and device: the rate, and the root that divides the
/// deviations.
struct Correction {
    dtype: DType,
    device: Device,
    /// One element per parameter.
    all: [TensorFuture; 2],
    /// By the first of the parameters that are alike.
    each: HashMap<usize, [TensorFuture; 2]>,
}

impl Correction {
    /// The corrections of the parameters that are alike with this one.
    fn of(&mut self, first: usize) -> &[TensorFuture; 2] {
        self.each.entry(first).or_insert_with(|| self.all.each_ref().map(|all| all.i(first)))
    }
}

/// The shared part of Adam and AdamW.
#[derive(Debug)]
struct Core {
    parameters: Vec<Parameter>,
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    moments: Vec<Option<Moments>>,
    powers: Option<Powers>,
    /// For each parameter, the first one that had gradients in the same steps: their powers are
    /// equal, and looked up once per step.
    alike: Vec<usize>,
    at: At,
}

impl Core {
    fn new(parameters: Vec<Parameter>, lr: f64, weight_decay: f64, at: At) -> Core {
        let parameters = trained(parameters);
        let moments = parameters.iter().map(|_| None).collect();
        let (betas, alike) = ((0.9, 0.999), vec![0; parameters.len()]);
        Core { parameters, lr, betas, eps: 1e-8, weight_decay, moments, powers: None, alike, at }
    }

    fn error(&self, name: &str) -> Option<Error> {
        let (b1, b2) = self.betas;
        let numbers = [
            ("learning rate", self.lr, is_amount(self.lr), AMOUNT),
            ("first beta", b1, is_share(b1), SHARE),
            ("second beta", b2, is_share(b2), SHARE),
            ("eps", self.eps, is_amount(self.eps), AMOUNT),
            ("weight decay", self.weight_decay, is_amount(self.weight_decay), AMOUNT),
        ];
        checked(name, &numbers, self.at)
    }

    /// Counts a step of the parameters with a gradient, and returns the rate and the root of each.
    fn count(&mut self, update: &Update, gradients: &[Option<TensorFuture>]) -> [TensorFuture; 2] {
        let n = gradients.len();
        let ones = update.home().ones_dtype([n], DType::F64);
        let before = self
            .powers
            .take()
            .unwrap_or_else(|| Powers { mean: ones.clone(), square: ones.clone() });
        let all = gradients.iter().all(Option::is_some);
        if !all {
            let mut firsts = HashMap::new();
            for (k, first) in self.alike.iter_mut().enumerate() {
                *first = *firsts.entry((*first, gradients[k].is_some())).or_insert(k);
            }
        }
        let next = |power: &TensorFuture, beta: f64| match all {
            true => power * beta,
            false => {
                let factors = gradients.iter().map(|g| if g.is_some() { beta } else { 1.0 });
                power * update.home().from_vec(factors.collect::<Vec<f64>>(), [n])
            }
        };
        let old = [before.mean, before.square].map(|power| update.kept(&power, &ones));
        let [mean, square] = [next(&old[0], self.betas.0), next(&old[1], self.betas.1)];
        let counted = [self.lr / (1.0 - &mean), (1.0 - &square).sqrt()];
        let [old_mean, old_square] = old;
        self.powers = Some(Powers {
            mean: update.keep(mean, old_mean),
            square: update.keep(square, old_square),
        });
        counted
    }

    fn state(&self) -> State {
        let kept =
            self.moments.iter().enumerate().filter_map(|(i, kept)| Some((i, kept.as_ref()?)));
        let moments = kept.flat_map(|(i, kept)| {
            [(format!("{i}.mean"), &kept.mean), (format!("{i}.square"), &kept.square)]
        });
        let powers = self.powers.iter();
        let powers = powers
            .flat_map(|p| [("mean_powers".into(), &p.mean), ("square_powers".into(), &p.square)]);
        moments.chain(powers).map(|(name, value)| (name, value.clone())).collect()
    }

    #[track_caller]
    fn load_state(&mut self, name: &str, state: State) -> Result<(), Error> {
        let mut state = Taken::new(name, &self.parameters, state)?;
        let n = self.parameters.len();
        let mut moments: Vec<Option<Moments>> = Vec::with_capacity(n);
        for i in 0..n {
            let both = state.take_both(&format!("{i}.mean"), &format!("{i}.square"))?;
            moments.push(both.map(|(mean, square)| Moments { mean, square }));
        }
        let mut powers = state.take_both("mean_powers", "square_powers")?;
        if let Some((mean, square)) = state.take_both("mean_power", "square_power")? {
            // The format of earlier versions: one number for all parameters that had been stepped.
            let stepped: Vec<bool> = moments.iter().map(Option::is_some).collect();
            let each = |power: TensorFuture| {
                let stepped = power.device().from_vec(stepped.clone(), [n]);
                stepped
                    .where_cond(power.reshape([1]), power.device().ones_dtype([1], power.dtype()))
            };
            powers = Some((each(mean), each(square)));
        }
        state.end()?;
        let error =
            |kind, text: String| Err(Error::new(kind, name, text, build::seen(Location::caller())));
        match &powers {
            None if moments.iter().any(Option::is_some) => {
                return error(
                    ErrorKind::Argument,
                    "mean_powers is missing, which counts the steps".into(),
                );
            }
            Some((mean, square)) if [mean, square].iter().any(|power| power.dims() != [n]) => {
                let of = number_of(n, "parameter", "parameters");
                let text =
                    format!("mean_powers has shape {}, but the optimizer has {of}", mean.shape());
                return error(ErrorKind::Shape, text);
            }
            _ => {}
        }
        self.powers = powers.map(|(mean, square)| Powers { mean, square });
        (self.moments, self.alike) = (moments, (0..n).collect());
        Ok(())
    }

    #[track_caller]
    fn step(&mut self, name: &str, gradients: &[Option<TensorFuture>], decoupled: bool) -> Step {
        let at = build::seen(Location::caller());
        if let Some(error) = self.error(name) {
            return update::refused(&self.parameters, error, at);
        }
        let kept = self.moments.iter().map(|moments| Some(&moments.as_ref()?.mean));
        let update = update::fits(name, &self.parameters, kept, at)
            .and_then(|()| Update::new(name, &self.parameters, gradients));
        let update = match update {
            Ok(update) => update,
            Err(refused) => return refused,
        };
        let counted = self.count(&update, gradients);
        let mut corrections: Vec<Correction> = Vec::new();
        let (b1, b2) = self.betas;
        let (lr, decay) = (self.lr, self.weight_decay);
        for (k, (parameter, gradient)) in self.parameters.iter().zip(gradients).enumerate() {
            let Some(gradient) = gradient else { continue };
            let before = self.moments[k].take();
            parameter.update(|old| {
                let old = update.old(old);
                let (mut p, mut g) = (old.wide(), update.gradient(gradient).wide());
                let (device, dtype) = (p.device(), p.dtype());
                let is_ours = |c: &Correction| c.dtype == dtype && c.device == device;
                let at = corrections.iter().position(is_ours).unwrap_or_else(|| {
                    let all = counted.each_ref().map(|x| x.to_device(&device).to_dtype(dtype));
                    corrections.push(Correction {
                        dtype,
                        device: device.clone(),
                        all,
                        each: HashMap::new(),
                    });
                    corrections.len() - 1
                });
                let [rate, root] = corrections[at].of(self.alike[k]);
                if decay != 0.0 {
                    match decoupled {
                        true => p = p * (1.0 - lr * decay),
                        false => g = g + &p * decay,
                    }
                }
                let [old_mean, old_square] = match &before {
                    Some(before) => {
                        [&before.mean, &before.square].map(|kept| update.kept(kept, &g))
                    }
                    None => [(); 2].map(|()| update.old(device.zeros_dtype(g.shape(), dtype))),
                };
                let mean = &old_mean * b1 + &g * (1.0 - b1);
                let square = &old_square * b2 + g.square() * (1.0 - b2);
                let deviation = square.sqrt() / root + self.eps;
                let new = (p - &mean / deviation * rate).to_dtype(old.dtype());
                let (mean, square) = (update.keep(mean, old_mean), update.keep(square, old_square));
                self.moments[k] = Some(Moments { mean, square });
                update.keep(new, old)
            });
        }
        update.step()
    }
}

macro_rules! adams {
    ($(
        $(#[$doc:meta])*
        $Name:ident $decay:literal $decoupled:literal $text:literal $after:literal $why:literal;
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $Name(Core);

        impl $Name {
            /// An optimizer of the trained ones of these parameters, with a learning rate; betas
            /// are 0.9 and 0.999, eps is 1e-8.
            ///
            /// # Errors
            /// With a rate that is negative or not finite, no step is taken: see
            /// [`error`](Optimizer::error).
            #[track_caller]
            pub fn new(parameters: Vec<Parameter>, lr: f64) -> $Name {
                $Name(Core::new(parameters, lr, $decay, Location::caller()))
            }

            /// The decay rates of the running means: of the gradient, and of its square.
            ///
            /// ```
            /// # tokio_test::block_on(async {
            #[doc = concat!("use futensor::optim::{Optimizer, ", stringify!($Name), "};")]
            #[doc = "use futensor::{Device, nn::Parameter};"]
            /// let device = Device::cpu();
            /// let w = Parameter::new(device.zeros([1]));
            #[doc = concat!("let mut forgetful = ", stringify!($Name), "::new(vec![w.clone()],")]
            #[doc = "    0.5).betas(0.0, 0.0).weight_decay(0.0);"]
            /// // Each step is lr, by sign.
            /// forgetful.step(&[device.full([1], 7.0)]).detach();
            /// forgetful.step(&[device.full([1], 0.1)]).detach();
            /// assert!((w.value().item::<f32>().await? + 1.0).abs() < 1e-6);
            /// # Ok::<(), futensor::Error>(()) }).unwrap();
            /// ```
            pub fn betas(mut self, mean: f64, square: f64) -> $Name {
                self.0.betas = (mean, square);
                self
            }

            /// The number that is added to the denominator, for stability.
            ///
            /// ```
            /// # tokio_test::block_on(async {
            #[doc = concat!("use futensor::optim::{Optimizer, ", stringify!($Name), "};")]
            #[doc = "use futensor::{Device, nn::Parameter};"]
            /// let device = Device::cpu();
            /// let w = Parameter::new(device.zeros([1]));
            #[doc = concat!("let mut adam = ", stringify!($Name), "::new(vec![w.clone()], 1.0)")]
            #[doc = "    .eps(3.0);"]
            /// adam.step(&[device.ones([1])]).detach(); // 1 / (1 + 3)
            /// assert!((w.value().item::<f32>().await? + 0.25).abs() < 1e-6);
            /// # Ok::<(), futensor::Error>(()) }).unwrap();
            /// ```
            pub fn eps(mut self, eps: f64) -> $Name {
                self.0.eps = eps;
                self
            }

            #[doc = $text]
            ///
            /// ```
            /// # tokio_test::block_on(async {
            #[doc = concat!("use futensor::optim::{Optimizer, ", stringify!($Name), "};")]
            #[doc = "use futensor::{Device, nn::Parameter};"]
            /// let device = Device::cpu();
            /// let w = Parameter::new(device.ones([1]));
            #[doc = concat!("let mut adam = ", stringify!($Name), "::new(vec![w.clone()], 0.25)")]
            #[doc = "    .weight_decay(1.0);"]
            /// adam.step(&[device.zeros([1])]).detach();
            #[doc = concat!("let after = ", $after, ";  // ", $why)]
            #[doc = "assert!((w.value().item::<f32>().await? - after).abs() < 1e-5);"]
            /// # Ok::<(), futensor::Error>(()) }).unwrap();
            /// ```
            pub fn weight_decay(mut self, decay: f64) -> $Name {
                self.0.weight_decay = decay;
                self
            }
        }

        impl Optimizer for $Name {
            fn parameters(&self) -> &[Parameter] {
                &self.0.parameters
            }
            #[track_caller]
            fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step {
                self.0.step(stringify!($Name), gradients, $decoupled)
            }
            fn error(&self) -> Option<Error> {
                self.0.error(stringify!($Name))
            }
            fn state(&self) -> State {
                self.0.state()
            }
            #[track_caller]
            fn load_state(&mut self, state: State) -> Result<(), Error> {
                self.0.load_state(stringify!($Name), state)
            }
            fn lr(&self) -> f64 {
                self.0.lr
            }
            fn set_lr(&mut self, lr: f64) {
                self.0.lr = lr;
            }
        }
    )*};
}
adams! {
    /// Adam (Kingma and Ba 2015, arXiv:1412.6980), as in PyTorch.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Adam, Optimizer}};
    /// let device = Device::cpu();
    /// let w = Parameter::new(device.ones([1]));
    /// let mut adam = Adam::new(vec![w.clone()], 0.1);
    /// adam.step(&[device.full([1], 5.0)]).detach();
    /// assert!((w.value().item::<f32>().await? - 0.9).abs() < 1e-6);    // the first step is lr
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    Adam 0.0 false "The share of the parameter that is added to its gradient; none by default."
        "0.75" "a step of lr";
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101), as in
    /// PyTorch.
    AdamW 0.01 true "The share of the parameter, times the learning rate, that is subtracted from \
        it; 0.01 by default."
        "0.75" "1 - lr * decay";
}
