//! Scopes that belong to a task: [`deny_barriers`], [`tell_barriers`], [`allow_barriers`],
//! [`named`], [`check_finite`], [`allow_not_finite`].
//!
//! Each is a pinned wrapper around a future that puts its scope in place at each poll and takes it
//! back after it, so that it follows the task from thread to thread and leaks to no other. What the
//! task spawns is another task, and outside. What awaits do inside stands in `watch`, what ops do
//! in `build/finite`.

use super::build::finite;
use super::watch::{Barrier, Manner, Scope, Watcher};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A future with a scope around it: see [`deny_barriers`] and its siblings, and
/// [`check_finite`](crate::finite::check_finite).
#[pin_project::pin_project]
#[must_use = "futures do nothing unless awaited"]
pub struct Scoped<F> {
    #[pin]
    future: F,
    scope: Scope,
    /// Whether ops are checked; `None` leaves that as it is outside.
    checked: Option<bool>,
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
            watcher: Some(Watcher::new()),
        }
    }

    fn checked(future: impl IntoFuture<IntoFuture = F>, checked: bool) -> Self {
        let future = future.into_future();
        Scoped { future, scope: Scope::default(), checked: Some(checked), watcher: None }
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _inside = this.watcher.is_some().then(|| this.scope.enter());
        let _checked = this.checked.map(finite::within);
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
    Scoped::checked(future, true)
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
    Scoped::checked(future, false)
}
