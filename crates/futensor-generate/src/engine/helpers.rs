//! What may take long, beside the thread that runs steps: readers' wakers, which are the readers'
//! code, and what a grammar allows next.
//!
//! One helper does it all, mostly. Where it has not come on for a moment another takes over what
//! waits: so one that is stuck holds up nobody else, up to as many as there may be.

use super::lock;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Helpers at most, stuck ones among them.
const MOST: usize = 64;
/// Without a step forward for so long, what is at work is stuck.
pub const STUCK: Duration = Duration::from_millis(1);
/// A helper without work ends after so long.
const LINGER: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    helpers: usize,
    /// Of them, those that wait for work.
    idle: usize,
    /// Jobs that were begun, and how many that were, and when, at the last look that saw a change.
    begun: u64,
    seen: (u64, Duration),
    closed: bool,
}

/// See the module.
#[derive(Default)]
pub struct Helpers(Arc<(Mutex<State>, Condvar)>);

impl Helpers {
    pub fn push(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.0.0);
        state.jobs.push_back(Box::new(job));
        match (state.helpers, state.idle) {
            (0, _) => self.hire(&mut state),
            (_, 0) => {}
            _ => self.0.1.notify_one(),
        }
    }

    /// Has another helper take over where those at work are stuck. True while something waits: then it
    /// is to be looked at again, [soon](STUCK).
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

    /// Where there is no thread to be had, the next look tries again.
    fn hire(&self, state: &mut State) {
        let own = self.0.clone();
        let spawned = std::thread::Builder::new().name("futensor-helper".into()).spawn(move || help(&own));
        state.helpers += spawned.is_ok() as usize;
    }
}

impl Drop for Helpers {
    /// Nobody looks any more: what waits is seen through by this thread's looks.
    fn drop(&mut self) {
        let mut now = Duration::ZERO;
        while self.look(now) && lock(&self.0.0).helpers < MOST {
            std::thread::sleep(STUCK);
            now += STUCK;
        }
        lock(&self.0.0).closed = true;
        self.0.1.notify_all();
    }
}

fn help((state, bell): &(Mutex<State>, Condvar)) {
    let mut own = lock(state);
    loop {
        while let Some(job) = own.jobs.pop_front() {
            own.begun += 1;
            drop(own);
            // Its panic is not the other requests'.
            let _ = catch_unwind(AssertUnwindSafe(job));
            own = lock(state);
        }
        if own.closed {
            break;
        }
        own.idle += 1;
        let (woken, waited) = bell.wait_timeout(own, LINGER).unwrap_or_else(PoisonError::into_inner);
        own = woken;
        own.idle -= 1;
        if waited.timed_out() && own.jobs.is_empty() {
            break;
        }
    }
    own.helpers -= 1;
}
