//! An idle worker: the things that it watches, the time for which it leaves polls alone and stays
//! awake, and its sleep.

use super::Shared;
use crate::graph::node::INLINE_NS;
use crate::host::threads;
use crate::host::wake_queue::Idle;
use crate::sync::clock::Instant;
use crate::sync::threads::{park, spin_loop, yield_now};
use crate::sync::{Ordering::*, lock};
use std::time::Duration;

/// How long the engine leaves fresh small ops to the poll that may be about to claim them.
const LEAVE_TO_POLL: Duration = Duration::from_nanos(700);
/// How long a worker then does not look into the intake, where polls were seen to keep up: a line
/// that both read and write goes from core to core each time. (Where a line takes 360 ns there and
/// back an awaited op took 255 ns without such a rest, with one of 5 us 158, of 20 us 143; a
/// product of 64 by 64 took 3.1 and 2.8 us with the last two.) A node that takes long does not
/// wait for that.
const LOOK_AGAIN: Duration = Duration::from_micros(20);
/// How often in a row, while polls run ops: about as long as a small op takes.
const LEAVE_TO_SAME: u32 = INLINE_NS / LEAVE_TO_POLL.as_nanos() as u32;
/// How often in a row at most.
const LEAVE_AT_MOST: u32 = 32;

/// The factor by which an idle worker stays awake longer while a call of a region runs: a wake for
/// each large step of the call costs more than many of the steps take.
const IN_A_ROW: u32 = 10;

/// How long an idle worker stays awake at most once the device's last handle is gone.
const LINGER_ALONE: Duration = Duration::from_micros(100);

/// Looks of an idle worker around between two times that it yields its core, some 5 us: another
/// process's thread on it would wait for the worker to sleep (an exchange of 4 bytes between two
/// processes on two cores took 15 or 315 us, by how their threads fell).
const YIELD_EVERY: u32 = 16;

impl Shared {
    /// True while there is work for a worker, whether it attends or not.
    fn has_something(&self, attends: bool) -> bool {
        self.runnable.load(SeqCst) > 0
            || self.thread_pool.has_work()
            || attends && self.deadline.load(Relaxed) <= self.now()
    }

    /// Stays awake for a moment; true once there is work, be it a waker in this worker's wake
    /// queue. `by_polls` is the number of small ops that polls had run at this worker's last look.
    pub(super) fn idle(
        &self,
        me: usize,
        idle: &Idle<'_>,
        last: &mut Instant,
        by_polls: &mut u64,
    ) -> bool {
        let attendance = &self.port.mailbox.attendance;
        let mut rounds = 0u32;
        let mut kept_up: Option<Instant> = None;
        loop {
            let attends = attendance.attend(me);
            if idle.is_asked() || self.has_something(attends) {
                return true;
            }
            let looks = attends
                && (self.port.mailbox.is_in_hurry()
                    || kept_up.is_none_or(|at: Instant| at.elapsed() >= LOOK_AGAIN));
            if looks && self.port.mailbox.has_queued() {
                if self.leave_to_poll(idle, by_polls) {
                    return true;
                }
                // Polls keep up. They push, so a worker has to stay awake, or the pushes would have
                // to wake one.
                *last = Instant::now();
                kept_up = Some(*last);
            }
            let delays = attends && self.deadline.load(Relaxed) != u64::MAX;
            let times = if self.thread_pool.is_awake() { IN_A_ROW } else { 1 };
            let linger = self.options.linger.saturating_mul(times);
            // Once nobody can call another op the thread is to end, however long it would stay.
            let linger =
                if self.abandoned.load(Relaxed) { linger.min(LINGER_ALONE) } else { linger };
            if !delays && last.elapsed() > linger {
                return false;
            }
            for _ in 0..8 {
                spin_loop();
            }
            // Awake for nothing: any other thread with work on this core goes first.
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(YIELD_EVERY) {
                yield_now();
                idle.is_on(threads::core());
            }
        }
    }

    /// Sleeps until a wake. False where the thread is to end.
    pub(super) fn sleep(&self, me: usize) -> bool {
        let attendance = &self.port.mailbox.attendance;
        self.wake_queues.busy(me);
        attendance.park(me);
        attendance.leave(me);
        // The next two lines see every push and offer before the two lines above.
        if self.port.mailbox.has_queued() || self.has_something(false) {
            attendance.unpark(me);
            return true;
        }
        while attendance.is_parked(me) {
            if self.abandoned.load(SeqCst) && self.retire(me) {
                return false;
            }
            park();
        }
        true
    }

    /// A poll may be about to claim a node that has just come in, or may be running it. Leaves the
    /// intake alone for a moment, and longer if polls have run ops since the last time, `ran` by
    /// then. True where a node is to be visited after that.
    fn leave_to_poll(&self, idle: &Idle<'_>, ran: &mut u64) -> bool {
        // No poll runs a node that is in a hurry.
        if !self.port.profile.inline || self.port.mailbox.is_in_hurry() {
            return true;
        }
        let now = || self.port.polls.inline();
        let mut left = if now() == std::mem::replace(ran, now()) { 1 } else { LEAVE_TO_SAME };
        for _ in 0..LEAVE_AT_MOST {
            let from = Instant::now();
            while from.elapsed() < LEAVE_TO_POLL {
                spin_loop();
            }
            if !self.port.mailbox.has_queued() {
                return false;
            }
            left = if now() == std::mem::replace(ran, now()) { left - 1 } else { LEAVE_TO_SAME };
            let others =
                self.runnable.load(Relaxed) > 0 || self.thread_pool.has_work() || idle.is_asked();
            if left == 0 || others || self.port.mailbox.is_in_hurry() {
                break;
            }
        }
        true
    }

    /// Ends this thread where the device has been abandoned and has nothing left to do.
    fn retire(&self, me: usize) -> bool {
        if !lock(&self.queues).scheduler.machine.is_idle() || self.port.mailbox.has_queued() {
            return false;
        }
        if !self.port.mailbox.attendance.unpark(me) {
            // Appointed meanwhile: the pusher counts on this thread.
            return false;
        }
        // Other workers were woken when the last handle went, and may have found work.
        self.threads.wake_all();
        if self.threads.running.fetch_sub(1, SeqCst) == 1 {
            self.memory.trim();
            // A push in between found threads running: start again for it.
            if !self.port.mailbox.intake.is_empty() {
                self.port.runner.start(self.port);
            }
        }
        true
    }
}
