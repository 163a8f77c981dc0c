//! The state that the training loop and the monitor's thread share: values on their way to the
//! thread, and its answers to the tasks that await the opening and the end.

use crate::error::{Error, ErrorKind, Result};
use crate::guard::wake_all;
use crate::tensor::future::TensorFuture;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Values that may wait for the monitor's thread. More values are left out, and counted.
const WAITING_MAX: usize = 4096;

/// The state that the loop and the thread share.
pub(super) struct Shared {
    state: Mutex<State>,
    pub bell: Condvar,
    at: &'static Location<'static>,
    pub path: PathBuf,
}

#[derive(Default)]
pub(super) struct State {
    pub told: Vec<Told>,
    /// Values that the thread has taken and that are not complete.
    pub waiting: usize,
    pub steps: u64,
    pub left_out: u64,
    pub end: End,
    pub opened: Option<Result<(), String>>,
    pub finished: Option<Result<(), String>>,
    /// The waker of the task that awaits the opening or the end.
    waker: Option<Waker>,
}

/// Something that the loop tells of a step.
pub(super) struct Told {
    pub step: u64,
    pub what: What,
}

pub(super) enum What {
    Loss(TensorFuture, Instant),
    Value(String, TensorFuture),
    Number(String, f64),
}

/// How the monitor ends.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum End {
    #[default]
    NotYet,
    /// Once all values are complete.
    Finish,
    /// With the values that are complete.
    GiveUp,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(&self.path).finish()
    }
}

impl Shared {
    pub fn new(path: PathBuf, at: &'static Location<'static>) -> Shared {
        Shared { state: Mutex::default(), bell: Condvar::new(), at, path }
    }

    /// True while so many values are too few to wake the thread.
    pub fn is_little(told: usize) -> bool {
        told < WAITING_MAX / 2
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the task that awaits the opening or the end.
    pub fn answer(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        wake_all(waker);
    }

    /// Ready with the answer that `said` finds in the state.
    pub fn poll(
        &self,
        cx: &mut Context<'_>,
        said: impl FnOnce(&mut State) -> Option<Result<(), String>>,
    ) -> Poll<Result<()>> {
        let fresh = cx.waker().clone();
        let mut state = self.lock();
        let Some(said) = said(&mut state) else {
            let before = state.waker.replace(fresh);
            drop(state);
            drop(before);
            return Poll::Pending;
        };
        drop(state);
        Poll::Ready(said.map_err(|text| {
            let text = format!("{}: {text}", self.path.display());
            Error::new(ErrorKind::Source, "monitor", text, self.at)
        }))
    }

    pub fn end(&self, end: End) {
        let mut state = self.lock();
        // Giving up is final.
        if state.end != End::GiveUp {
            state.end = end;
        }
        drop(state);
        self.bell.notify_one();
    }

    /// Hands something to the thread, if it is not too far behind.
    pub fn tell(&self, is_step: bool, what: What) {
        let mut state = self.lock();
        state.steps += u64::from(is_step);
        if state.told.len() + state.waiting >= WAITING_MAX {
            state.left_out += 1;
            // The value is dropped outside the lock.
            drop(state);
            return;
        }
        let step = state.steps;
        state.told.push(Told { step, what });
        // The thread looks by itself at less, so that a step pays for no wake.
        let is_much = state.told.len() == WAITING_MAX / 2;
        drop(state);
        if is_much {
            self.bell.notify_one();
        }
    }
}
