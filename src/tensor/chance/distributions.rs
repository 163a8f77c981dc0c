//! Probability distributions: samples, log probabilities and entropies.

use crate::dtype::DType;
use crate::tensor::build;
use crate::tensor::future::TensorFuture;
use crate::tensor::generator::Generator;
use std::f64::consts::PI;
use std::panic::Location;

/// The normal distribution of a mean and a standard deviation, which are broadcast.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, Generator, distributions::Normal};
/// let device = Device::cpu();
/// let normal = Normal::new(device.zeros([3]), device.ones([3]));
/// assert_eq!(normal.sample(&Generator::new(1)).dims(), [3]);
/// let at_mean = normal.log_prob(device.zeros([3])).to_vec::<f32>().await?;
/// assert!((at_mean[0] + 0.9189385).abs() < 1e-6);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Normal {
    mean: TensorFuture,
    std: TensorFuture,
}

impl Normal {
    /// With a mean and a standard deviation.
    pub fn new(mean: impl AsRef<TensorFuture>, std: impl AsRef<TensorFuture>) -> Normal {
        Normal { mean: mean.as_ref().clone(), std: std.as_ref().clone() }
    }

    /// A draw for each element. Gradients flow to the mean and the deviation (PyTorch's `rsample`).
    #[doc(alias = "rsample")]
    #[track_caller]
    pub fn sample(&self, generator: &Generator) -> TensorFuture {
        let _within = build::within("sample", Location::caller());
        let like = &self.mean + &self.std;
        generator.randn_dtype(&like.device(), like.shape(), like.dtype()) * &self.std + &self.mean
    }

    /// The logarithm of the density.
    #[track_caller]
    pub fn log_prob(&self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        let _within = build::within("log_prob", Location::caller());
        let apart = (x.as_ref() - &self.mean) / &self.std;
        apart.square() * -0.5 - self.std.log() - 0.5 * (2.0 * PI).ln()
    }

    /// The entropy, in nats.
    #[track_caller]
    pub fn entropy(&self) -> TensorFuture {
        let _within = build::within("entropy", Location::caller());
        self.mean.zeros_like() + self.std.log() + 0.5 * (1.0 + (2.0 * PI).ln())
    }
}

/// 1 with a probability, which is given by its logit, and 0 otherwise.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, distributions::Bernoulli};
/// let device = Device::cpu();
/// let coin = Bernoulli::new(device.zeros([1]));
/// let log = coin.log_prob(device.ones([1])).item::<f32>().await?;
/// assert!((log - 0.5f32.ln()).abs() < 1e-6);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Bernoulli {
    logits: TensorFuture,
}

impl Bernoulli {
    /// With the logits of 1; the logit of a probability p is `log(p / (1 - p))`.
    pub fn new(logits: impl AsRef<TensorFuture>) -> Bernoulli {
        Bernoulli { logits: logits.as_ref().clone() }
    }

    /// A draw for each element.
    #[track_caller]
    pub fn sample(&self, generator: &Generator) -> TensorFuture {
        let _within = build::within("sample", Location::caller());
        generator.bernoulli(self.logits.sigmoid())
    }

    /// The logarithm of the probability of 0 or 1.
    #[track_caller]
    pub fn log_prob(&self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        let _within = build::within("log_prob", Location::caller());
        -self.logits.bce_with_logits(x, crate::Reduction::None)
    }

    /// The entropy, in nats.
    #[track_caller]
    pub fn entropy(&self) -> TensorFuture {
        let _within = build::within("entropy", Location::caller());
        self.logits.bce_with_logits(self.logits.sigmoid(), crate::Reduction::None)
    }
}

/// A class of several, given by logits along the last dimension.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, Generator, distributions::Categorical};
/// let device = Device::cpu();
/// let dice = Categorical::new(device.zeros([2, 6]));
/// let classes = dice.sample(&Generator::new(1));
/// assert_eq!(classes.dims(), [2]);
/// let log = dice.log_prob(&classes).to_vec::<f32>().await?;
/// assert!((log[0] + 6f32.ln()).abs() < 1e-6);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Categorical {
    logs: TensorFuture,
}

impl Categorical {
    /// With these logits: logarithms of weights, of any sum.
    #[track_caller]
    pub fn new(logits: impl AsRef<TensorFuture>) -> Categorical {
        Categorical { logs: logits.as_ref().log_softmax(-1) }
    }

    /// A class for each row, int64.
    #[track_caller]
    pub fn sample(&self, generator: &Generator) -> TensorFuture {
        let _within = build::within("sample", Location::caller());
        generator.categorical(self.logs.exp(), 1).squeeze(-1)
    }

    /// The logarithm of the probability of a class for each row.
    #[track_caller]
    pub fn log_prob(&self, classes: impl AsRef<TensorFuture>) -> TensorFuture {
        let _within = build::within("log_prob", Location::caller());
        self.logs.gather(-1, classes.as_ref().unsqueeze(-1)).squeeze(-1)
    }

    /// The entropy, in nats.
    #[track_caller]
    pub fn entropy(&self) -> TensorFuture {
        let _within = build::within("entropy", Location::caller());
        // A class that never comes adds nothing.
        -(self.logs.exp() * self.logs.clamp_min(f32::MIN as f64)).sum(-1)
    }
}

/// The gamma distribution of a concentration and a rate, which are broadcast.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, Generator, distributions::Gamma};
/// let device = Device::cpu();
/// let gamma = Gamma::new(device.full([10_000], 3.0), device.full([1], 2.0));
/// let mean = gamma.sample(&Generator::new(1)).mean_all().item::<f32>().await?;
/// assert!((mean - 1.5).abs() < 0.05);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Gamma {
    concentration: TensorFuture,
    rate: TensorFuture,
}

