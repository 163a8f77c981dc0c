//! Activations: rows of the table, and those that take a number or work on rows of
//! elements.

use crate::dtype::DType;
use crate::graph::operation::{Needs, Refusal};
use crate::host::kernels::rows::Form;
use crate::op::{UnaryOp, for_each_unary};
use crate::ops::rows::softmax::Softmax;
use crate::tensor::build::intercept::Sequence;
use crate::tensor::build::{self, At, custom, mixed};
use crate::tensor::future::TensorFuture;
use crate::tensor::generator::{Generator, draw};
use crate::tensor::gradient::ruled::ruled;
use crate::tensor::methods::aliases::aliased;
use std::panic::Location;
use std::sync::Arc;

macro_rules! activations {
    ($($name:ident: $Variant:ident {
        doc: $text:literal,
        page: $page:ident, $($columns:tt)*
    })*) => {
        /// # Activations
        ///
        /// `softmax` is over rows; the others are elementwise. Nothing waits.
        impl TensorFuture {
            $(on_page! { $page { aliased! { $name
                #[doc = $text]
                #[track_caller]
                pub fn $name(&self) -> TensorFuture {
                    build::unary(UnaryOp::$Variant, self, Location::caller())
                }
            }} {}})*
        }
    };
}
for_each_unary!(activations);

