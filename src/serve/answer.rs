//! `Answer`: what one request waits for, from the queue to its own row.
//!
//! First it waits in the batcher's queue, then for its own value like any await. Dropping it takes the
//! request out of the queue, or lets go of its row, so that work which only it wanted is skipped. Knows
//! nothing of the request's type, nor of batches.

use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock_plain as lock;
use crate::tensor::future::TensorFuture;
use crate::tensor::tensor::Tensor;
use crate::wakes::wake_all;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

/// Where the batcher puts what it has for a request.
#[derive(Default)]
pub(super) struct Slot(Mutex<Filling>);

enum Filling {
    /// Nothing yet; who is to be woken.
    Empty(Option<Waker>),
    Given(Result<TensorFuture>),
    /// The request is gone, or has taken what was there.
    Gone,
}

impl Default for Filling {
    fn default() -> Filling {
        Filling::Empty(None)
    }
}

impl Slot {
    /// Fills the slot and wakes who waits; what nobody waits for any more is let go.
    pub fn give(&self, value: Result<TensorFuture>) {
        let mut filling = lock(&self.0);
        match std::mem::replace(&mut *filling, Filling::Gone) {
            Filling::Empty(waker) => {
                *filling = Filling::Given(value);
                drop(filling);
                wake_all(waker);
            }
            // The value goes after the lock: its drop calls the engine.
            _ => drop(filling),
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Result<TensorFuture>> {
        let fresh = Filling::Empty(Some(cx.waker().clone()));
        let mut filling = lock(&self.0);
        match std::mem::replace(&mut *filling, Filling::Gone) {
            Filling::Given(value) => Poll::Ready(value),
            Filling::Empty(old) => {
                *filling = fresh;
                drop(filling);
                drop(old);
                Poll::Pending
            }
            Filling::Gone => Poll::Pending,
        }
    }

    /// The request goes.
    fn leave(&self) {
        let filling = std::mem::replace(&mut *lock(&self.0), Filling::Gone);
        drop(filling);
    }
}

/// How a request came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Answered,
    Failed,
    /// Dropped while its batch was on its way.
    LeftRunning,
}

/// The batcher, as an answer knows it.
pub(super) trait Desk: Send + Sync {
    /// Takes a request out of the queue and counts it as gone; false where its batch is on its way already.
    fn leave(&self, id: u64) -> bool;
    /// A request that came at `came` has ended.
    fn ended(&self, end: End, came: Duration);
}

enum Stage {
    Waiting {
        id: u64,
        slot: Arc<Slot>,
    },
    Row(TensorFuture),
    /// It was never taken in.
    Refused(Error),
    Over,
}

/// The future of one request: see [`Batcher`](super::Batcher).
///
/// # Cancel safety
/// Dropping it withdraws the request: from the queue, where it leaves no trace in any batch; or from its
/// batch, where its own row, and what nobody else's row needs, is skipped unless it runs already.
#[must_use = "a request whose answer is dropped is withdrawn"]
pub struct Answer {
    stage: Stage,
    desk: Arc<dyn Desk>,
    came: Duration,
    at: &'static Location<'static>,
}

impl Answer {
    pub(super) fn waiting(
        id: u64,
        slot: Arc<Slot>,
        desk: Arc<dyn Desk>,
        came: Duration,
        at: &'static Location<'static>,
    ) -> Answer {
        Answer { stage: Stage::Waiting { id, slot }, desk, came, at }
    }

    pub(super) fn refused(
        reason: &str,
        desk: Arc<dyn Desk>,
        came: Duration,
        at: &'static Location<'static>,
    ) -> Answer {
        let error = Error::new(ErrorKind::Refused, "batcher", reason, at);
        Answer { stage: Stage::Refused(error), desk, came, at }
    }

    fn end(&mut self, result: Result<Tensor>) -> Poll<Result<Tensor>> {
        self.stage = Stage::Over;
        self.desk.ended(if result.is_ok() { End::Answered } else { End::Failed }, self.came);
        Poll::Ready(result)
    }
}

impl Future for Answer {
    type Output = Result<Tensor>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Tensor>> {
        if let Stage::Waiting { slot, .. } = &self.stage {
            match ready!(slot.poll(cx)) {
                Ok(row) => self.stage = Stage::Row(row),
                Err(error) => return self.end(Err(error)),
            }
        }
        let at = self.at;
        match &mut self.stage {
            Stage::Row(row) => {
                let result = ready!(row.poll_await(cx, "answer", at)).and_then(|()| row.outcome());
                self.end(result)
            }
            Stage::Refused(error) => {
                let error = error.clone();
                self.stage = Stage::Over;
                Poll::Ready(Err(error))
            }
            // Polled after its end: a future may do that only by mistake, and waits for ever then.
            Stage::Waiting { .. } | Stage::Over => Poll::Pending,
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Waiting { id, slot } => {
                slot.leave();
                if !self.desk.leave(id) {
                    self.desk.ended(End::LeftRunning, self.came);
                }
            }
            Stage::Row(row) => {
                drop(row);
                self.desk.ended(End::LeftRunning, self.came);
            }
            Stage::Refused(_) | Stage::Over => {}
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stage = match &self.stage {
            Stage::Waiting { .. } => "waiting",
            Stage::Row(_) => "running",
            Stage::Refused(_) => "refused",
            Stage::Over => "over",
        };
        write!(f, "Answer({stage})")
    }
}