impl Gamma {
    /// With a concentration and a rate.
    pub fn new(concentration: impl AsRef<TensorFuture>, rate: impl AsRef<TensorFuture>) -> Gamma {
        Gamma { concentration: concentration.as_ref().clone(), rate: rate.as_ref().clone() }
    }

    /// A draw for each element.
    #[track_caller]
    pub fn sample(&self, generator: &Generator) -> TensorFuture {
        let _within = build::within("sample", Location::caller());
        let like = &self.concentration + &self.rate;
        let draw = generator.gamma(self.concentration.expand(like.dims()));
        draw.to_dtype(like.dtype()) / self.rate.stop_gradient()
    }

    /// The logarithm of the density.
    #[track_caller]
    pub fn log_prob(&self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        let _within = build::within("log_prob", Location::caller());
        let (a, b, x) = (&self.concentration, &self.rate, x.as_ref());
        a.xlogy(b) + (a - 1.0).xlogy(x) - b * x - a.lgamma()
    }

    /// The entropy, in nats.
    #[track_caller]
    pub fn entropy(&self) -> TensorFuture {
        let _within = build::within("entropy", Location::caller());
        let a = &self.concentration;
        a - self.rate.log() + a.lgamma() + (1.0 - a) * a.digamma()
    }
}

/// The beta distribution, between 0 and 1, of two concentrations, which are broadcast.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, distributions::Beta};
/// let device = Device::cpu();
/// let even = Beta::new(device.ones([1]), device.ones([1]));
/// assert!(even.log_prob(device.full([1], 0.3)).item::<f32>().await?.abs() < 1e-6);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Beta {
    high: TensorFuture,
    low: TensorFuture,
}

impl Beta {
    /// With the concentrations at 1 and at 0; PyTorch's `concentration1` and `concentration0`.
    pub fn new(high: impl AsRef<TensorFuture>, low: impl AsRef<TensorFuture>) -> Beta {
        Beta { high: high.as_ref().clone(), low: low.as_ref().clone() }
    }

    /// A draw for each element.
    #[track_caller]
    pub fn sample(&self, generator: &Generator) -> TensorFuture {
        let _within = build::within("sample", Location::caller());
        let like = &self.high + &self.low;
        let [high, low] = [&self.high, &self.low].map(|a| generator.gamma(a.expand(like.dims())));
        (&high / (&high + low)).to_dtype(like.dtype())
    }

    #[track_caller]
    fn log_norm(&self) -> TensorFuture {
        self.high.lgamma() + self.low.lgamma() - (&self.high + &self.low).lgamma()
    }

    /// The logarithm of the density.
    #[track_caller]
    pub fn log_prob(&self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        let _within = build::within("log_prob", Location::caller());
        let x = x.as_ref();
        let high = (&self.high - 1.0).xlogy(x);
        high + (&self.low - 1.0).xlogy(1.0 - x) - self.log_norm()
    }

    /// The entropy, in nats.
    #[track_caller]
    pub fn entropy(&self) -> TensorFuture {
        let _within = build::within("entropy", Location::caller());
        let (a, b) = (&self.high, &self.low);
        let both = a + b;
        self.log_norm() - (a - 1.0) * a.digamma() - (b - 1.0) * b.digamma()
            + (&both - 2.0) * both.digamma()
    }
}

impl Generator {
    /// Numbers of the gamma distribution of these concentrations and rate 1, float32 (Marsaglia and
    /// Tsang 2000). They are computed in float64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Generator};
    /// let x = Generator::new(5).gamma(Device::cpu().full([10_000], 0.5));
    /// assert!((x.mean_all().item::<f32>().await? - 0.5).abs() < 0.03);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn gamma(&self, concentration: impl AsRef<TensorFuture>) -> TensorFuture {
        /// A try is taken with at least 95 percent: none of these once in 1e13 times, which gives
        /// the mode.
        const TRIES: usize = 10;
        let _within = build::within("gamma", Location::caller());
        let a = concentration.as_ref().stop_gradient().to_dtype(DType::F64);
        let device = a.device();
        let is_small = a.lt(1.0);
        let d = is_small.where_cond(&a + 1.0, &a) - 1.0 / 3.0;
        let c = (&d * 9.0).rsqrt();
        let uniform = || self.rand_dtype(&device, a.shape(), DType::F64);
        let (mut drawn, mut taken) = (d.clone(), None::<TensorFuture>);
        for _ in 0..TRIES {
            // Of 32 bits, which are the same on every device.
            let x = self.randn(&device, a.shape()).to_dtype(DType::F64);
            let y = &x * &c + 1.0;
            let cube = &y * &y * &y;
            let fits = cube.gt(0.0);
            let v = fits.where_cond(&cube, 1.0);
            let bound = x.square() * 0.5 + &d * (1.0 - &v + v.log());
            let fits = fits.logical_and(uniform().log().lt(bound));
            let new = match &taken {
                None => fits.clone(),
                Some(taken) => fits.logical_and(taken.logical_not()),
            };
            drawn = new.where_cond(&d * v, drawn);
            taken = Some(taken.map_or(fits.clone(), |taken| taken.logical_or(&fits)));
        }
        // Below 1, of a draw of one more.
        let root = (uniform().log() / &a).exp();
        is_small.where_cond(&drawn * root, drawn.clone()).to_dtype(DType::F32)
    }
}
