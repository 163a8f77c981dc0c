//! Ops from outside the crate.

use super::build;
use super::future::TensorFuture;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::ops::custom::Closures;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

/// Queues an op of your own on tensors of one device.
///
/// # Errors
/// Those of the shape rule, whose panic is an error too, and of the kernel; an argument error with no inputs at
/// all (on [`Device::cpu`](crate::Device::cpu)).
#[track_caller]
pub fn custom(op: impl Operation, inputs: &[&TensorFuture]) -> TensorFuture {
    own(Arc::new(op), inputs, Location::caller())
}

/// Queues an op of your own that is two closures: its shape rule, and its CPU kernel. It runs on the
/// device's threads; a refusal or a panic in it fails this value and what is made from it.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, Meta, Refusal, custom_fn};
/// let x = Device::cpu().arange(0.0, 4.0, 1.0);
/// let reversed = custom_fn(
///     "reverse",
///     &[&x],
///     |inputs| Ok(Meta::clone(inputs[0])),
///     |run| {
///         let values = run.inputs()[0].to_vec::<f32>().ok_or_else(|| Refusal::dtype("float32 only"))?;
///         run.output().fill_from(values.into_iter().rev());
///         Ok(())
///     },
/// );
/// assert_eq!(reversed.to_vec::<f32>().await?, [3.0, 2.0, 1.0, 0.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// Those of the shape rule, whose panic is an error too, and of the kernel; an argument error with no inputs at
/// all (on [`Device::cpu`](crate::Device::cpu)).
#[track_caller]
pub fn custom_fn(
    name: &str,
    inputs: &[&TensorFuture],
    infer: impl Fn(&[&Meta]) -> Result<Meta, Refusal> + Send + Sync + 'static,
    run: impl Fn(&mut CpuRun<'_>) -> Result<(), Refusal> + Send + Sync + 'static,
) -> TensorFuture {
    own(Arc::new(Closures { name: name.into(), infer, run }), inputs, Location::caller())
}

fn own(op: Arc<dyn Operation>, inputs: &[&TensorFuture], at: build::At) -> TensorFuture {
    let Some(first) = inputs.first() else { return build::of_nothing(op.name(), at) };
    // The user's rule: its panic is this value's error, as in the kernel.
    match catch_unwind(AssertUnwindSafe(|| build::custom(op.clone(), inputs, at))) {
        Ok(value) => value,
        Err(_) => build::refused(op.name(), first, Refusal::kernel("the shape rule panicked"), at),
    }
}
