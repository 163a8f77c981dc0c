//! Gradients: reverse-mode differentiation on the same lazy graph. Nothing here waits.
//!
//! `taped` puts values on the tape (`graph/tape`), `walk` goes back over it, `table` and the ops'
//! `gradient` methods are the rules, `ruled` gives several ops one rule, `checkpoint` trades memory
//! for a second run.

pub(crate) mod backward;
pub(crate) mod checkpoint;
mod pieces;
pub(crate) mod repeat;
pub(crate) mod ruled;
mod rules;
mod side;
pub(crate) mod table;
pub(crate) mod taped;
mod walk;

use super::build::{self, At};
use super::future::TensorFuture;
use crate::dtype::Scalar;
use crate::error::{Error, ErrorKind};
use crate::graph::node::Op;
use std::panic::Location;

/// Options of [`grad_with`]. Start from the default and change what you need.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, GradOptions, grad, grad_with};
/// let x = Device::cpu().from_vec(vec![2.0f32], [1]).requires_grad();
/// let y = (&x * &x * &x).sum_all();
/// // 3 x^2, itself on the tape
/// let first = grad_with(&y, &[&x], GradOptions::default().graph(true));
/// let second = grad(&first[0].sum_all(), &[&x]);                          // 6 x
/// assert_eq!(second[0].to_vec::<f32>().await?, [12.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct GradOptions {
    upstream: Option<TensorFuture>,
    retain: bool,
    graph: bool,
    zeros: bool,
}

impl GradOptions {
    /// The upstream gradient: in the shape of the first argument, which then need not be a scalar.
    /// One by default.
    pub fn upstream(mut self, gradient: &TensorFuture) -> GradOptions {
        self.upstream = Some(gradient.clone());
        self
    }

    /// Keeps the tape, so that another gradient can use it. Off by default.
    pub fn retain(mut self, on: bool) -> GradOptions {
        self.retain = on;
        self
    }

    /// Puts the gradients on the tape, so that they have gradients themselves; also keeps the tape.
    /// Off by default.
    pub fn graph(mut self, on: bool) -> GradOptions {
        self.graph = on;
        self
    }

    /// Returns zeros instead of an error for values that the loss does not depend on. Off by
    /// default.
    pub fn zeros(mut self, on: bool) -> GradOptions {
        self.zeros = on;
        self
    }
}

/// Types that gradients can be computed for: values, and the parameters of layers.
///
/// ```
/// use futensor::{Device, grad, nn, nn::Module};
/// let device = Device::cpu();
/// let net = nn::Linear::new(3, 1, &device);
/// let gradients = grad(net.forward(&device.ones([2, 3])).sum_all(), &net.parameters());
/// assert_eq!(gradients[0].dims(), [1, 3]);
/// ```
#[diagnostic::on_unimplemented(
    message = "gradients cannot be computed for `{Self}`",
    note = "they are computed for values and parameters: `grad(&loss, &[&w, &b])`, `grad(&loss, \
        &net.parameters())`"
)]
pub trait Leaf {
    /// The value itself.
    #[doc(hidden)]
    fn leaf(&self) -> TensorFuture;
}

impl<T: AsRef<TensorFuture>> Leaf for T {
    fn leaf(&self) -> TensorFuture {
        self.as_ref().clone()
    }
}
/// The gradients of `loss`, a floating point value of one element, with respect to the values in
/// `wrt`: one gradient each, of the same shape and type. They are queued like any other op; nothing
/// waits.
///
/// `grad` consumes the tape: the values that it kept for the rules are dropped, and a second `grad`
/// through the same ops fails; [`grad_with`] can keep the tape. The values in `wrt` are leaves
/// ([`requires_grad`](TensorFuture::requires_grad)) or values computed from leaves.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, grad};
/// let device = Device::cpu();
/// let w = device.from_vec(vec![1.0f32, -2.0], [2, 1]).requires_grad();
/// let b = device.zeros([1]).requires_grad();
/// let x = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]);
/// let loss = (x.matmul(&w) + &b).square().mean_all();
/// let gradients = grad(&loss, &[&w, &b]);
/// assert_eq!(gradients[0].to_vec::<f32>().await?, [-18.0, -26.0]);
/// assert_eq!(gradients[1].to_vec::<f32>().await?, [-8.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// Halves: each op, method, gradient rule and optimizer step takes halves, computes in float32, and
/// rounds its result once; so do sums into one place, and statistics. So the gradients of a value
/// that is used several times are added up in float32. A chain of your ops rounds at each op.
///
/// # Errors
/// A gradient is a failed value if `loss` has failed, does not have exactly one element, or is not
/// floating point; if `loss` does not depend on the value (a dependence through an op whose
/// gradient is zero everywhere gives zeros); or if an op on the way has no
/// gradient rule.
#[doc(alias("backward", "autograd"))]
#[track_caller]
pub fn grad(loss: impl AsRef<TensorFuture>, wrt: &[impl Leaf]) -> Vec<TensorFuture> {
    gradients(loss.as_ref(), wrt, GradOptions::default(), Location::caller())
}

/// [`grad`] with options: an upstream gradient, keeping the tape, gradients of gradients.
#[doc(alias("create_graph", "retain_graph"))]
#[track_caller]
pub fn grad_with(
    loss: impl AsRef<TensorFuture>,
    wrt: &[impl Leaf],
    options: GradOptions,
) -> Vec<TensorFuture> {
    gradients(loss.as_ref(), wrt, options, Location::caller())
}

