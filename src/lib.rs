//! Async/await tensors: every operation returns at once with a [`TensorFuture`], and every barrier
//! is a visible `.await`.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::Device;
//! let device = Device::try_gpu(0);                     // the GPU if any, otherwise the CPU
//! let x = device.ones([1, 2]);                         // nothing has waited
//! let z = &x * &x + 2.0;                               // queued, fused into one kernel
//! assert_eq!(z.display().await?, "tensor([[3., 3.]])"); // waits for this value alone
//! (&z + 1.0).detach();                                 // fire and forget
//! device.waitall().await?;                             // joins the whole device
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```
//!
//! # Finding your way
//!
//! - [`Device`]: where values live. Creation (`zeros`, `randn`, `from_vec`...), barriers,
//!   backpressure, counters.
//! - [`TensorFuture`]: a value that is being computed, with every op as a method; [`Tensor`], a
//!   value that is complete. [`cat`], [`stack`] and [`einsum`] are functions.
//! - Operators take futures, tensors, references and numbers: [`Operand`]. Indexing:
//!   [`TensorFuture::i`]. A random sequence for each task: [`Generator`].
//! - Reads: [`TensorFuture::to_vec`], [`TensorFuture::item`], [`TensorFuture::display`].
//! - Barriers: [`TensorFuture::wait_to_read`], [`Device::waitall`], [`waitall`]. The module
//!   [`barrier`] reports where a program waits, and can make any wait inside a task an error.
//! - Backpressure: [`Device::ready`] for one producer, [`Device::admit`] and [`Device::try_admit`]
//!   for many.
//! - Gradients: [`TensorFuture::requires_grad`], [`grad`], [`no_grad`],
//!   [`TensorFuture::stop_gradient`], [`checkpoint`]. Layers and training: [`nn`], [`optim`],
//!   [`train`], [`data`].
//! - A block of ops that is planned once and replayed: [`Device::region`].
//! - Several processes and machines: [`ranks`].
//! - Inference services: [`serve`] (requests gathered into batches; results as they complete).
//! - A timeline of what ran and which task waited: [`Device::record`].
//! - Custom ops: [`custom`](mod@custom), with GPU kernels: [`cuda`].
//! - The source of the first NaN: [`finite`].
//! - Tests of your own code: [`Device::simulated`], a device whose execution order and faults are
//!   chosen by a seed.
//!
//! # The first thing to know
//!
//! **Unobserved values may be skipped.** A value is observed while it has a live handle, a pending
//! read or await, or a [`detach`](TensorFuture::detach), or while an observed value is computed
//! from it. Dropping a request's future therefore cancels its queued work. `waitall` waits for work
//! that runs; it is not an observer. (PyTorch's `detach`, which cuts a value off its gradient, is
//! [`stop_gradient`](TensorFuture::stop_gradient) here.)
//!
//! # Errors
//!
//! An invalid argument makes a failed value instead of a panic, so an op needs no `?`:
//!
//! ```
//! # tokio_test::block_on(async {
//! let device = futensor::Device::cpu();
//! let wrong = device.ones([2, 3]) * device.ones([4]);  // no panic here
//! let error = (wrong + 1.0).await.unwrap_err();        // the root error, wherever it is awaited
//! assert!(error.is_shape() && error.op() == "mul");
//! assert_eq!(error.message(), "cannot broadcast [2, 3] with [4]");
//! # });
//! ```
//!
//! # Executors
//!
//! The library uses no runtime: futures run under tokio, `futures::executor`, smol or a
//! hand-written loop. A plain thread waits with [`block_on`]`(x.to_vec::<f32>())`; an async task
//! waits only at an `.await`.
//!
//! # Features
//!
//! By default:
//!
//! - `cuda`: GPUs; needs no toolkit;
//! - `safetensors`, `gguf`: weights loaded from and saved to disk;
//! - `ranks`: groups of processes, collectives with gradients, over an MPI that is found at run
//!   time;
//! - `serve`: [`serve::Batcher`], a tower `Service`, and [`serve::completed`];
//! - `tokio`: [`block_on`] refuses to block a tokio worker.
//!
//! Optional:
//!
//! - `fft`, `linalg`: Fourier transforms, and linear algebra;
//! - `ndarray`: conversions between host values and `ndarray` arrays;
//! - `npy`, `pth`: NumPy's files, and weights that PyTorch saved;
//! - `serde`: types, devices, shapes and options of devices in configuration files;
//! - `tracing`: ops, steps and barriers for any subscriber, described in [`recording`].
//!
//! The [book] explains all of it: [concepts](book::concepts), coming [from
//! PyTorch](book::from_pytorch) and [from candle](book::from_candle), [serving](book::serving),
//! [training](book::training), [debugging](book::debugging), and more. Contributors start with the
//! [architecture](book::architecture).

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod concurrent;
#[cfg(feature = "serde")]
mod configuration;
mod dtype;
mod error;
mod format;
mod guard;
mod json;
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

