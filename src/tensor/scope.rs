//! Scopes that belong to a task: [`deny_barriers`], [`tell_barriers`], [`allow_barriers`],
//! [`named`].
//!
//! Each is a pinned wrapper around a future that sets its scope before each poll and resets it
//! afterwards. So the scope follows the task from thread to thread and does not leak into other
//! tasks. Tasks that the task spawns are outside the scope. `watch` implements the behaviour of
//! awaits inside.

use super::watch::{Barrier, Manner, Scope, Watcher};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A future inside a scope: see [`deny_barriers`] and its siblings.
#[pin_project::pin_project]
#[must_use = "futures do nothing unless awaited"]
pub struct Scoped<F> {
    #[pin]
    future: F,
    scope: Scope,
    watcher: Watcher,
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
            watcher: Watcher::new(),
        }
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _inside = this.scope.enter();
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
