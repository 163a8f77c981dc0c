//! Async/await tensors: every operation returns at once with a [`TensorFuture`], and every barrier
//! is a visible `.await`.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::Device;
//! let device = Device::try_gpu(0);                     // a GPU where there is one, else the CPU
//! let x = device.ones([1, 2]);                         // nothing has waited
//! let z = &x * &x + 2.0;                               // queued, fused into one kernel
//! assert_eq!(z.display().await?, "tensor([[3., 3.]])"); // waits for this value, for nothing else
//! (&z + 1.0).detach();                                 // fire and forget
//! device.waitall().await?;                             // joins the whole device
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```
//!
//! # Finding your way
//!
//! - [`Device`]: where values live. Creation (`zeros`, `randn`, `from_vec`...), barriers,
//!   backpressure, counters.
//! - [`TensorFuture`]: a value to come, with every op as a method; [`Tensor`], one that is known to
//!   be there. [`cat`], [`stack`] and [`einsum`] are functions.
//! - Operators take futures, tensors, references and numbers: [`Operand`]. Indexing:
//!   [`TensorFuture::i`]. Random numbers for each task: [`Generator`].
//! - Reads: [`TensorFuture::to_vec`], [`TensorFuture::item`], [`TensorFuture::display`].
//! - Barriers: [`TensorFuture::wait_to_read`], [`Device::waitall`], [`waitall`]. The module
//!   [`barrier`] reports where a program waits, and can make any wait inside a task an error.
//! - Backpressure: [`Device::ready`] for one producer, [`Device::admit`] and [`Device::try_admit`]
//!   for many.
//! - Gradients: [`TensorFuture::requires_grad`], [`grad`], [`no_grad`],
//!   [`TensorFuture::stop_gradient`], [`checkpoint`]. Layers and training: [`nn`], [`optim`],
//!   [`train`], [`data`].
//! - A block of ops that is planned once and then only run: [`Device::region`].
//! - Several processes and machines: [`ranks`].
//! - In a service: [`serve`] (many requests, few batches; results as they complete).
//! - What ran and who waited, as a picture: [`Device::record`].
//! - Ops of your own: [`custom`](mod@custom), with kernels for a GPU: [`cuda`].
//! - Tests of your own code: [`Device::simulated`], a device whose order and faults a seed chooses.
//!
//! # The first thing to know
//!
//! **A value that nobody can observe need not be computed.** Observers are a live handle, a pending
//! read or await, a [`detach`](TensorFuture::detach), and whatever an observed value is made from.
//! Dropping a request's future therefore cancels its queued work. `waitall` joins what runs, and is
//! no observer. (PyTorch's `detach`, which cuts a value off its gradient, is
//! [`stop_gradient`](TensorFuture::stop_gradient) here.)
//!
//! # Errors
//!
//! A mistake in the arguments makes a failed value, not a panic, and needs no `?` at the op:
//!
//! ```
//! # tokio_test::block_on(async {
//! let device = futensor::Device::cpu();
//! let wrong = device.ones([2, 3]) * device.ones([4]);  // no panic here
//! let error = (wrong + 1.0).await.unwrap_err();        // the root, wherever it is awaited
//! assert!(error.is_shape() && error.op() == "mul");
//! assert_eq!(error.message(), "cannot broadcast [2, 3] with [4]");
//! # });
//! ```
//!
//! # Executors
//!
//! The library uses no runtime: futures run under tokio, `futures::executor`, smol or a
//! hand-written loop. From a plain thread, [`block_on`]`(x.to_vec::<f32>())` waits. Inside an async
//! task only `.await` does.
//!
//! # Features
//!
//! By default:
//!
//! - `cuda`: GPUs, without a toolkit;
//! - `safetensors`, `gguf`: weights from and to disk;
//! - `ranks`: groups of processes, collectives with gradients, over an MPI that is found at run
//!   time;
//! - `serve`: [`serve::Batcher`], a tower `Service`, and [`serve::completed`];
//! - `tokio`: [`block_on`] refuses to block a worker of tokio's.
//!
//! On demand:
//!
//! - `ndarray`: host values to and from its arrays;
//! - `tracing`: ops, steps and barriers for any subscriber, as [`recording`] says.
//!
//! The [book] explains all of it: [concepts](book::concepts), coming [from
//! PyTorch](book::from_pytorch) and [from candle](book::from_candle), [serving](book::serving),
//! [training](book::training), [debugging](book::debugging), and more. Contributors start with the
//! [architecture](book::architecture).

mod backend;
mod concurrent;
mod dtype;
mod error;
mod format;
mod guard;
mod memory;
mod op;
mod options;
mod philox;
#[cfg(any(feature = "cuda", all(feature = "ranks", unix)))]
mod process_end;
mod room;
mod shape;
mod sync;
mod view;
mod window;

mod engine;
mod graph;
mod host;
mod ops;
#[cfg(feature = "serve")]
pub mod serve;
mod tensor;

// After `tensor`, so that the page of `Device` opens with what is for every device.
pub mod cuda;

pub mod data;
#[cfg(any(feature = "gguf", feature = "safetensors"))]
mod files;
#[cfg(feature = "gguf")]
pub mod gguf;
pub mod nn;
pub mod optim;
pub mod quant;
#[cfg(all(feature = "ranks", unix))]
pub mod ranks;
#[cfg(feature = "safetensors")]
pub mod safetensors;
pub mod train;

#[cfg(doc)]
pub mod book;

