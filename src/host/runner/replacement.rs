//! The thread that replaces a worker that stays inside user code.

use super::Shared;
use crate::sync::clock::{Instant, sleep};
use crate::sync::plain::Ordering::*;
use crate::sync::threads::{current, start};
use std::time::Duration;

/// How long a worker may stay inside user code before another thread takes its place: longer than
/// a waker takes.
const PATIENCE: Duration = Duration::from_millis(2);
/// How long the watching thread lives on when no worker is inside user code.
const LINGER: Duration = Duration::from_millis(500);

impl Shared {
    /// Calls user code, outside any step. The worker may have been replaced after that.
    pub(super) fn call_user_code(&self, me: usize, code: impl FnOnce()) {
        let since = self.now() + 1;
        let _inside = self.user_code.enter(me, since);
        self.hand_over(me);
        code();
    }

    /// Work is left and no worker is free: a thread watches the workers inside user code.
    #[cold]
    pub(super) fn watch_user_code(&self) {
        let Some(shared) = self.own.upgrade() else { return };
        // Under the explorer of schedules no call takes long: time stands still.
        if cfg!(futensor_shuttle) || self.user_code.is_watched.swap(true, SeqCst) {
            return;
        }
        let name = format!("futensor-{}-replacement", self.port.profile.name);
        if start(name, move || shared.replace_workers()).is_err() {
            // The workers inside user code will come back.
            self.user_code.is_watched.store(false, SeqCst);
        }
    }

    /// Work is left, and no worker attends to it.
    fn is_waited_for(&self) -> bool {
        let due = || self.deadline.load(Relaxed) <= self.now();
        self.runnable.load(SeqCst) > 0
            || !self.port.mailbox.attendance.is_attended()
                && (self.port.mailbox.has_queued() || due())
    }

    /// The watching thread's life: the thread becomes a worker, or ends once no worker has been
    /// inside user code for a while.
    fn replace_workers(&self) {
        let mut last = Instant::now();
        while last.elapsed() < LINGER {
            sleep(PATIENCE);
            if !self.user_code.is_any() {
                continue;
            }
            last = Instant::now();
            if !self.is_waited_for() {
                continue;
            }
            let before = (self.now() + 1).saturating_sub(PATIENCE.as_nanos() as u64);
            let Some((worker, since)) = self.user_code.find_before(before) else { continue };
            if self.user_code.leave(worker, since) {
                self.threads.replace(worker, current());
                self.user_code.is_watched.store(false, SeqCst);
                return self.live(worker);
            }
        }
        self.user_code.is_watched.store(false, SeqCst);
        if self.user_code.is_any() && self.is_waited_for() {
            self.watch_user_code();
        }
    }
}
