//! The arguments and results of a gradient rule. Created by the walk; `graph/` knows only its name.

use crate::graph::operation::Meta;
use crate::shape::Shape;
use crate::tensor::build::caller::at_once;
use crate::tensor::future::TensorFuture;
use smallvec::SmallVec;

/// One op of the tape, as its gradient rule
/// ([`Operation::gradient`](crate::custom::Operation::gradient)) sees it.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::custom::{Backward, CpuRun, Meta, Needs, Operation, Refusal, custom};
/// use futensor::{Device, grad};
///
/// struct Cube;
///
/// impl Operation for Cube {
///     fn name(&self) -> &str {
///         "cube"
///     }
///     fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
///         Ok(inputs[0].clone())
///     }
///     fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
///         let x = run.inputs()[0].to_vec::<f32>().ok_or_else(|| Refusal::dtype("float32 only"))?;
///         run.output().fill_from(x.into_iter().map(|x| x * x * x));
///         Ok(())
///     }
///     fn gradient_needs(&self, _: &[bool]) -> Needs {
///         Needs::inputs(&[0])
///     }
///     fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
///         call.give(0, |call| call.input(0).square() * 3.0 * call.upstream());
///         Ok(())
///     }
/// }
///
/// let x = Device::cpu().from_vec(vec![1.0f32, 2.0], [2]).requires_grad();
/// let loss = custom(Cube, &[&x]).sum_all();
/// assert_eq!(grad(&loss, &[&x])[0].to_vec::<f32>().await?, [3.0, 12.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
pub struct Backward<'a> {
    pub(super) inputs: SmallVec<[Option<TensorFuture>; 2]>,
    pub(super) metas: SmallVec<[&'a Meta; 2]>,
    pub(super) wanted: SmallVec<[bool; 2]>,
    pub(super) turned: SmallVec<[bool; 2]>,
    pub(super) output: Option<TensorFuture>,
    pub(super) output_meta: &'a Meta,
    /// The upstream gradient as the rule sees it, which may be in a wider type.
    pub(super) upstream: TensorFuture,
    pub(super) passed: TensorFuture,
    pub(super) graph: bool,
    pub(super) given: SmallVec<[(usize, TensorFuture); 2]>,
}

impl Backward<'_> {
    /// The gradient of the result, in its shape and type.
    pub fn upstream(&self) -> &TensorFuture {
        &self.upstream
    }

    /// The value of operand `i`.
    ///
    /// # Panics
    /// If the op's `gradient_needs` did not name it.
    pub fn input(&self, i: usize) -> &TensorFuture {
        self.inputs[i].as_ref().expect("an operand that `gradient_needs` names")
    }

    /// The value of the result.
    ///
    /// # Panics
    /// If the op's `gradient_needs` did not name it.
    pub fn output(&self) -> &TensorFuture {
        self.output.as_ref().expect("`gradient_needs` names the result")
    }

    /// Shape and type of operand `i`.
    pub fn meta(&self, i: usize) -> &Meta {
        self.metas[i]
    }

    /// Shape and type of the result.
    pub fn output_meta(&self) -> &Meta {
        self.output_meta
    }

    /// The number of operands.
    pub fn operands(&self) -> usize {
        self.metas.len()
    }

    /// True if the gradient of operand `i` is needed.
    pub fn wants(&self, i: usize) -> bool {
        self.wanted[i]
    }

    /// Zeros of the shape and type of operand `i`.
    pub fn zeros(&self, i: usize) -> TensorFuture {
        self.upstream.device().zeros_dtype(self.metas[i].shape.clone(), self.metas[i].dtype)
    }

    /// Sets the gradient of operand `i`; the closure runs only if the gradient is needed. The
    /// gradient may have the result's shape: it is summed over broadcast dimensions and cast to the
    /// operand's type. A shape that does not fit is a failed gradient. An operand without a
    /// gradient has gradient zero; several gradients of one operand are added.
    pub fn give(&mut self, i: usize, gradient: impl FnOnce(&Self) -> TensorFuture) {
        if self.wanted[i] {
            let mut gradient = gradient(self);
            if gradient.node.address() == self.upstream.node.address() {
                // The gradient passes through unchanged: use it in its original type.
                gradient = self.passed.clone();
            }
            let gradient = fitted(gradient, self.metas[i]);
            self.given.push((i, gradient));
        }
    }

    /// True if the gradients need gradients themselves.
    pub(crate) fn keeps_graph(&self) -> bool {
        self.graph
    }

    /// Has a rule of the user's called, which may wait for what it is given.
    pub(crate) fn by_user<R>(&mut self, rule: impl FnOnce(&mut Self) -> R) -> R {
        at_once(|| rule(self))
    }

    /// True if operand `i` is a view with the last two dimensions swapped. A rule should then, if
    /// it can, produce a gradient that is row-major once it is swapped back.
    pub(crate) fn is_turned(&self, i: usize) -> bool {
        self.turned[i]
    }
}

/// A gradient in the shape and type of its operand, if it fits; the walk checks. A float32 gradient
/// of a half operand stays float32: the walk rounds the sum of all gradients.
fn fitted(gradient: TensorFuture, to: &Meta) -> TensorFuture {
    let sum = sum_to(gradient, &to.shape);
    if sum.dtype() == to.dtype.wide() { sum } else { sum.to_dtype(to.dtype) }
}

/// Sums over broadcast dimensions; a smaller gradient is broadcast first. A gradient that does not
/// fit is unchanged.
fn sum_to(x: TensorFuture, shape: &Shape) -> TensorFuture {
    if x.shape() == shape {
        return x;
    }
    let Some(common) = x.shape().broadcast(shape) else { return x };
    let full = if &common == x.shape() { x } else { x.expand(common.dims()) };
    if full.shape() != &common {
        return full;
    }
    let lead = full.rank() - shape.rank();
    let gone: SmallVec<[isize; 8]> = (0..full.rank())
        .filter(|&d| d < lead || shape[d - lead] == 1 && full.dims()[d] != 1)
        .map(|d| d as isize)
        .collect();
    if gone.is_empty() {
        return full;
    }
    full.sum_keepdim(&gone[..]).reshape(shape.dims())
}