// After `tensor`, so that the page of `Device` opens with the methods of every device.
pub mod cuda;

pub mod data;
#[cfg(feature = "fft")]
pub mod fft;
#[cfg(any(feature = "gguf", feature = "npy", feature = "pth", feature = "safetensors"))]
#[cfg_attr(
    not(all(feature = "gguf", feature = "npy", feature = "pth", feature = "safetensors")),
    allow(dead_code, unused_imports) // Each format uses a part.
)]
mod files;
pub mod float8;
#[cfg(feature = "gguf")]
pub mod gguf;
#[cfg(any(feature = "fft", feature = "linalg"))]
mod hosted;
#[cfg(feature = "linalg")]
pub mod linalg;
pub mod nn;
#[cfg(feature = "npy")]
pub mod npy;
pub mod optim;
#[cfg(feature = "pth")]
pub mod pth;
pub mod quant;
#[cfg(all(feature = "ranks", unix))]
pub mod ranks;
#[cfg(feature = "safetensors")]
pub mod safetensors;
pub mod train;

#[cfg(doc)]
pub mod book;

// The names that a normal program needs. Each special task has a module.
pub use dtype::{DType, Element, Scalar};
pub use error::{Error, Result};
pub use host::cpu::CpuOptions;
pub use memory::{DeviceMemory, PoolMemory};
pub use op::ScatterMode;
pub use ops::index::places::PadMode;
pub use shape::Shape;
pub use tensor::barrier::waitall;
pub use tensor::block_on::block_on;
pub(crate) use tensor::custom::own;
pub use tensor::device::{Device, Stats};
pub use tensor::dims::{Dims, Index, Indices};
pub use tensor::future::{Tensor, TensorFuture};
pub use tensor::generator::{Generator, GeneratorState};
pub(crate) use tensor::gradient::backward::Backward;
pub use tensor::gradient::checkpoint::checkpoint;
pub use tensor::gradient::taped::no_grad;
pub use tensor::gradient::{GradOptions, Leaf, grad, grad_with};
pub use tensor::methods::attention::scaled::AttentionOptions;
pub use tensor::methods::products::einsum::einsum;
pub use tensor::methods::rows::losses::{LossOptions, Reduction};
pub use tensor::methods::shaping::axes::meshgrid;
pub use tensor::methods::shaping::join::{cat, stack};
pub use tensor::methods::windows::conv::ConvOptions;
pub use tensor::methods::windows::interpolate::{InterpolateMode, InterpolateOptions};
pub use tensor::methods::windows::pool::PoolOptions;
pub use tensor::operand::Operand;

/// Barriers and backpressure: the futures that a program waits for, and a report of where it waits.
///
/// A [`Barriers`](barrier::Barriers) collects where a program waits, how long, and whether the
/// device ran dry meanwhile. [`deny_barriers`](barrier::deny_barriers) makes a barrier inside a
/// task an error.
pub mod barrier {
    pub use crate::tensor::barrier::{
        Admit, Permit, Ready, Shutdown, TrimWait, WaitAll, WaitEverything,
    };
    pub use crate::tensor::barriers::{BarrierReport, Barriers, barriers};
    pub use crate::tensor::future::Wait;
    pub use crate::tensor::scope::{Scoped, allow_barriers, deny_barriers, tell_barriers};
    pub use crate::tensor::watch::{Barrier, BarrierSite};
}

