//! Custom ops: ops from outside the crate.

use super::build;
use super::future::TensorFuture;
use crate::graph::node::Op;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::ops::Listed;
use crate::ops::custom::{Closures, Foreign};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;

/// Queues an op of your own on tensors of one device.
///
/// # Errors
/// The value fails if the shape rule or the kernel returns an error or panics. Without inputs it is
/// an argument error (on [`Device::cpu`](crate::Device::cpu)).
#[track_caller]
pub fn custom(op: impl Operation, inputs: &[&TensorFuture]) -> TensorFuture {
    foreign(op, inputs, Location::caller()).go()
}

/// [`custom`] on operands that are passed by value: their handles are dropped before the device
/// sees the op. So an op that [reuses](Operation::reuses) an operand changes it in place, unless
/// another handle exists.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, custom::{CpuRun, Meta, Operation, Refusal, custom_owned}};
///
/// /// A key-value cache: row `.0` of a matrix is replaced.
/// struct PutRow(usize);
///
/// impl Operation for PutRow {
///     fn name(&self) -> &str {
///         "put_row"
///     }
///     fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
///         match (inputs[0].shape.dims(), inputs[1].shape.dims()) {
///             ([n, m], [k]) if m == k && self.0 < *n => Ok(inputs[0].clone()),
///             _ => Err(Refusal::shape("a matrix and a row of it are needed")),
///         }
///     }
///     fn reuses(&self) -> Option<usize> {
///         Some(0)
///     }
///     fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
///         let row = run.inputs()[1].to_vec::<f32>()
///             .ok_or_else(|| Refusal::dtype("float32 only"))?;
///         // The elements of the matrix are in the output alone.
///         let matrix = run.output().into_slice::<f32>()
///             .ok_or_else(|| Refusal::dtype("float32 only"))?;
///         matrix[self.0 * row.len()..][..row.len()].copy_from_slice(&row);
///         Ok(())
///     }
/// }
///
/// let device = Device::cpu();
/// let mut cache = device.zeros([3, 2]);
/// for step in 0..2 {
///     cache = custom_owned(PutRow(step), [cache, device.full([2], step as f32 + 1.0)]);
/// }
/// assert_eq!(cache.to_vec::<f32>().await?, [1.0, 1.0, 2.0, 2.0, 0.0, 0.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// As [`custom`].
#[track_caller]
pub fn custom_owned(
    op: impl Operation,
    inputs: impl IntoIterator<Item = TensorFuture>,
) -> TensorFuture {
    let inputs: SmallVec<[TensorFuture; 4]> = inputs.into_iter().collect();
    let asked =
        foreign(op, &inputs.iter().collect::<SmallVec<[&TensorFuture; 4]>>(), Location::caller());
    asked.without(inputs)
}

/// Queues an op of your own made of two closures: a shape rule and a CPU kernel. The kernel runs on
/// the device's threads; a refusal or a panic fails this value and values computed from it.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, custom::{Meta, Refusal, custom_fn}};
/// let x = Device::cpu().arange(0.0, 4.0, 1.0);
/// let reversed = custom_fn(
///     "reverse",
///     &[&x],
///     |inputs| Ok(Meta::clone(inputs[0])),
///     |run| {
///         let values = run.inputs()[0].to_vec::<f32>()
///             .ok_or_else(|| Refusal::dtype("float32 only"))?;
///         run.output().fill_from(values.into_iter().rev());
///         Ok(())
///     },
/// );
/// assert_eq!(reversed.to_vec::<f32>().await?, [3.0, 2.0, 1.0, 0.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// The value fails if the shape rule or the kernel returns an error or panics. Without inputs it is
/// an argument error (on [`Device::cpu`](crate::Device::cpu)).
#[track_caller]
pub fn custom_fn(
    name: &str,
    inputs: &[&TensorFuture],
    infer: impl Fn(&[&Meta]) -> Result<Meta, Refusal> + Send + Sync + 'static,
    run: impl Fn(&mut CpuRun<'_>) -> Result<(), Refusal> + Send + Sync + 'static,
) -> TensorFuture {
    foreign(Closures { name: name.into(), infer, run }, inputs, Location::caller()).go()
}

/// Queues an op of the crate, for gradient rules.
#[track_caller]
pub(crate) fn own(op: impl Listed, inputs: &[&TensorFuture]) -> TensorFuture {
    build::custom(Arc::new(op), inputs, Location::caller())
}

fn foreign(op: impl Operation, inputs: &[&TensorFuture], at: build::At) -> build::Asked {
    let metas: SmallVec<[&Meta; 4]> = inputs.iter().map(|x| &x.node.meta).collect();
    let (op, ruled) = Foreign::ask(op, &metas);
    match inputs {
        [] => build::of_nothing(op.name(), at).into(),
        _ => build::ask(|| Op::Custom(Arc::new(op)), inputs, move || ruled, at),
    }
}
