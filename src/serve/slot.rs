//! `Slot`: where a batcher puts what it has for a request, and keeps the request for as long as it
//! may have to be run again.
//!
//! It holds the handle on the row beside the answer's own, so that the end of a batch can be looked
//! at whoever polls; an answer that goes takes both with it, so what nobody wants is skipped all
//! the same. What goes is dropped after the lock and on the thread of whoever lets it go: requests
//! and wakers are the user's, and drops of rows call the engine.

use crate::engine::pressure::Pressure;
use crate::error::{Error, Result};
use crate::guard::{contained, wake_all};
use crate::sync::lock_plain as lock;
use crate::tensor::future::TensorFuture;

use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

pub(super) struct Slot<R>(Mutex<Inside<R>>);

struct Inside<R> {
    /// None before its batch has run, and while the function has it.
    request: Option<R>,
    /// What the last run gave, and how many there were.
    given: Option<Result<TensorFuture>>,
    runs: u32,
    /// What was given stands, an error as well.
    stands: bool,
    gone: bool,
    /// It went with its value.
    answered: bool,
    waker: Option<Waker>,
}

/// What an answer finds.
pub(super) enum Given {
    /// The row of a run, and which one.
    Row(TensorFuture, u32),
    /// An error that stands.
    Failed(Error),
}

/// A slot, as an answer knows it.
pub(super) trait Seat: Send + Sync {
    /// What a later run than `seen` gave, or an error once it stands.
    fn poll(&self, cx: &Context<'_>, seen: u32) -> Poll<Given>;
    /// Whether what the last run gave is the last word.
    fn stands(&self) -> bool;
    /// The answer ends, with its value or without.
    fn leave(&self, answered: bool);
}

/// Whether an error can be that of one request, so that the others are worth another run.
pub(super) fn may_be_a_requests(error: &Error) -> bool {
    !error.is_device_lost() && !error.is_shutdown()
}

impl<R> Default for Slot<R> {
    fn default() -> Slot<R> {
        Slot(Mutex::new(Inside {
            request: None,
            given: None,
            runs: 0,
            stands: false,
            gone: false,
            answered: false,
            waker: None,
        }))
    }
}

impl<R> Slot<R> {
    /// Puts in what a run gave, keeps the request, and wakes who waits.
    pub fn give(&self, request: R, value: Result<TensorFuture>, stands: bool) {
        let (mut inside, mut request) = (lock(&self.0), Some(request));
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

    /// The error of the last run, where it is known to have one.
    pub fn error(&self) -> Option<Error> {
        match &lock(&self.0).given {
            Some(Ok(row)) => row.error(),
            Some(Err(error)) => Some(error.clone()),
            None => None,
        }
    }

    /// Whether the last run gave it its value.
    pub fn has_value(&self) -> bool {
        let inside = lock(&self.0);
        inside.answered
            || matches!(&inside.given, Some(Ok(row)) if row.is_ready() && row.error().is_none())
    }

    /// The request, for another run; `None` where nobody waits for it any more.
    pub fn take(&self) -> Option<R> {
        lock(&self.0).request.take()
    }

    /// What the last run gave stands.
    pub fn stand(&self) {
        let mut inside = lock(&self.0);
        inside.stands = true;
        let (request, waker) = (inside.request.take(), inside.waker.take());
        drop(inside);
        contained(|| drop(request));
        wake_all(waker);
    }
}

impl<R: Send> Seat for Slot<R> {
    fn poll(&self, cx: &Context<'_>, seen: u32) -> Poll<Given> {
        // Cloned outside the lock: that is the executor's code.
        let mut mine: Option<Waker> = None;
        loop {
            let mut inside = lock(&self.0);
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
        lock(&self.0).stands
    }

    fn leave(&self, answered: bool) {
        let mut inside = lock(&self.0);
        inside.gone = true;
        inside.answered = answered;
        let gone = (inside.request.take(), inside.given.take(), inside.waker.take());
        drop(inside);
        contained(|| drop(gone));
    }
}

/// A place in the queue that was granted and is not used yet.
pub(super) struct Granted<'a>(pub &'a Pressure);

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}