/// [DLPack](https://dmlc.github.io/dlpack/latest/): tensors of other libraries, and tensors for
/// them, without a copy.
///
/// [`Device::from_dlpack`] takes a tensor, [`Tensor::to_dlpack`] lends one.
pub mod dlpack {
    pub use crate::tensor::creation::dlpack::{DlDataType, DlDevice, DlManagedTensor, DlTensor};
}

/// Host memory for data that goes to a device, or comes from it: [`Device::pinned`],
/// [`Device::from_pinned`] and [`TensorFuture::to_pinned`].
///
/// For a GPU it is page-locked, so that the data are copied from where they lie, or to there.
pub mod pinned {
    pub use crate::tensor::creation::pinned::{Pinned, Pinning};
    pub use crate::tensor::read::pinned::ToPinned;
}

/// Ops of your own: [`custom_fn`](custom::custom_fn) takes two closures,
/// [`custom`](custom::custom()) an [`Operation`](custom::Operation).
///
/// An operation has a shape rule and a CPU kernel. A gradient, a kernel in CUDA C, and an input
/// that it overwrites are optional. Errors, skipping and recordings treat it like any other op.
pub mod custom {
    pub use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
    pub use crate::tensor::custom::{custom, custom_fn, custom_owned};
    pub use crate::tensor::gradient::backward::Backward;
    pub use crate::view::{Output, Parallel, View};
}

/// The source of the first NaN: a check of each op for values that are not finite.
///
/// Every value made of a NaN is NaN, so a loss that is NaN does not say where the NaN came from. On
/// a device that was opened with
/// [`CpuOptions::check_finite`](crate::CpuOptions::check_finite) (or its siblings of
/// [`CudaOptions`](crate::cuda::CudaOptions) and [`SimOptions`](crate::sim::SimOptions), or
/// `FUTENSOR_CHECK_FINITE=1` in the environment), and inside
/// [`check_finite`](finite::check_finite), the first op that makes one fails, and all that is made
/// of its value with it. The error ([`is_not_finite`](crate::Error::is_not_finite)) names the op,
/// the shapes, and the line that asked for it. PyTorch has it as `detect_anomaly`, JAX as
/// `debug_nans`.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{CpuOptions, Device, grad};
/// let device = Device::cpu_with(CpuOptions::default().check_finite(true));
/// let w = device.zeros([2]).requires_grad();
/// let loss = w.sqrt().sum_all();                   // 0, and its slope has no end
/// assert_eq!(loss.item::<f32>().await?, 0.0);
/// let gradient = grad(&loss, &[&w]).remove(0);
/// let error = gradient.await.unwrap_err();
/// assert!(error.is_not_finite() && error.message().contains("in the gradient of sqrt"));
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # What is checked
///
/// Every op that computes floats from operands: those of gradients, of optimizers, and inside
/// regions too, on every device. It fails where
///
/// - its result has a NaN, and no operand has one;
/// - its result has an infinity, and no operand has an infinity or a NaN.
///
/// So a mask of `-inf` is fine, and a row that is masked altogether is found where a softmax makes
/// NaN of it. A number beside a tensor is an operand. What is created or brought from outside has
/// no operands, and is no error, whatever is in it: `x.isfinite().all()` looks at data. Views make
/// nothing.
///
/// # What it costs
///
/// Nothing where it is off. Where it is on, each op is followed by a pass over its result and its
/// float operands, which fuses with an elementwise op; results are written out; and what changes an
/// operand in place copies it, since the check reads the operand as well.
pub mod finite {
    pub use crate::tensor::scope::{allow_not_finite, check_finite};
}

