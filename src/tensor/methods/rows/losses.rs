//! Losses, composed of ops that fuse. Halves are computed in float32 and rounded once.

use crate::dtype::DType;
use crate::error::number_of;
use crate::graph::operation::{Needs, Refusal};
use crate::ops::Listed;
use crate::ops::index::classes::Classes;
use crate::ops::rows::cross_entropy::CrossEntropy;
use crate::ops::rows::nll::Nll;
use crate::shape::Shape;
use crate::tensor::build::{self, At, mixed};
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::ruled::ruled;
use crate::tensor::methods::reduce::stats::float;
use std::panic::Location;
use std::sync::Arc;

/// How a loss combines the losses of its elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Reduction {
    /// The mean, weighted if weights are given.
    #[default]
    Mean,
    /// The sum.
    Sum,
    /// No reduction: one loss per element.
    None,
}

/// Options of the losses, by PyTorch's names. Each loss takes a plain [`Reduction`] or `()` as
/// well.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, LossOptions, Reduction};
/// let device = Device::cpu();
/// let (logits, target) = (device.zeros([2, 4]), device.from_vec(vec![1i64, -100], [2]));
/// let loss = logits
///     .cross_entropy(&target, LossOptions::from(Reduction::Sum).label_smoothing(0.1));
/// assert!((loss.item::<f32>().await? - 4f32.ln()).abs() < 1e-6); // the second is ignored
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct LossOptions {
    pub(super) reduction: Reduction,
    pub(super) weight: Option<TensorFuture>,
    pos_weight: Option<TensorFuture>,
    ignore_index: i64,
    label_smoothing: f64,
}

impl Default for LossOptions {
    fn default() -> LossOptions {
        LossOptions {
            reduction: Reduction::Mean,
            weight: None,
            pos_weight: None,
            ignore_index: -100,
            label_smoothing: 0.0,
        }
    }
}

impl From<Reduction> for LossOptions {
    fn from(reduction: Reduction) -> LossOptions {
        LossOptions { reduction, ..LossOptions::default() }
    }
}

impl From<()> for LossOptions {
    fn from(_: ()) -> LossOptions {
        LossOptions::default()
    }
}

impl LossOptions {
    /// How the losses of the elements are combined; the mean by default.
    pub fn reduction(mut self, reduction: Reduction) -> LossOptions {
        self.reduction = reduction;
        self
    }

    /// A weight for each class (`cross_entropy`, `nll_loss`), or weights that are broadcast to the
    /// losses (`bce_with_logits`).
    pub fn weight(mut self, weight: impl AsRef<TensorFuture>) -> LossOptions {
        self.weight = Some(weight.as_ref().clone());
        self
    }

    /// A weight of the positive examples, broadcast (`bce_with_logits`).
    pub fn pos_weight(mut self, weight: impl AsRef<TensorFuture>) -> LossOptions {
        self.pos_weight = Some(weight.as_ref().clone());
        self
    }

    /// The class number whose elements are ignored; -100 by default.
    pub fn ignore_index(mut self, class: i64) -> LossOptions {
        self.ignore_index = class;
        self
    }

    /// How much of each target is spread evenly over all classes, from 0 to 1 (`cross_entropy`).
    pub fn label_smoothing(mut self, part: f64) -> LossOptions {
        self.label_smoothing = part;
        self
    }
}

#[track_caller]
pub(super) fn reduced(loss: &TensorFuture, reduction: Reduction, dtype: DType) -> TensorFuture {
    let loss = match reduction {
        Reduction::Mean => loss.mean_all(),
        Reduction::Sum => loss.sum_all(),
        Reduction::None => loss.clone(),
    };
    loss.to_dtype(dtype)
}

/// The class dimension: the first for a single example, otherwise the second.
fn class_dim(x: &TensorFuture) -> Result<usize, Refusal> {
    float(x)?;
    match x.rank() {
        0 => Err(Refusal::shape("a 0-d value has no classes")),
        rank => Ok((rank > 1) as usize),
    }
}

fn without(shape: &Shape, dim: usize) -> Shape {
    shape.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, &n)| n).collect()
}

