//! Adam and AdamW.

use super::{Optimizer, each, trained};
use crate::nn::Parameter;
use crate::tensor::future::TensorFuture;

/// Moments of one parameter's gradients.
#[derive(Debug)]
struct Moments {
    mean: TensorFuture,
    square: TensorFuture,
}

/// What Adam and AdamW share.
#[derive(Debug)]
struct Core {
    parameters: Vec<Parameter>,
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    moments: Vec<Option<Moments>>,
    steps: i32,
}

impl Core {
    fn new(parameters: Vec<Parameter>, lr: f64, weight_decay: f64) -> Core {
        let parameters = trained(parameters);
        let moments = parameters.iter().map(|_| None).collect();
        Core { parameters, lr, betas: (0.9, 0.999), eps: 1e-8, weight_decay, moments, steps: 0 }
    }

    fn step(&mut self, gradients: &[TensorFuture], decoupled: bool) {
        self.steps += 1;
        let (b1, b2) = self.betas;
        let (lr, decay) = (self.lr, self.weight_decay);
        let corrected = lr / (1.0 - b1.powi(self.steps));
        let root = (1.0 - b2.powi(self.steps)).sqrt();
        let moments = &mut self.moments;
        each(&self.parameters, gradients, |i, mut p, mut g| {
            if decay != 0.0 {
                match decoupled {
                    true => p = p * (1.0 - lr * decay),
                    false => g = g + &p * decay,
                }
            }
            let (mean, square) = match moments[i].take() {
                None => (&g * (1.0 - b1), g.square() * (1.0 - b2)),
                Some(old) => (old.mean * b1 + &g * (1.0 - b1), old.square * b2 + g.square() * (1.0 - b2)),
            };
            let deviation = square.sqrt() / root + self.eps;
            self.parameters[i].set(p - &mean / deviation * corrected);
            moments[i] = Some(Moments { mean, square });
        });
    }
}

macro_rules! adams {
    ($($(#[$doc:meta])* $Name:ident $decay:literal $decoupled:literal $text:literal $after:literal $why:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $Name(Core);

        impl $Name {
            /// Of these parameters, as far as they are trained, with a learning rate; betas 0.9 and 0.999, eps
            /// 1e-8.
            pub fn new(parameters: Vec<Parameter>, lr: f64) -> $Name {
                $Name(Core::new(parameters, lr, $decay))
            }

            /// How much of the old moments stays, of the mean and of the square.
            ///
            /// ```
            /// # tokio_test::block_on(async {
            #[doc = concat!("use futensor::{Device, nn::Parameter, optim::{Optimizer, ", stringify!($Name), "}};")]
            /// let device = Device::cpu();
            /// let w = Parameter::new(device.zeros([1]));
            #[doc = concat!("let mut forgetful = ", stringify!($Name), "::new(vec![w.clone()], 0.5).betas(0.0, 0.0).weight_decay(0.0);")]
            /// forgetful.step(&[device.full([1], 7.0)]);                       // each step is lr, by sign
            /// forgetful.step(&[device.full([1], 0.1)]);
            /// assert!((w.value().item::<f32>().await? + 1.0).abs() < 1e-6);
            /// # Ok::<(), futensor::Error>(()) }).unwrap();
            /// ```
            pub fn betas(mut self, mean: f64, square: f64) -> $Name {
                self.0.betas = (mean, square);
                self
            }

            /// What is added to the deviation.
            ///
            /// ```
            /// # tokio_test::block_on(async {
            #[doc = concat!("use futensor::{Device, nn::Parameter, optim::{Optimizer, ", stringify!($Name), "}};")]
            /// let device = Device::cpu();
            /// let w = Parameter::new(device.zeros([1]));
            #[doc = concat!("let mut adam = ", stringify!($Name), "::new(vec![w.clone()], 1.0).eps(3.0);")]
            /// adam.step(&[device.ones([1])]);                                 // 1 / (1 + 3)
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
            #[doc = concat!("use futensor::{Device, nn::Parameter, optim::{Optimizer, ", stringify!($Name), "}};")]
            /// let device = Device::cpu();
            /// let w = Parameter::new(device.ones([1]));
            #[doc = concat!("let mut adam = ", stringify!($Name), "::new(vec![w.clone()], 0.25).weight_decay(1.0);")]
            /// adam.step(&[device.zeros([1])]);
            #[doc = concat!("assert!((w.value().item::<f32>().await? - ", $after, ").abs() < 1e-5);      // ", $why)]
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
            fn step(&mut self, gradients: &[TensorFuture]) {
                self.0.step(gradients, $decoupled);
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
    /// Adam (Kingma and Ba 2015, arXiv:1412.6980), as PyTorch has it.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::Parameter, optim::{Adam, Optimizer}};
    /// let device = Device::cpu();
    /// let w = Parameter::new(device.ones([1]));
    /// let mut adam = Adam::new(vec![w.clone()], 0.1);
    /// adam.step(&[device.full([1], 5.0)]);
    /// assert!((w.value().item::<f32>().await? - 0.9).abs() < 1e-6);    // the first step is lr
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    Adam 0.0 false "So much of the parameter is added to its gradient; none by default."
        "0.75" "a step of lr";
    /// Adam with weight decay of its own (Loshchilov and Hutter 2019, arXiv:1711.05101), as PyTorch has it.
    AdamW 0.01 true "So much of the parameter, times the learning rate, is taken off it; 0.01 by default."
        "0.75" "1 - lr * decay";
}