/// Mixed precision: products in 16 bits, sensitive ops in float32.
///
/// Inside [`autocast`](mixed::autocast), or its form for futures,
/// [`mixed_precision`](mixed::mixed_precision), each op takes its operands in the type that suits
/// it, as under PyTorch's `autocast` on CUDA, whose lists these are:
///
/// - in the half: `matmul`, `mm`, `bmm`, `addmm`, `addmv`, `baddbmm`, `einsum`, `linear`, the
///   convolutions and transposed convolutions, `scaled_dot_product_attention`, `prelu`, and the
///   recurrent layers;
/// - in float32: `acos`, `asin`, `cdist`, `cosh`, `cosine_similarity`, `cumprod`, `cumsum`,
///   `erfinv`, `exp`, `expm1`, `group_norm`, `layer_norm`, `log` and its siblings, `log_softmax`,
///   `logsumexp`, `norm`, `pow`, `prod`, `recip` and a number divided by a tensor, `rms_norm`,
///   `rsqrt`, `sinh`, `softmax`, `softplus`, `square`, `sum`, `tan`, and the losses;
/// - in the types of their operands, promoted: all others.
///
/// Float64 and integers stay as they are. With float16 gradients need a
/// [`GradScaler`](crate::optim::GradScaler).
pub mod mixed {
    pub use crate::tensor::scope::{Half, autocast, full_precision, mixed_precision};
}

/// The futures of reads: [`TensorFuture::to_vec`] and its siblings return them.
pub mod read {
    pub use crate::tensor::later::Later;
    #[cfg(feature = "ndarray")]
    pub use crate::tensor::read::ToNdarray;
    pub use crate::tensor::read::{Item, NonZero, Shown, ToVec};
}

/// Probability distributions: samples, log probabilities and entropies. Parameters are broadcast,
/// and gradients flow to them.
pub mod distributions {
    pub use crate::tensor::chance::distributions::{Bernoulli, Beta, Categorical, Gamma, Normal};
}

/// Options of ops that few programs name.
pub mod op_options {
    pub use crate::tensor::methods::index::place::ScatterOptions;
    pub use crate::tensor::methods::order::middle::Between;
    pub use crate::tensor::methods::windows::patches::{GridOptions, GridPadding};
}