// What a normal program names. The rest has a module for each thing that one might do.
pub use dtype::{DType, Element, Scalar};
pub use error::{Error, Result};
pub use host::cpu::CpuOptions;
pub use memory::DeviceMemory;
pub use op::ScatterMode;
pub use shape::Shape;
pub use tensor::barrier::waitall;
pub use tensor::block_on::block_on;
pub(crate) use tensor::custom::own;
pub use tensor::device::{Device, Stats};
pub use tensor::dims::{Dims, Index, Indices};
pub use tensor::future::{Tensor, TensorFuture};
pub use tensor::generator::Generator;
pub(crate) use tensor::gradient::backward::Backward;
pub use tensor::gradient::checkpoint::checkpoint;
pub use tensor::gradient::taped::no_grad;
pub use tensor::gradient::{GradOptions, Leaf, grad, grad_with};
pub use tensor::methods::attention::scaled::AttentionOptions;
pub use tensor::methods::products::einsum::einsum;
pub use tensor::methods::rows::losses::{LossOptions, Reduction};
pub use tensor::methods::shaping::join::{cat, stack};
pub use tensor::methods::shaping::pad::PadMode;
pub use tensor::methods::windows::conv::ConvOptions;
pub use tensor::methods::windows::interpolate::{InterpolateMode, InterpolateOptions};
pub use tensor::methods::windows::pool::PoolOptions;
pub use tensor::operand::Operand;

/// Barriers and backpressure: where a program waits, and the futures that it waits for.
///
/// A [`Barriers`](barrier::Barriers) collects where a program waits, how long, and whether the
/// device ran dry meanwhile. [`deny_barriers`](barrier::deny_barriers) makes a barrier inside a
/// task an error.
pub mod barrier {
    pub use crate::tensor::barrier::{Admit, Permit, Ready, Shutdown, WaitAll, WaitEverything};
    pub use crate::tensor::barriers::{BarrierReport, Barriers, barriers};
    pub use crate::tensor::future::Wait;
    pub use crate::tensor::scope::{Scoped, allow_barriers, deny_barriers, tell_barriers};
    pub use crate::tensor::watch::{Barrier, BarrierSite};
}

/// Ops of your own: [`custom_fn`](custom::custom_fn) takes two closures,
/// [`custom`](custom::custom()) an [`Operation`](custom::Operation).
///
/// An operation has a shape rule and a CPU kernel, and on demand a gradient, a kernel in CUDA C,
/// and an input that it writes over. Errors, skipping and recordings treat it like any other op.
pub mod custom {
    pub use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
    pub use crate::tensor::custom::{custom, custom_fn, custom_owned};
    pub use crate::tensor::gradient::backward::Backward;
    pub use crate::view::{Output, Parallel, View};
}

/// The futures of reads: [`TensorFuture::to_vec`] and its siblings return them.
pub mod read {
    #[cfg(feature = "ndarray")]
    pub use crate::tensor::read::ToNdarray;
    pub use crate::tensor::read::{Item, NonZero, Shown, ToVec};
}

/// What a device ran, on which stream, after what; what was fused or skipped; who awaited what.
///
/// [`Device::record`] begins, [`Recorder::finish`](recording::Recorder::finish) ends with a
/// [`Recording`](recording::Recording): data, and pictures of it.
///
/// # For `tracing`
///
/// With the feature `tracing` any subscriber gets these, all with the caller's line:
///
/// - `futensor::op`, an event an op as it is queued, at TRACE;
/// - `futensor::step`, a span a step that runs on a stream, at DEBUG (an event a small op, at
///   TRACE);
/// - `futensor::barrier`, an event an await that has ended, at DEBUG.
///
/// Steps run on the device's threads, so their spans are no children of a task's.
/// [tokio-console](https://docs.rs/console-subscriber) shows tokio's own spans alone: the tasks
/// that await, not the steps. A layer beside it prints those:
///
/// ```text
/// use tracing_subscriber::{EnvFilter, Layer, fmt, prelude::*};
/// let ours = fmt::layer()
///     .with_span_events(fmt::format::FmtSpan::CLOSE)       // a step has a line once it has ended
///     .with_filter(EnvFilter::new("futensor=debug"));
/// tracing_subscriber::registry().with(console_subscriber::spawn()).with(ours).init();
/// ```
pub mod recording {
    pub use crate::engine::record::{Ran, RecordedAwait, RecordedOp, RecordedStep, Recording};
    pub use crate::tensor::recorder::Recorder;
    pub use crate::tensor::scope::named;
}

/// The rows of the op tables, for tests and benches: no part of the API.
#[doc(hidden)]
pub mod rows {
    pub use crate::op::Domain;
    pub use crate::ops::operations;
    pub use crate::tensor::operand::OperandRef;
    pub use crate::tensor::operand::rows::{Row, ScanRow, all, find, scans};
}

/// Blocks of ops that are planned once and then only run: [`Device::region`] makes one.
pub mod region {
    pub use crate::tensor::region::{Flat, Region, Tensors};
}

/// For `tests/schedules`: around each order of threads that is explored.
#[cfg(futensor_shuttle)]
#[doc(hidden)]
pub mod schedule {
    pub use crate::sync::schedule::{begin, end};
}

/// A device whose order, faults and clock a seed chooses: [`Device::simulated`].
///
/// For tests of your own code: a seed that failed fails again.
pub mod sim {
    pub use crate::host::simulated::SimOptions;
    pub use crate::tensor::simulated::Simulation;
}

// For the tests of this library alone: no part of what users have of it.
#[doc(hidden)]
pub mod in_hand {
    pub use crate::tensor::in_hand::{InHand, devices, drive, values_and_wakers};
}
