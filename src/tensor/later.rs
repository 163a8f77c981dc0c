//! Ops whose shape depends on data: futures of values, which need a read before the shape is known.

use super::build;
use super::future::TensorFuture;
use super::read::Reading;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::operation::Refusal;
use crate::ops::index::nonzero::nonzero;
use crate::view::{Parallel, View};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The future of an op whose shape depends on data: of
/// [`masked_select`](TensorFuture::masked_select), [`unique`](TensorFuture::unique) and others. It
/// ends when the shape is known; the values that it gives may still be computed then. The read is
/// queued at the call; dropping the future gives it up. Inside a [region](crate::region) it fails,
/// as every read of a traced value does.
#[must_use = "futures do nothing unless awaited"]
pub struct Later<R = TensorFuture>(Pin<Box<dyn Future<Output = Result<R>> + Send>>);

impl<R> Future for Later<R> {
    type Output = Result<R>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<R>> {
        self.0.as_mut().poll(cx)
    }
}

impl<R> fmt::Debug for Later<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

impl<R: 'static> Later<R> {
    /// What `then` makes of what a read finds, under the name of the op and its caller's line.
    pub(crate) fn after<T: Send + 'static>(
        name: &'static str,
        x: &TensorFuture,
        at: build::At,
        look: impl Fn(View<'_>, &dyn Parallel) -> Result<T, Refusal> + Send + Sync + 'static,
        then: impl FnOnce(T) -> R + Send + 'static,
    ) -> Later<R> {
        let mut reading = {
            let _within = build::within(name, at);
            Reading::queue(name, x, at, look, None)
        };
        Later(Box::pin(async move {
            let found = poll_fn(|cx| reading.poll(cx)).await?;
            let _within = build::within(name, at);
            Ok(then(found))
        }))
    }

    /// The error of a call that is refused.
    pub(crate) fn refused(
        name: &'static str,
        x: &TensorFuture,
        refusal: Refusal,
        at: build::At,
    ) -> Later<R> {
        let failed = build::refused(name, x, refusal, at);
        Later(Box::pin(async move {
            failed.await?;
            unreachable!("a refused value has failed")
        }))
    }

    /// What `then` makes of the positions, in row-major order, at which a bool value is true: an
    /// int64 vector.
    pub(crate) fn at_true(
        name: &'static str,
        mask: &TensorFuture,
        at: build::At,
        then: impl FnOnce(TensorFuture) -> R + Send + 'static,
    ) -> Later<R> {
        debug_assert!(mask.dtype() == DType::Bool || mask.error().is_some());
        let (flat, device) = (mask.reshape(-1), mask.device());
        Later::after(name, &flat, at, nonzero, move |(n, places)| {
            then(device.handed(name, places, n.into(), at))
        })
    }
}
