//! Threads for jobs that may take long: readers' wakers, which are the readers' code; grammars and
//! the tokens that they allow next; templates, texts and vocabularies, which come from outside.
//!
//! A job that panics harms nobody else. Threads begin as there are jobs for them, and end when
//! there have been none for a while. Whoever [looks](Helpers::look) now and then gets another where
//! all are stuck, up to as many as there may be.

use crate::error::{Error, Result};
use crate::lock::lock;
use futures_channel::oneshot;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// Helpers at most, stuck ones among them.
const MOST: usize = 64;
/// Without a step forward for so long, what is at work is stuck.
pub const STUCK: Duration = Duration::from_millis(1);
/// A helper without work ends after so long.
const LINGER: Duration = Duration::from_secs(5);
/// Bytes of a helper's stack, of which those that are touched are there: values and grammars from
/// outside are walked and freed by recursion. `template` and `constraint` say how deep they may be.
pub const STACK: usize = 256 << 20;

type Job = Box<dyn FnOnce() + Send>;

struct State {
    jobs: VecDeque<Job>,
    helpers: usize,
    /// As many begin without anybody's look.
    eager: usize,
    /// Somebody looks after it.
    looked: bool,
    /// Of them, those that wait for work.
    idle: usize,
    /// Jobs that were begun, and how many that were, and when, at the last look that saw a change.
    begun: u64,
    seen: (u64, Duration),
    closed: bool,
}

/// See the module.
pub struct Helpers(Arc<(Mutex<State>, Condvar)>);

impl Helpers {
    /// Up to so many begin as there are jobs for them. Nobody looks after them.
    pub fn new(eager: usize) -> Helpers {
        Helpers::with(eager, false)
    }

    /// One does it all, mostly; whoever has this looks after it.
    pub fn looked_after() -> Helpers {
        Helpers::with(1, true)
    }

    fn with(eager: usize, looked: bool) -> Helpers {
        let state = State {
            jobs: VecDeque::new(),
            helpers: 0,
            eager,
            looked,
            idle: 0,
            begun: 0,
            seen: Default::default(),
            closed: false,
        };
        Helpers(Arc::new((Mutex::new(state), Condvar::new())))
    }

    /// Has a helper do this. Where there is no thread to be had, the job waits for the next look,
    /// or is dropped where nobody looks.
    pub fn push(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.0.0);
        state.jobs.push_back(Box::new(job));
        // An idle one that was rung for another job has not taken it yet.
        match state.idle < state.jobs.len() && state.helpers < state.eager {
            true => self.hire(&mut state),
            false => self.0.1.notify_one(),
        }
        let nobody = state.helpers == 0 && !state.looked;
        let lost = if nobody { std::mem::take(&mut state.jobs) } else { VecDeque::new() };
        drop(state);
        drop(lost);
    }

    /// What comes of a job, which is not begun where nobody waits for it any more.
    pub fn work<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Work<T> {
        let (tell, told) = oneshot::channel();
        self.push(move || {
            if !tell.is_canceled() {
                let _ = tell.send(job());
            }
        });
        Work::new(told)
    }

    /// Has another helper take over where those at work are stuck. True while something waits: then
    /// it is to be looked at again, [soon](STUCK).
    pub fn look(&self, now: Duration) -> bool {
        let mut state = lock(&self.0.0);
        if state.jobs.is_empty() || state.seen.0 != state.begun {
            state.seen = (state.begun, now);
        } else if state.idle == 0 && state.helpers < MOST && now >= state.seen.1 + STUCK {
            state.seen.1 = now;
            self.hire(&mut state);
        }
        !state.jobs.is_empty()
    }

    /// Looks until every job has begun, or as many are stuck as there may be.
    pub fn see_through(&self) {
        let mut now = Duration::ZERO;
        while self.look(now) && lock(&self.0.0).helpers < MOST {
            std::thread::sleep(STUCK);
            now += STUCK;
        }
    }

    /// Where there is no thread to be had, the next look tries again.
    fn hire(&self, state: &mut State) {
        let own = self.0.clone();
        let thread = std::thread::Builder::new().name("futensor-helper".into()).stack_size(STACK);
        state.helpers += thread.spawn(move || help(&own)).is_ok() as usize;
    }
}

impl Drop for Helpers {
    /// Helpers end when there is nothing left to do.
    fn drop(&mut self) {
        lock(&self.0.0).closed = true;
        self.0.1.notify_all();
    }
}

fn help((state, more): &(Mutex<State>, Condvar)) {
    let mut own = lock(state);
    loop {
        while let Some(job) = own.jobs.pop_front() {
            own.begun += 1;
            drop(own);
            // Its panic is not the other requests'. What it panicked with may panic as it is
            // dropped.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
                std::mem::forget(panic);
            }
            own = lock(state);
        }
        if own.closed {
            break;
        }
        own.idle += 1;
        let (woken, waited) =
            more.wait_timeout(own, LINGER).unwrap_or_else(PoisonError::into_inner);
        own = woken;
        own.idle -= 1;
        if waited.timed_out() && own.jobs.is_empty() {
            break;
        }
    }
    own.helpers -= 1;
}

/// Helpers for what comes from outside: templates, texts, vocabularies.
pub fn outside() -> &'static Helpers {
    static OUTSIDE: OnceLock<Helpers> = OnceLock::new();
    OUTSIDE.get_or_init(|| {
        Helpers::new(std::thread::available_parallelism().map_or(4, usize::from).max(4))
    })
}

/// A result that another thread finds, as a future. Dropping it gives the result up.
#[derive(Debug)]
#[must_use = "nobody has the result but whoever awaits this"]
pub struct Work<T>(oneshot::Receiver<Result<T>>);

impl<T> Work<T> {
    pub(crate) fn new(told: oneshot::Receiver<Result<T>>) -> Work<T> {
        Work(told)
    }
}

impl<T> Future for Work<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        // No result is sent by a job that panics.
        let lost = || Err(Error::request("what was asked for cannot be worked out: a panic"));
        Pin::new(&mut self.0).poll(cx).map(|told| told.unwrap_or_else(|_| lost()))
    }
}