/// Class numbers, one for each element, and a weight for each class.
fn checked_classes(
    x: &TensorFuture,
    target: &TensorFuture,
    options: &LossOptions,
) -> Result<usize, Refusal> {
    let dim = class_dim(x)?;
    if !target.dtype().is_int() {
        return Err(Refusal::dtype(format!("class numbers are integers, not {}", target.dtype())));
    }
    if *target.shape() != without(x.shape(), dim) {
        let text = format!("class numbers of {} for an input of {}", target.shape(), x.shape());
        return Err(Refusal::shape(text));
    }
    checked_weight(x.dims()[dim], options)?;
    Ok(dim)
}

fn checked_weight(classes: usize, options: &LossOptions) -> Result<(), Refusal> {
    match &options.weight {
        Some(weight) if weight.dims() != [classes] => Err(Refusal::shape(format!(
            "weights of {} for {}",
            weight.shape(),
            number_of(classes, "class", "classes")
        ))),
        _ => Ok(()),
    }
}

/// The log probabilities that class numbers select.
struct Picked {
    /// Minus the log probability of the target class, times its weight; 0 for ignored elements.
    loss: TensorFuture,
    /// The weight of each element; 0 for ignored elements.
    weight: TensorFuture,
    counts: TensorFuture,
}

/// The losses of the targets. All arguments have been checked; `logs` is in the compute type.
#[track_caller]
fn pick(logs: &TensorFuture, target: &TensorFuture, dim: usize, options: &LossOptions) -> Picked {
    let target = target.to_dtype(DType::I64);
    let counts = target.ne(options.ignore_index);
    // An ignored class number may not be a valid index.
    let safe = counts.where_cond(&target, 0);
    let weight = match &options.weight {
        None => counts.to_dtype(logs.dtype()),
        Some(weight) => {
            let each = weight.to_dtype(logs.dtype()).index_select(0, safe.reshape(-1));
            counts.where_cond(each.reshape(target.dims()), 0.0)
        }
    };
    let dim = dim as isize;
    let classes = Arc::new(Classes { dim, name: build::named("nll_loss") });
    let picked =
        build::custom(classes, &[logs, &safe.unsqueeze(dim)], Location::caller()).squeeze(dim);
    let loss = match &options.weight {
        None => -picked,
        Some(_) => -picked * &weight,
    };
    Picked { loss: counts.where_cond(loss, 0.0), weight, counts }
}

/// The common case as one op, if the device has it: rows of classes without weights, reduced to
/// one number.
#[track_caller]
fn short<O: Listed>(
    op: impl FnOnce(i64, bool) -> O,
    x: &TensorFuture,
    target: &TensorFuture,
    dim: usize,
    options: &LossOptions,
) -> Option<TensorFuture> {
    let plain = options.weight.is_none()
        && options.label_smoothing == 0.0
        && options.reduction != Reduction::None;
    if !plain || x.rank() != 2 || dim != 1 {
        return None;
    }
    let op = op(options.ignore_index, options.reduction == Reduction::Mean);
    if !x.port().runner.has_kernel(&op) {
        return None;
    }
    Some(build::custom(Arc::new(op), &[x, &target.to_dtype(DType::I64)], Location::caller()))
}

#[track_caller]
fn nll(logs: &TensorFuture, picked: &Picked, reduction: Reduction, dtype: DType) -> TensorFuture {
    debug_assert!(logs.dtype().is_float());
    match reduction {
        Reduction::Mean => (picked.loss.sum_all() / picked.weight.sum_all()).to_dtype(dtype),
        other => reduced(&picked.loss, other, dtype),
    }
}

/// # Losses
///
/// Gradients, and values in halves, agree with PyTorch. Nothing waits.
impl TensorFuture {
    /// Mean squared difference.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, Reduction};
    /// let device = Device::cpu();
    /// let x = device.from_vec(vec![1.0f32, 2.0], [2]);
    /// let y = device.from_vec(vec![3.0f32, 3.0], [2]);
    /// assert_eq!(x.mse_loss(&y, ()).item::<f32>().await?, 2.5);
    /// assert_eq!(x.mse_loss(&y, Reduction::None).to_vec::<f32>().await?, [4.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "MSELoss")]
    #[track_caller]
    pub fn mse_loss(
        &self,
        target: impl AsRef<TensorFuture>,
        options: impl Into<LossOptions>,
    ) -> TensorFuture {
        let (target, options, at): (_, _, At) =
            (target.as_ref(), options.into(), Location::caller());
        if let Some(x) = mixed::widened(self, at) {
            return x.mse_loss(target, options);
        }
        if let Err(refusal) = float(self) {
            return build::refused("mse_loss", self, refusal, at);
        }
        let _within = build::within("mse_loss", at);
        let dtype = self.dtype().promote_ranked(self.rank(), target.dtype(), target.rank());
        reduced(&(self.wide() - target.wide()).square(), options.reduction, dtype)
    }