/// Recordings of a device: which steps ran, on which stream, after which others; which ops were
/// fused or skipped; which awaits waited for which values.
///
/// [`Device::record`] starts one; [`Recorder::finish`](recording::Recorder::finish) ends it and
/// returns a [`Recording`](recording::Recording), as data and as pictures.
///
/// # For `tracing`
///
/// With the feature `tracing`, any subscriber receives these, all with the caller's line:
///
/// - `futensor::op`, an event for each op as it is queued, at TRACE;
/// - `futensor::step`, a span for each step that runs on a stream, at DEBUG, with the step's time
///   in the field `took_ns` (an event for each small op, at TRACE, in the span that asked for the
///   op);
/// - `futensor::batch`, a span around the function of a [`Batcher`](crate::serve::Batcher), at
///   DEBUG;
/// - `futensor::barrier`, an event for each await that has ended, at DEBUG.
///
/// Steps run on the device's threads, so their spans are not children of a task's span. The span of
/// a step *follows from* the spans that were current when its ops were called. The span of a batch
/// follows from the spans in which its requests were submitted, and the ops of the function are
/// called in the batch's span. So a server can sum the time of the device by request.
///
/// [tokio-console](https://docs.rs/console-subscriber) shows only tokio's own spans: the tasks that
/// await, not the steps. A layer beside it prints the steps:
///
/// ```text
/// use tracing_subscriber::{EnvFilter, Layer, fmt, prelude::*};
/// let ours = fmt::layer()
///     .with_span_events(fmt::format::FmtSpan::CLOSE)       // one line for each finished step
///     .with_filter(EnvFilter::new("futensor=debug"));
/// tracing_subscriber::registry().with(console_subscriber::spawn()).with(ours).init();
/// ```
///
/// ## Device time of each request
///
/// This layer sums the time of steps by request, for a handler that runs in a span of its own
/// (`handle(request).instrument(info_span!("request"))`, or `tower_http`'s `TraceLayer`), and in
/// spans inside it as it likes: an op holds the span in which it was asked for open until it begins
/// or is skipped. A step's time is there before its value is: a request that has awaited its answer
/// has its sum. Several that asked for one step share its time. Small ops are not in the sum: the
/// awaiting task runs them itself, in some microseconds. On a GPU the time is the GPU's own, of
/// each step with [`timed(1)`](crate::cuda::CudaOptions::timed), of none by default. An op looks at
/// its span only where a subscriber wants DEBUG of `futensor::step`.
///
/// ```text
/// use tracing::field::{Field, Visit};
/// use tracing::{Id, Subscriber, span};
/// use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};
///
/// /// Nanoseconds of device time, by the id of a request's span.
/// #[derive(Clone, Default)]
/// struct DeviceTime(Arc<Mutex<HashMap<u64, u64>>>);
///
/// /// In a step's or a batch's span: who asked for it.
/// #[derive(Default)]
/// struct AskedBy(Vec<Id>);
///
/// struct Took(u64);
/// impl Visit for Took {
///     fn record_u64(&mut self, field: &Field, ns: u64) {
///         if field.name() == "took_ns" {
///             self.0 += ns;
///         }
///     }
///     fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
/// }
///
/// impl DeviceTime {
///     /// Each of those who asked has its part. A batch hands its part on to its requests.
///     fn share<S: Subscriber + for<'a> LookupSpan<'a>>(
///         &self,
///         ns: u64,
///         of: &Id,
///         spans: &Context<'_, S>,
///     ) {
///         let Some(span) = spans.span(of) else { return };
///         let asked_by = span.extensions().get::<AskedBy>().map(|by| by.0.clone());
///         let Some(asked_by) = asked_by else {
///             // A span of the program's own: the outermost around it is the request's.
///             let request = span.scope().from_root().next().map_or(span.id(), |root| root.id());
///             *self.0.lock().unwrap().entry(request.into_u64()).or_default() += ns;
///             return;
///         };
///         for asker in &asked_by {
///             self.share(ns / asked_by.len() as u64, asker, spans);
///         }
///     }
/// }
///
/// impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for DeviceTime {
///     fn on_follows_from(&self, span: &Id, asker: &Id, spans: Context<'_, S>) {
///         let Some(span) = spans.span(span) else { return };
///         let mut extensions = span.extensions_mut();
///         match extensions.get_mut::<AskedBy>() {
///             Some(by) => by.0.push(asker.clone()),
///             None => extensions.insert(AskedBy(vec![asker.clone()])),
///         }
///     }
///     fn on_record(&self, step: &Id, values: &span::Record<'_>, spans: Context<'_, S>) {
///         let mut took = Took(0);
///         values.record(&mut took);
///         if took.0 > 0 {
///             self.share(took.0, step, &spans);
///         }
///     }
///     fn on_close(&self, request: Id, _: Context<'_, S>) {
///         // To the log, or to the server's metrics.
///         if let Some(ns) = self.0.lock().unwrap().remove(&request.into_u64()) {
///             println!("a request has had {ns} ns of the device");
///         }
///     }
/// }
///
/// // let time = DeviceTime::default();
/// // tracing_subscriber::registry().with(time.clone()).init();
/// ```
pub mod recording {
    pub use crate::engine::record::{Ran, RecordedAwait, RecordedOp, RecordedStep, Recording};
    pub use crate::tensor::recorder::Recorder;
    pub use crate::tensor::scope::named;
}

/// Bytes of strangers and peers, for `tests/untrusted`: not part of the API.
#[cfg(all(feature = "ranks", unix))]
#[doc(hidden)]
pub mod untrusted {
    pub use crate::ranks::untrusted::{examples, hear};
}

/// The rows of the op tables, for tests and benches: not part of the API.
#[doc(hidden)]
pub mod rows {
    pub use crate::op::Domain;
    pub use crate::ops::operations;
    pub use crate::tensor::operand::OperandRef;
    pub use crate::tensor::operand::rows::{Row, ScanRow, all, find, scans};
}

/// Blocks of ops that are planned once and replayed: [`Device::region`] makes one.
pub mod region {
    pub use crate::tensor::region::{Flat, Region, Tensors};
}

/// For `tests/schedules`: around each order of threads that is explored.
#[cfg(futensor_shuttle)]
#[doc(hidden)]
pub mod schedule {
    pub use crate::sync::schedule::{begin, end};
}

/// A device whose execution order, faults and clock are chosen by a seed: [`Device::simulated`].
///
/// For tests of your own code: a failing seed reproduces the failure.
pub mod sim {
    pub use crate::host::simulated::SimOptions;
    pub use crate::tensor::simulated::Simulation;
}

// For the tests of this library alone: not part of the API.
#[doc(hidden)]
pub mod in_hand {
    pub use crate::tensor::in_hand::{InHand, devices, drive, values_and_wakers};
}
