//! `Answer`: the future of one request, from the queue to its own row.
//!
//! An answer first waits in the batcher's queue, then for its own value like any await. If the
//! value fails together with others of its batch, the answer waits until the batcher reruns the
//! request or declares the error final. Dropping an answer removes the request from the queue, or
//! drops its row, so that work that only it needs is skipped. Knows nothing of batches.

use super::slot::{Given, Seat, may_be_a_requests};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::future::{Tensor, TensorFuture};
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Answered,
    Failed,
    /// Dropped while its batch was running.
    LeftRunning,
}

/// The batcher, as an answer sees it.
pub(super) trait AnswerQueue: Send + Sync {
    /// Removes a request from the queue and counts it; false if its batch is already running.
    fn leave(&self, id: u64) -> bool;
    /// Counts the end of a request that arrived at `came`.
    fn ended(&self, end: End, came: Duration);
}

/// The state of a request that was accepted.
struct Taken {
    id: u64,
    seat: Arc<dyn Seat>,
    /// The number of runs that this answer has seen.
    seen: u32,
}

enum Stage {
    Waiting(Taken),
    Row(Taken, TensorFuture),
    /// The request was not accepted.
    Refused(Error),
    Over,
}

/// The future of one request: see [`Batcher`](super::Batcher).
///
/// # Cancel safety
/// Dropping the future withdraws the request. A queued request is removed and is in no batch. If
/// its batch has been handed out, its row, and work that no other row needs, is skipped unless it
/// is already running.
#[must_use = "a request whose answer is dropped is withdrawn"]
pub struct Answer {
    stage: Stage,
    queue: Arc<dyn AnswerQueue>,
    came: Duration,
    at: &'static Location<'static>,
}

impl Answer {
    pub(super) fn waiting(
        id: u64,
        seat: Arc<dyn Seat>,
        queue: Arc<dyn AnswerQueue>,
        came: Duration,
        at: &'static Location<'static>,
    ) -> Answer {
        Answer { stage: Stage::Waiting(Taken { id, seat, seen: 0 }), queue, came, at }
    }

    pub(super) fn refused(
        reason: &str,
        queue: Arc<dyn AnswerQueue>,
        came: Duration,
        at: &'static Location<'static>,
    ) -> Answer {
        let error = Error::new(ErrorKind::Refused, "batcher", reason, at);
        Answer { stage: Stage::Refused(error), queue, came, at }
    }

    /// Ends a request that was accepted.
    fn end(&mut self, result: Result<Tensor>) -> Poll<Result<Tensor>> {
        if let Stage::Waiting(taken) | Stage::Row(taken, _) =
            std::mem::replace(&mut self.stage, Stage::Over)
        {
            taken.seat.leave(result.is_ok());
        }
        self.queue.ended(if result.is_ok() { End::Answered } else { End::Failed }, self.came);
        Poll::Ready(result)
    }
}

impl Future for Answer {
    type Output = Result<Tensor>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Tensor>> {
        let at = self.at;
        loop {
            match &mut self.stage {
                Stage::Waiting(taken) => match ready!(taken.seat.poll(cx, taken.seen)) {
                    Given::Failed(error) => return self.end(Err(error)),
                    Given::Row(row, run) => {
                        if let Stage::Waiting(taken) =
                            std::mem::replace(&mut self.stage, Stage::Over)
                        {
                            self.stage = Stage::Row(Taken { seen: run, ..taken }, row);
                        }
                    }
                },
                Stage::Row(taken, row) => {
                    if let Err(denied) = ready!(row.poll_await(cx, "answer", at)) {
                        return self.end(Err(denied));
                    }
                    let result = row.outcome();
                    if !matches!(
                        &result,
                        Err(error) if may_be_a_requests(error) && !taken.seat.stands()
                    ) {
                        return self.end(result);
                    }
                    // The row failed, perhaps because of another request: the batcher decides.
                    if let Stage::Row(taken, _) = std::mem::replace(&mut self.stage, Stage::Over) {
                        self.stage = Stage::Waiting(taken);
                    }
                }
                Stage::Refused(error) => {
                    let error = error.clone();
                    self.stage = Stage::Over;
                    return Poll::Ready(Err(error));
                }
                // Polled after completion, which is a mistake of the caller: the future then stays
                // pending.
                Stage::Over => return Poll::Pending,
            }
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        if let Stage::Waiting(taken) | Stage::Row(taken, _) = &stage {
            taken.seat.leave(false);
            if !self.queue.leave(taken.id) {
                self.queue.ended(End::LeftRunning, self.came);
            }
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stage = match &self.stage {
            Stage::Waiting(_) => "waiting",
            Stage::Row(..) => "running",
            Stage::Refused(_) => "refused",
            Stage::Over => "over",
        };
        write!(f, "Answer({stage})")
    }
}