    /// Cross entropy of these logits `[batch, classes, ...]` (or `[classes]`) with class numbers
    /// `[batch, ...]`, or with probabilities in the shape of the logits: `log_softmax`, then
    /// [`nll_loss`](Self::nll_loss). Class weights, an index to ignore and label smoothing are
    /// options.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let logits = device.from_vec(vec![0.0f32, 0.0, 100.0, 0.0], [2, 2]);
    /// let loss = logits.cross_entropy(device.from_vec(vec![0i64, 0], [2]), ());
    /// assert!((loss.item::<f32>().await? - 2f32.ln() / 2.0).abs() < 1e-6);
    /// assert!(logits.cross_entropy(device.from_vec(vec![0i64, 2], [2]), ()).await.unwrap_err()
    ///     .is_index());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "CrossEntropyLoss")]
    #[track_caller]
    pub fn cross_entropy(
        &self,
        target: impl AsRef<TensorFuture>,
        options: impl Into<LossOptions>,
    ) -> TensorFuture {
        let (target, options, at): (_, _, At) =
            (target.as_ref(), options.into(), Location::caller());
        if let Some(x) = mixed::widened(self, at) {
            return x.cross_entropy(target, options);
        }
        let _within = build::within("cross_entropy", at);
        let smoothing = options.label_smoothing;
        let refuse = |refusal| build::refused("cross_entropy", self, refusal, at);
        if !(0.0..=1.0).contains(&smoothing) {
            return refuse(Refusal::argument(format!(
                "a label smoothing of {smoothing} is out of range"
            )));
        }
        if target.dtype().is_float() {
            return match self.likely(target, &options) {
                Ok(loss) => loss,
                Err(refusal) => refuse(refusal),
            };
        }
        let dim = match checked_classes(self, target, &options) {
            Ok(dim) => dim,
            Err(refusal) => return refuse(refusal),
        };
        let name = build::named("cross_entropy");
        let op = |ignore, mean| CrossEntropy { ignore, mean, name, back: false };
        if let Some(loss) = short(op, self, target, dim, &options) {
            return loss;
        }
        let logs = self.wide().log_softmax(dim as isize);
        let picked = pick(&logs, target, dim, &options);
        if smoothing == 0.0 {
            return nll(&logs, &picked, options.reduction, self.dtype());
        }
        // The smoothing term: minus the mean of all log probabilities, weighted by class.
        let weighed = match &options.weight {
            None => logs.sum(dim as isize),
            Some(weight) => (&logs * across(weight, self.rank(), dim)).sum(dim as isize),
        };
        let even = picked.counts.where_cond(-weighed / self.dims()[dim] as f64, 0.0);
        let even = match options.reduction {
            Reduction::Mean => even.sum_all() / picked.weight.sum_all(),
            Reduction::Sum => even.sum_all(),
            Reduction::None => even,
        };
        let own = nll(&logs, &picked, options.reduction, logs.dtype());
        (own * (1.0 - smoothing) + even * smoothing).to_dtype(self.dtype())
    }

    /// Cross entropy with probabilities.
    #[track_caller]
    fn likely(
        &self,
        target: &TensorFuture,
        options: &LossOptions,
    ) -> Result<TensorFuture, Refusal> {
        let dim = class_dim(self)?;
        let classes = self.dims()[dim];
        if target.shape() != self.shape() {
            let text =
                format!("probabilities of {} for an input of {}", target.shape(), self.shape());
            return Err(Refusal::shape(text));
        }
        checked_weight(classes, options)?;
        // That of the products of which the loss is made, as in PyTorch.
        let mut dtype = self.dtype().promote(target.dtype());
        if let Some(weight) = &options.weight {
            dtype = dtype.promote(weight.dtype());
        }
        let logs = self.to_dtype(dtype.wide()).log_softmax(dim as isize);
        let mut target = target.to_dtype(logs.dtype());
        if options.label_smoothing > 0.0 {
            target =
                target * (1.0 - options.label_smoothing) + options.label_smoothing / classes as f64;
        }
        let mut terms = logs * target;
        if let Some(weight) = &options.weight {
            terms = terms * across(weight, self.rank(), dim);
        }
        let loss = -terms.sum(dim as isize);
        Ok(reduced(&loss, options.reduction, dtype))
    }