/// Activations with a parameter, over rows, or random.
impl TensorFuture {
    /// `x` where `x > 0`, `alpha * (e^x - 1)` elsewhere (Clevert et al. 2016, arXiv:1511.07289).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![-200.0f32, 0.0, 3.0], [3]);
    /// assert_eq!(x.elu(2.0).to_vec::<f32>().await?, [-2.0, 0.0, 3.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> TensorFuture {
        let _within = build::within("elu", Location::caller());
        let compute = || {
            self.rounded_once(|x| {
                // Large inputs are cut off first: a check for what is not finite would find their
                // powers.
                let below = x.minimum(0.0).expm1() * alpha;
                x.gt(0.0).where_cond(x, below)
            })
        };
        ruled("elu", &[self], Needs::inputs(&[0]), compute, move |call| {
            call.give(0, |call| {
                let (g, x) = (call.upstream(), call.input(0));
                let above = x.gt(0.0);
                // Large inputs are masked: the slope of an infinite power is NaN, even in a branch
                // that is not selected.
                let below = above.where_cond(0.0, x).exp() * alpha * g;
                above.where_cond(g, below)
            });
        })
    }

    /// `log(1 + e^(beta x)) / beta`; `x` itself where `beta x` is above `threshold`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![0.0f32, 30.0], [2]);
    /// let y = x.softplus_with(2.0, 20.0).to_vec::<f32>().await?;
    /// assert!((y[0] - 2f32.ln() / 2.0).abs() < 1e-6 && y[1] == 30.0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn softplus_with(&self, beta: f64, threshold: f64) -> TensorFuture {
        let at: At = Location::caller();
        if let Some(x) = mixed::widened(self, at) {
            return x.softplus_with(beta, threshold);
        }
        let _within = build::within("softplus_with", at);
        let compute = || {
            self.rounded_once(|x| {
                let scaled = x * beta;
                let far = scaled.gt(threshold);
                let near = far.where_cond(0.0, scaled).exp().log1p() / beta;
                far.where_cond(x, near)
            })
        };
        ruled("softplus_with", &[self], Needs::inputs(&[0]), compute, move |call| {
            call.give(0, |call| {
                let (g, scaled) = (call.upstream(), call.input(0) * beta);
                scaled.gt(threshold).where_cond(g, g * scaled.sigmoid())
            });
        })
    }

    /// `x * tanh(softplus(x))` (Misra 2019, arXiv:1908.08681).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![0.0f32, 50.0], [2]);
    /// assert_eq!(x.mish().to_vec::<f32>().await?, [0.0, 50.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn mish(&self) -> TensorFuture {
        let _within = build::within("mish", Location::caller());
        self.rounded_once(|x| x * x.softplus().tanh())
    }

    /// [`elu`](Self::elu) with the numbers that keep mean and variance through layers (Klambauer et
    /// al. 2017, arXiv:1706.02515).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![0.0f32, 1.0], [2]);
    /// assert_eq!(x.selu().to_vec::<f32>().await?, [0.0, 1.050701]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn selu(&self) -> TensorFuture {
        let _within = build::within("selu", Location::caller());
        self.rounded_once(|x| x.elu(1.673_263_242_354_377_2) * 1.050_700_987_355_480_5)
    }

    /// `x` where `x > 0`, `weight * x` elsewhere: a weight of one element, or one for each channel
    /// (the second dimension).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![-2.0f32, 3.0, -2.0, 3.0], [2, 2]);
    /// let weight = device.from_vec(vec![0.5f32, 2.0], [2]);
    /// assert_eq!(x.prelu(&weight).to_vec::<f32>().await?, [-1.0, 3.0, -1.0, 3.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn prelu(&self, weight: impl AsRef<TensorFuture>) -> TensorFuture {
        let (weight, at): (_, At) = (weight.as_ref(), Location::caller());
        if let Some([Some(x), Some(weight)]) = mixed::narrowed([Some(self), Some(weight)], at) {
            return x.prelu(weight);
        }
        let channels = if self.rank() > 1 { self.dims()[1] } else { 1 };
        let fits = weight.numel() == 1 || weight.dims() == [channels];
        if !fits || weight.rank() > 1 || self.dtype() != weight.dtype() {
            let text =
                format!("a weight {} of {} for {}", weight.dtype(), weight.shape(), self.shape());
            return build::refused("prelu", self, Refusal::shape(text), at);
        }
        let _within = build::within("prelu", at);
        let mut along = vec![1; self.rank().max(1)];
        along[(self.rank() > 1) as usize] = weight.numel();
        let weight = if self.rank() == 0 { weight.reshape(()) } else { weight.reshape(along) };
        self.leaky_relu(weight)
    }

    /// The first half along `dim` times the sigmoid of the second (Dauphin et al. 2017,
    /// arXiv:1612.08083).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().from_vec(vec![4.0f32, 0.0], [2]);
    /// assert_eq!(x.glu(0).to_vec::<f32>().await?, [2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn glu(&self, dim: isize) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("glu", at);
        let refuse = |refusal| build::refused("glu", self, refusal, at);
        let Some(d) = self.shape().dim(dim) else {
            return refuse(build::dim_refusal(dim, self.shape()));
        };
        if !self.dims()[d].is_multiple_of(2) {
            let text = format!("a dimension of {} has no halves", self.dims()[d]);
            return refuse(Refusal::shape(text));
        }
        let half = self.dims()[d] / 2;
        self.rounded_once(|x| x.narrow(dim, 0, half) * x.narrow(dim, half, half).sigmoid())
    }

    /// `e^x / sum e^x` along `dim`. The largest element is subtracted first, to avoid an overflow.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().zeros([2, 4]);
    /// assert_eq!(x.softmax(-1).to_vec::<f32>().await?, [0.25; 8]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn softmax(&self, dim: isize) -> TensorFuture {
        let op = Softmax::of(self.dtype(), dim, Form::Plain);
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// The same, but a row of -inf alone gives zeros.
    #[track_caller]
    pub(crate) fn safe_softmax(&self, dim: isize) -> TensorFuture {
        let op = Softmax::of(self.dtype(), dim, Form::Safe);
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// The logarithm of [`softmax`](Self::softmax).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().zeros([2, 1]);
    /// assert_eq!(x.log_softmax(-1).to_vec::<f32>().await?, [0.0; 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn log_softmax(&self, dim: isize) -> TensorFuture {
        let op = Softmax::of(self.dtype(), dim, Form::Log);
        custom(Arc::new(op), &[self], Location::caller())
    }

    /// Sets each element to zero with probability `p` and divides the others by `1 - p` (Srivastava
    /// et al. 2014, JMLR 15). The random numbers come from the device's generator; the call
    /// reserves their positions.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().ones([1000]);
    /// let y = x.dropout(0.5).to_vec::<f32>().await?;
    /// assert!(y.iter().all(|&v| v == 0.0 || v == 2.0));
    /// assert!((350..650).contains(&y.iter().filter(|&&v| v == 0.0).count()));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn dropout(&self, p: f64) -> TensorFuture {
        let at: At = Location::caller();
        self.dropped(p, || {
            draw(
                self.port(),
                &Sequence::Device(self.port()),
                self.shape().clone(),
                DType::F32,
                false,
                at,
            )
        })
    }

    /// [`dropout`](Self::dropout) with random numbers from a given generator.
    #[track_caller]
    pub fn dropout_with(&self, p: f64, generator: &Generator) -> TensorFuture {
        self.dropped(p, || generator.rand(&self.device(), self.shape()))
    }

    #[track_caller]
    fn dropped(&self, p: f64, draw: impl FnOnce() -> TensorFuture) -> TensorFuture {
        let refusal = if !(0.0..=1.0).contains(&p) {
            Refusal::argument(format!("a probability of {p} is out of range"))
        } else if !self.dtype().is_float() {
            Refusal::not_float(self.dtype())
        } else if p == 0.0 {
            return self.clone();
        } else {
            let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
            let _within = build::within("dropout", Location::caller());
            let keep = draw().ge(p);
            return self.rounded_once(|x| keep.to_dtype(x.dtype()) * scale * x);
        };
        build::refused("dropout", self, refusal, Location::caller())
    }
}
