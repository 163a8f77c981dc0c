//! Scopes that belong to a task: [`deny_barriers`], [`tell_barriers`], [`allow_barriers`],
//! [`named`], [`check_finite`], [`allow_not_finite`], [`mixed_precision`], [`full_precision`].
//!
//! Each is a pinned wrapper around a future that puts its scope in place at each poll and takes it
//! back after it, so that it follows the task from thread to thread and leaks to no other. What the
//! task spawns is another task, and outside. What awaits do inside stands in `watch`, what ops do
//! in `build/finite` and `build/mixed`.

use super::build::{finite, mixed};
use super::watch::{Barrier, Manner, Scope, Watcher};
use crate::dtype::DType;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A future with a scope around it: see [`deny_barriers`] and its siblings, and
/// [`check_finite`](crate::finite::check_finite) and
/// [`mixed_precision`](crate::mixed::mixed_precision).
#[pin_project::pin_project]
#[must_use = "futures do nothing unless awaited"]
pub struct Scoped<F> {
    #[pin]
    future: F,
    scope: Scope,
    /// Whether ops are checked; `None` leaves that as it is outside.
    checked: Option<bool>,
    /// The type that products are computed in, or none; `None` leaves that as it is outside.
    mixed: Option<Option<DType>>,
    /// Of a scope that awaits have to look at.
    watcher: Option<Watcher>,
}

impl<F> Scoped<F> {
    fn new(
        future: impl IntoFuture<IntoFuture = F>,
        manner: Option<Manner>,
        name: Option<Arc<str>>,
    ) -> Self {
        Scoped {
            future: future.into_future(),
            scope: Scope { manner, name },
            checked: None,
            mixed: None,
            watcher: Some(Watcher::new()),
        }
    }

    /// A scope that awaits do not look at.
    fn of_ops(
        future: impl IntoFuture<IntoFuture = F>,
        checked: Option<bool>,
        mixed: Option<Option<DType>>,
    ) -> Self {
        let future = future.into_future();
        Scoped { future, scope: Scope::default(), checked, mixed, watcher: None }
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _inside = this.watcher.is_some().then(|| this.scope.enter());
        let _checked = this.checked.map(finite::within);
        let _mixed = this.mixed.map(mixed::within);
        this.future.poll(cx)
    }
}

impl<F> fmt::Debug for Scoped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scoped")
    }
}

/// Makes every barrier inside this future an error that names its line. Use it to enforce that code
/// only queues work and never waits.
///
/// Barriers are awaits of a value, of a read, of `nonzero` and of `waitall`, even if they would not
/// have to wait. [`Device::ready`](crate::Device::ready) and [`admit`](crate::Device::admit) are
/// backpressure, and allowed. The scope belongs to the task: it holds on every thread that polls
/// the future, but not in tasks that the future spawns. The innermost of nested scopes applies.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, barrier::deny_barriers};
/// let device = Device::cpu();
/// let work = async {
///     let y = device.ones([2]) + 1.0;             // queued: fine
///     y.sum_all().item::<f32>().await             // a barrier
/// };
/// let error = deny_barriers(work).await.unwrap_err();
/// assert!(error.is_barrier() && error.op() == "item");
/// assert!(error.location().file().ends_with(".rs")); // the line of the barrier
/// # });
/// ```
///
/// # Cancel safety
/// As the future inside.
#[doc(alias = "set_sync_debug_mode")]
pub fn deny_barriers<F: IntoFuture>(future: F) -> Scoped<F::IntoFuture> {
    Scoped::new(future, Some(Manner::Deny), None)
}

/// Calls `f` at every barrier inside this future, and lets the barrier proceed: [`deny_barriers`]
/// as a warning.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, barrier::tell_barriers};
/// use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
/// static MET: AtomicUsize = AtomicUsize::new(0);
/// let x = Device::cpu().ones([2]);
/// tell_barriers(&x, |barrier| {
///     assert_eq!(barrier.what, "await");
///     MET.fetch_add(1, Relaxed);
/// }).await?;
/// assert_eq!(MET.load(Relaxed), 1);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Cancel safety
/// As the future inside.
pub fn tell_barriers<F: IntoFuture>(
    future: F,
    tell: impl Fn(Barrier) + Send + Sync + 'static,
) -> Scoped<F::IntoFuture> {
    Scoped::new(future, Some(Manner::Tell(Arc::new(tell))), None)
}

/// Allows barriers again, inside [`deny_barriers`].
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, barrier::{allow_barriers, deny_barriers}};
/// let loss = Device::cpu().ones([]);
/// let read = deny_barriers(async { allow_barriers(loss.item::<f32>()).await }).await;
/// assert_eq!(read?, 1.0);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Cancel safety
/// As the future inside.
pub fn allow_barriers<F: IntoFuture>(future: F) -> Scoped<F::IntoFuture> {
    Scoped::new(future, Some(Manner::Allow), None)
}

/// Names a task for recordings: its awaits are shown under this name.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{CpuOptions, Device, recording::named};
/// let device = Device::cpu_with(CpuOptions::default().inline(false));
/// let recording = device.record();
/// named("request 7", &(device.ones([100_000]) + 1.0)).await?;
/// let recording = recording.finish();
/// assert!(recording.awaits.iter().all(|a| a.name.as_deref() == Some("request 7")));
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Cancel safety
/// As the future inside.
pub fn named<F: IntoFuture>(name: impl Into<Arc<str>>, future: F) -> Scoped<F::IntoFuture> {
    Scoped::new(future, None, Some(name.into()))
}