    /// Negative log likelihood of these log probabilities `[batch, classes, ...]` (or
    /// `[classes]`) at class numbers `[batch, ...]`.
    #[doc(alias = "NLLLoss")]
    #[track_caller]
    pub fn nll_loss(
        &self,
        target: impl AsRef<TensorFuture>,
        options: impl Into<LossOptions>,
    ) -> TensorFuture {
        let (target, options, at): (_, _, At) =
            (target.as_ref(), options.into(), Location::caller());
        if let Some(x) = mixed::widened(self, at) {
            return x.nll_loss(target, options);
        }
        let dim = match checked_classes(self, target, &options) {
            Ok(dim) => dim,
            Err(refusal) => return build::refused("nll_loss", self, refusal, at),
        };
        let _within = build::within("nll_loss", at);
        let (logs, name) = (self.wide(), build::named("nll_loss"));
        let op = |ignore, mean| Nll { ignore, mean, name, back: None };
        if let Some(loss) = short(op, &logs, target, dim, &options) {
            return loss.to_dtype(self.dtype());
        }
        nll(&logs, &pick(&logs, target, dim, &options), options.reduction, self.dtype())
    }

    /// Binary cross entropy of the sigmoid of these logits with targets from 0 to 1, in a form that
    /// does not overflow. A weight, and a weight for positive examples, are options.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![0.0f32, 200.0], [2]);
    /// let loss = x.bce_with_logits(device.ones([2]), ());
    /// assert!((loss.item::<f32>().await? - 2f32.ln() / 2.0).abs() < 1e-6);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("BCEWithLogitsLoss", "binary_cross_entropy_with_logits"))]
    #[track_caller]
    pub fn bce_with_logits(
        &self,
        target: impl AsRef<TensorFuture>,
        options: impl Into<LossOptions>,
    ) -> TensorFuture {
        let (target, options, at): (_, _, At) =
            (target.as_ref(), options.into(), Location::caller());
        if let Some(x) = mixed::widened(self, at) {
            return x.bce_with_logits(target, options);
        }
        let checked = float(self).and_then(|()| match target.shape() == self.shape() {
            true => Ok(()),
            false => {
                Err(Refusal::shape(format!("targets of {} for {}", target.shape(), self.shape())))
            }
        });
        if let Err(refusal) = checked {
            return build::refused("bce_with_logits", self, refusal, at);
        }
        let _within = build::within("bce_with_logits", at);
        let (x, t) = (self.wide(), target.wide());
        // -log sigmoid(x), with exponents that are never positive.
        let compute = || {
            let x = self.wide();
            (-x.abs()).exp().log1p() + (-x).relu()
        };
        let needs = Needs::inputs(&[0]);
        let mut soft = ruled("bce_with_logits", &[self], needs, compute, |call| {
            call.give(0, |call| (-call.input(0)).sigmoid() * -call.upstream());
        });
        if let Some(weight) = &options.pos_weight {
            soft = ((weight.wide() - 1.0) * &t + 1.0) * soft;
        }
        let mut loss = (1.0 - &t) * &x + soft;
        if let Some(weight) = &options.weight {
            loss = loss * weight.wide();
        }
        let dtype = self.dtype().promote_ranked(self.rank(), target.dtype(), target.rank());
        reduced(&loss, options.reduction, dtype)
    }
}

/// Class weights, reshaped to broadcast against a value of this rank.
#[track_caller]
fn across(weight: &TensorFuture, rank: usize, dim: usize) -> TensorFuture {
    let shape: Vec<isize> = (0..rank).map(|d| if d == dim { -1 } else { 1 }).collect();
    weight.wide().reshape(shape)
}
