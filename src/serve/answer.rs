//! `Answer`: what one request waits for, from the queue to its own row.
//!
//! First it waits in the batcher's queue, then for its own value like any await. Where that fails
//! together with others of its batch, it waits for the batcher to run it again, or to say that the
//! error stands. Dropping it takes the request out of the queue, or lets go of its row, so that
//! work which only it wanted is skipped. Knows nothing of batches.

use super::slot::{Given, Seat, may_be_a_requests};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::future::{Tensor, TensorFuture};
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// How a request came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Answered,
    Failed,
    /// Dropped while its batch was on its way.
    LeftRunning,
}

/// The batcher, as an answer knows it.
pub(super) trait AnswerQueue: Send + Sync {
    /// Takes a request out of the queue and counts it as gone; false where its batch is on its way
    /// already.
    fn leave(&self, id: u64) -> bool;
    /// A request that came at `came` has ended.
    fn ended(&self, end: End, came: Duration);
}

/// The place of a request that was taken in.
struct Taken {
    id: u64,
    seat: Arc<dyn Seat>,
    /// How many of its runs this answer has seen.
    seen: u32,
}

enum Stage {
    Waiting(Taken),
    Row(Taken, TensorFuture),
    /// It was never taken in.
    Refused(Error),
    Over,
}

/// The future of one request: see [`Batcher`](super::Batcher).
///
/// # Cancel safety
/// Dropping it withdraws the request: from the queue, where it leaves no trace in any batch; or
/// from its batch, where its own row, and what nobody else's row needs, is skipped unless it runs
/// already.
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

    /// The end of a request that was taken in.
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
                    // It failed, perhaps for another's sake: the batcher has the last word.
                    if let Stage::Row(taken, _) = std::mem::replace(&mut self.stage, Stage::Over) {
                        self.stage = Stage::Waiting(taken);
                    }
                }
                Stage::Refused(error) => {
                    let error = error.clone();
                    self.stage = Stage::Over;
                    return Poll::Ready(Err(error));
                }
                // Polled after its end: a future may do that only by mistake, and waits for ever
                // then.
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