/// Checks each op that is asked for inside this future: the first that makes a NaN or an infinity
/// fails, with an error that names it, its shapes and its line. [The module](crate::finite) says
/// what is checked, and what that costs.
///
/// The scope is the task's: it holds on whatever thread the future is polled, on every device, and
/// not in what the future spawns. Of scopes inside each other the innermost counts.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, finite::check_finite};
/// let x = Device::cpu().arange(0.0, 3.0, 1.0);
/// let loss = check_finite(async {
///     let y = (&x - 1.0).sqrt();                   // of -1, 0 and 1
///     (y * 2.0).sum_all().item::<f32>().await
/// });
/// let error = loss.await.unwrap_err();
/// assert!(error.is_not_finite() && error.op() == "sqrt");
/// assert!(error.message().starts_with("1 NaN in the float32 result [3]"), "{error}");
/// # });
/// ```
///
/// # Cancel safety
/// That of the future inside.
#[doc(alias("detect_anomaly", "debug_nans", "nan", "anomaly"))]
pub fn check_finite<F: IntoFuture>(future: F) -> Scoped<F::IntoFuture> {
    Scoped::of_ops(future, Some(true), None)
}

/// Checks no op that is asked for inside this future, whatever the device's options or a
/// [`check_finite`] around it say: for a part of a program in which infinities are meant.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{CpuOptions, Device, finite::allow_not_finite};
/// let device = Device::cpu_with(CpuOptions::default().check_finite(true));
/// let x = device.zeros([2]);
/// assert!(x.log().await.unwrap_err().is_not_finite());
/// let lowest = allow_not_finite(async { x.log() }).await;
/// assert_eq!(lowest.to_vec::<f32>().await?, [f32::NEG_INFINITY; 2]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Cancel safety
/// That of the future inside.
pub fn allow_not_finite<F: IntoFuture>(future: F) -> Scoped<F::IntoFuture> {
    Scoped::of_ops(future, Some(false), None)
}

/// The type of the products in [`mixed_precision`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// `bfloat16`: the range of float32 with 8 bits of precision. Gradients need no scaling.
    BF16,
    /// `float16`: 11 bits of precision up to 65,504. Small gradients become 0 without a
    /// [`GradScaler`](crate::optim::GradScaler).
    F16,
}

impl Half {
    fn dtype(self) -> DType {
        match self {
            Half::BF16 => DType::BF16,
            Half::F16 => DType::F16,
        }
    }
}

/// Calls `f` with products in a half, and with what needs more precision in float32:
/// [`mixed_precision`] for code that awaits nothing. `None` computes ops in the types of their
/// operands again. `f` is a synchronous closure, so the setting cannot leak across an await.
///
/// ```
/// use futensor::{DType, Device, mixed::{Half, autocast}};
/// let x = Device::cpu().ones([2, 2]);
/// let y = autocast(Half::BF16, || x.matmul(&x));
/// let z = autocast(Half::BF16, || autocast(None, || x.matmul(&x)));
/// assert_eq!([y.dtype(), z.dtype()], [DType::BF16, DType::F32]);
/// ```
#[doc(alias = "amp")]
pub fn autocast<R>(half: impl Into<Option<Half>>, f: impl FnOnce() -> R) -> R {
    let _mixed = mixed::within(half.into().map(Half::dtype));
    f()
}

/// Computes the products inside this future in a half, and what needs more precision in float32:
/// [the module](crate::mixed) has the lists. [`autocast`] is the same for a closure.
///
/// Parameters stay in float32: each product converts its operands, and gradients flow back through
/// the conversion. So call the model and the loss inside, and the optimizer where you like:
/// gradient rules compute in the types of their values, whatever the scope.
///
/// The scope is the task's: it holds on whatever thread the future is polled, on every device, and
/// not in what the future spawns. Of scopes inside each other the innermost counts. A region that
/// is called inside has a plan of its own for it, and a checkpoint computes again as it did first.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{DType, Device, mixed::{Half, mixed_precision}};
/// let device = Device::cpu();
/// let (x, w) = (device.ones([2, 3]), device.ones([4, 3]).requires_grad());
/// let (y, loss) = mixed_precision(Half::BF16, async {
///     let y = x.linear(&w, None);                 // in bfloat16
///     let loss = y.mse_loss(&device.zeros([2, 4]), ()); // in float32
///     (y, loss)
/// }).await;
/// assert_eq!((y.dtype(), loss.dtype()), (DType::BF16, DType::F32));
/// assert_eq!(futensor::grad(&loss, &[&w])[0].dtype(), DType::F32);
/// # });
/// ```
///
/// # Cancel safety
/// That of the future inside.
#[doc(alias("autocast", "amp"))]
pub fn mixed_precision<F: IntoFuture>(half: Half, future: F) -> Scoped<F::IntoFuture> {
    Scoped::of_ops(future, None, Some(Some(half.dtype())))
}

/// Computes ops in the types of their operands, inside [`mixed_precision`].
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{DType, Device, mixed::{Half, full_precision, mixed_precision}};
/// let x = Device::cpu().ones([2, 2]);
/// let dtype = full_precision(async { x.matmul(&x).dtype() });
/// assert_eq!(mixed_precision(Half::F16, dtype).await, DType::F32);
/// # });
/// ```
///
/// # Cancel safety
/// That of the future inside.
pub fn full_precision<F: IntoFuture>(future: F) -> Scoped<F::IntoFuture> {
    Scoped::of_ops(future, None, Some(None))
}