fn gradients(
    loss: &TensorFuture,
    wrt: &[impl Leaf],
    options: GradOptions,
    at: At,
) -> Vec<TensorFuture> {
    let at = build::seen(at);
    let error = |kind, text: String| Error::new(kind, "grad", text, at);
    let wrt: Vec<TensorFuture> = wrt.iter().map(Leaf::leaf).collect();
    let found = match found(loss, &wrt, &options, at) {
        Ok(found) => found,
        Err(error) => return wrt.iter().map(|w| failed(w, error.clone(), at)).collect(),
    };
    found
        .into_iter()
        .zip(&wrt)
        .map(|(found, w)| match found {
            walk::Found::Gradient(gradient) => gradient,
            walk::Found::Zero => zeros(w),
            walk::Found::Nothing if w.error().is_some() => w.stop_gradient(),
            walk::Found::Nothing if !w.dtype().is_differentiable() => {
                let text =
                    format!("{} has no gradient: only floating point values have one", w.dtype());
                failed(w, error(ErrorKind::DType, text), at)
            }
            walk::Found::Nothing if options.zeros => zeros(w),
            walk::Found::Nothing => {
                let text = match w.is_on_tape() {
                    true => "the loss does not depend on this value",
                    false => {
                        "this value is not on the tape: compute the loss from the handle that \
                         `requires_grad` returns, and pass that handle"
                    }
                };
                failed(w, error(ErrorKind::Argument, text.into()), at)
            }
        })
        .collect()
}

/// The gradients with respect to the values that `loss` depends on, which must be at least one.
#[track_caller]
pub(crate) fn some_gradients(
    loss: &TensorFuture,
    wrt: &[TensorFuture],
) -> Result<Vec<Option<TensorFuture>>, Error> {
    let at = build::seen(Location::caller());
    let found = found(loss, wrt, &GradOptions::default(), at)?;
    let gradient = |(found, w)| match found {
        walk::Found::Gradient(gradient) => Some(gradient),
        walk::Found::Zero => Some(zeros(w)),
        walk::Found::Nothing => None,
    };
    let gradients: Vec<Option<TensorFuture>> = found.into_iter().zip(wrt).map(gradient).collect();
    if gradients.iter().all(Option::is_none) {
        let text = "the loss depends on none of the parameters: compute it from their values, \
            outside `no_grad`, and \
                    once for each step";
        return Err(Error::new(ErrorKind::Argument, "grad", text, at));
    }
    Ok(gradients)
}

/// The results of the walk from `loss`, for each of `wrt`.
fn found(
    loss: &TensorFuture,
    wrt: &[TensorFuture],
    options: &GradOptions,
    at: At,
) -> Result<Vec<walk::Found>, Error> {
    let error = |kind, text: String| Error::new(kind, "grad", text, at);
    let checked = match loss.error() {
        Some(error) => Err(error),
        None if !loss.dtype().is_differentiable() => Err(error(
            ErrorKind::DType,
            format!("the loss is {}: only floating point values have gradients", loss.dtype()),
        )),
        None => upstream(loss, options, at),
    };
    let upstream = checked?;
    let places: Vec<_> = wrt.iter().map(|w| w.tape.as_ref().map(|tape| tape.link())).collect();
    let mode =
        walk::Mode { retain: options.retain || options.graph, graph: options.graph, stop: false };
    Ok(walk::walk(loss.tape.as_ref().map(|tape| tape.link()), Some(loss), upstream, &places, mode))
}

fn zeros(like: &TensorFuture) -> TensorFuture {
    like.device().zeros_dtype(like.shape().clone(), like.dtype())
}

fn failed(like: &TensorFuture, error: Error, at: At) -> TensorFuture {
    build::failed(like.port(), like.node.meta.clone(), error, at)
}

/// The gradient of the loss itself.
fn upstream(loss: &TensorFuture, options: &GradOptions, at: At) -> Result<TensorFuture, Error> {
    let error = |kind, text: String| Error::new(kind, "grad", text, at);
    match &options.upstream {
        Some(given) => {
            if given.shape() != loss.shape() {
                let text = format!(
                    "an upstream gradient of shape {} for a value of {}",
                    given.shape(),
                    loss.shape()
                );
                return Err(error(ErrorKind::Shape, text));
            }
            if !std::ptr::eq(given.port(), loss.port()) {
                let text = format!(
                    "the upstream gradient is on {}, the value on {}: copy one with to_device",
                    given.port().profile.name,
                    loss.port().profile.name
                );
                return Err(error(ErrorKind::Device, text));
            }
            let keep = |x: TensorFuture| if options.graph { x } else { x.stop_gradient() };
            Ok(keep(given.to_dtype(loss.dtype())))
        }
        None if loss.numel() != 1 => {
            let text = format!(
                "the loss has shape {}, not one element: sum it up, or give an upstream gradient",
                loss.shape()
            );
            Err(error(ErrorKind::Shape, text))
        }
        None => Ok(build::create(
            loss.port(),
            Op::Fill(Scalar::Float(1.0)),
            loss.shape().clone(),
            loss.dtype(),
            at,
        )),
    }
}
