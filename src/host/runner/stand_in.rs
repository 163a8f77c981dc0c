//! The thread that stands in for a worker that is away.

use super::Shared;
use crate::sync::clock::{Instant, sleep};
use crate::sync::plain::Ordering::*;
use crate::sync::threads::{current, start};
use std::time::Duration;

/// How long a worker may be away before another thread has its place: what a waker takes, and then
/// some.
const PATIENCE: Duration = Duration::from_millis(2);
/// How long the thread that looks after it stays when there is nothing to look after.
const LINGER: Duration = Duration::from_millis(500);

impl Shared {
    /// Calls what is a user's, outside of any step. The worker may be replaced after that.
    pub(super) fn call_away(&self, me: usize, code: impl FnOnce()) {
        let since = self.now() + 1;
        let _absence = self.away.go(me, since);
        self.hand_over(me);
        code();
    }

    /// Something is left to do and nobody is free: where somebody is away, a thread is to stand in.
    #[cold]
    pub(super) fn look_after(&self) {
        let Some(shared) = self.own.upgrade() else { return };
        // Where orders are explored, no call takes long: time stands still there.
        if cfg!(futensor_shuttle) || self.away.is_looked_after.swap(true, SeqCst) {
            return;
        }
        let name = format!("futensor-{}-stand-in", self.port.name);
        if start(name, move || shared.keep_places()).is_err() {
            // Whoever is away comes back.
            self.away.is_looked_after.store(false, SeqCst);
        }
    }

    /// Nobody does what is there to be done.
    fn is_waited_for(&self) -> bool {
        let due = || self.deadline.load(Relaxed) <= self.now();
        self.runnable.load(SeqCst) > 0
            || !self.port.attendance.is_attended() && (self.port.has_news() || due())
    }

    /// The life of the thread that looks after places: it ends as a worker, or once nobody has been
    /// away for a while.
    fn keep_places(&self) {
        let mut last = Instant::now();
        while last.elapsed() < LINGER {
            sleep(PATIENCE);
            if !self.away.is_any() {
                continue;
            }
            last = Instant::now();
            if !self.is_waited_for() {
                continue;
            }
            let before = (self.now() + 1).saturating_sub(PATIENCE.as_nanos() as u64);
            let Some((worker, since)) = self.away.find_before(before) else { continue };
            if self.away.end(worker, since) {
                self.threads.replace(worker, current());
                self.away.is_looked_after.store(false, SeqCst);
                return self.live(worker);
            }
        }
        self.away.is_looked_after.store(false, SeqCst);
        if self.away.is_any() && self.is_waited_for() {
            self.look_after();
        }
    }
}
