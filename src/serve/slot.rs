//! `Slot`: holds the result for a request, and the request itself while it may have to be rerun.
//!
//! A slot holds a second handle on the row beside the answer's own, so that the batcher can check
//! the end of a batch independently of polls. Dropping an answer drops both handles, so unobserved
//! work is still skipped. Values are dropped outside the lock, on the thread that releases them:
//! requests and wakers are user code, and drops of rows call the engine.

use crate::engine::pressure::Pressure;
use crate::error::{Error, Result};
use crate::graph::asker::Asker;
use crate::guard::{contained, wake_all};
use crate::sync::lock_plain as lock;
use crate::tensor::future::TensorFuture;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

pub(super) struct Slot<R> {
    /// Who asked.
    pub asker: Asker,
    inside: Mutex<Inside<R>>,
}

struct Inside<R> {
    /// `None` before its batch has run, and while the function has the request.
    request: Option<R>,
    /// The result of the last run, and the number of runs.
    given: Option<Result<TensorFuture>>,
    runs: u32,
    /// Whether the result is final, also if it is an error.
    stands: bool,
    gone: bool,
    /// Whether the answer ended with its value.
    answered: bool,
    waker: Option<Waker>,
}

/// The result that an answer finds.
pub(super) enum Given {
    /// The row of a run, and the number of the run.
    Row(TensorFuture, u32),
    /// A final error.
    Failed(Error),
}

/// A slot, as an answer sees it.
pub(super) trait Seat: Send + Sync {
    /// The result of a later run than `seen`, or a final error.
    fn poll(&self, cx: &Context<'_>, seen: u32) -> Poll<Given>;
    /// Whether the result of the last run is final.
    fn stands(&self) -> bool;
    /// Ends the answer, with or without its value.
    fn leave(&self, answered: bool);
}

/// Whether an error may be caused by one request, so that a rerun of the others is worthwhile.
pub(super) fn may_be_a_requests(error: &Error) -> bool {
    !error.is_device_lost() && !error.is_shutdown()
}

impl<R> Slot<R> {
    /// An empty one.
    pub fn new(asker: Asker) -> Slot<R> {
        let inside = Inside {
            request: None,
            given: None,
            runs: 0,
            stands: false,
            gone: false,
            answered: false,
            waker: None,
        };
        Slot { asker, inside: Mutex::new(inside) }
    }

    /// Stores the result of a run and the request, and wakes the answer.
    pub fn give(&self, request: R, value: Result<TensorFuture>, stands: bool) {
        let (mut inside, mut request) = (lock(&self.inside), Some(request));
        if inside.gone {
            drop(inside);
            contained(|| drop((request, value)));
            return;
        }
        let before = inside.given.replace(value);
        inside.runs += 1;
        inside.stands = stands;
        if !stands {
            std::mem::swap(&mut inside.request, &mut request);
        }
        let waker = inside.waker.take();
        drop(inside);
        contained(|| drop((request, before)));
        wake_all(waker);
    }

    /// The error of the last run, if it is known to have failed.
    pub fn error(&self) -> Option<Error> {
        match &lock(&self.inside).given {
            Some(Ok(row)) => row.error(),
            Some(Err(error)) => Some(error.clone()),
            None => None,
        }
    }

    /// Whether the last run produced the value.
    pub fn has_value(&self) -> bool {
        let inside = lock(&self.inside);
        inside.answered
            || matches!(&inside.given, Some(Ok(row)) if row.is_ready() && row.error().is_none())
    }

    /// Takes the request for another run; `None` if its answer was dropped.
    pub fn take(&self) -> Option<R> {
        lock(&self.inside).request.take()
    }

    /// Makes the result of the last run final.
    pub fn stand(&self) {
        let mut inside = lock(&self.inside);
        inside.stands = true;
        let (request, waker) = (inside.request.take(), inside.waker.take());
        drop(inside);
        contained(|| drop(request));
        wake_all(waker);
    }
}

impl<R: Send> Seat for Slot<R> {
    fn poll(&self, cx: &Context<'_>, seen: u32) -> Poll<Given> {
        // Cloned outside the lock, since that runs the executor's code.
        let mut mine: Option<Waker> = None;
        loop {
            let mut inside = lock(&self.inside);
            match &inside.given {
                Some(Ok(row)) if inside.runs > seen => {
                    return Poll::Ready(Given::Row(row.clone(), inside.runs));
                }
                Some(Ok(row)) if inside.stands => {
                    if let Some(error) = row.error() {
                        return Poll::Ready(Given::Failed(error));
                    }
                }
                Some(Err(error)) if inside.stands || !may_be_a_requests(error) => {
                    return Poll::Ready(Given::Failed(error.clone()));
                }
                _ => {}
            }
            if inside.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                return Poll::Pending;
            }
            if let Some(waker) = mine.take() {
                let old = inside.waker.replace(waker);
                drop(inside);
                drop(old);
                return Poll::Pending;
            }
            drop(inside);
            mine = Some(cx.waker().clone());
        }
    }

    fn stands(&self) -> bool {
        lock(&self.inside).stands
    }

    fn leave(&self, answered: bool) {
        let mut inside = lock(&self.inside);
        inside.gone = true;
        inside.answered = answered;
        let gone = (inside.request.take(), inside.given.take(), inside.waker.take());
        drop(inside);
        contained(|| drop(gone));
    }
}

/// A granted place in the queue that is not used yet.
pub(super) struct Granted<'a>(pub &'a Pressure);

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}
