//! Wake queues: a worker leaves wakers to the worker on the core of the thread that they wake.
//!
//! A sleeping thread wakes on the core where it fell asleep, and on a small machine a worker runs
//! there. An interrupt of that core from another takes both cores away from their work (in a
//! virtual machine 20 us and 10; from its own core 4). A write to a line that an idle worker
//! watches takes less than one. A product of [256, 256], awaited, took 90 us by turns of 77 and
//! 100, and takes 77. Knows neither steps nor the task table.

use crate::guard::{Wakers, wake_all};
use crate::sync::clock::Instant;
use crate::sync::plain::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use crate::sync::threads::spin_loop;
use crate::sync::{Mutex, lock};
use std::task::Waker;
use std::time::Duration;

/// How long a worker waits for another to take its wakers: a line took up to 0.4 us from core to
/// core and back, an idle round with a yield 1.
const WAIT: Duration = Duration::from_micros(3);

/// No core, or none that is known.
const NONE: usize = usize::MAX;

pub(super) struct WakeQueues {
    /// The core of the thread that last began to wait for a value. A hint: any waker's call wakes
    /// the thread.
    awaited_on: AtomicUsize,
    workers: Box<[Worker]>,
    wait: Duration,
}

/// In lines of its own, so that a worker's look at its own takes nothing from another's cache.
#[repr(align(128))]
struct Worker {
    /// The core on which the worker is idle, or will soon be.
    core: AtomicUsize,
    left: Mutex<Left>,
    /// Wakers are left. A hint: a worker that stops being idle looks under the lock.
    is_some: AtomicBool,
}

#[derive(Default)]
struct Left {
    /// The worker looks into its queue now and then, and once more before it does anything else.
    is_idle: bool,
    wakers: Wakers,
}

impl WakeQueues {
    pub fn new(workers: usize) -> WakeQueues {
        let worker = |_| Worker {
            core: AtomicUsize::new(NONE),
            left: Mutex::default(),
            is_some: AtomicBool::new(false),
        };
        let workers = (0..workers).map(worker).collect();
        WakeQueues { awaited_on: AtomicUsize::new(NONE), workers, wait: WAIT }
    }

    /// A thread on this core begins to wait.
    pub fn awaits_on(&self, core: Option<usize>) {
        self.awaited_on.store(core.unwrap_or(NONE), Relaxed);
    }

    /// A worker on this core is idle.
    pub fn idle(&self, me: usize, core: Option<usize>) -> Idle<'_> {
        let worker = &self.workers[me];
        lock(&worker.left).is_idle = true;
        let idle = Idle(worker);
        idle.is_on(core);
        idle
    }

    /// This worker sleeps, or begins something long: nobody is to wait for it.
    pub fn busy(&self, me: usize) {
        self.workers[me].core.store(NONE, Relaxed);
    }

    /// Has all of these called: by an idle worker on their core where there is one, else here and
    /// now.
    pub fn wake(&self, me: usize, here: impl FnOnce() -> Option<usize>, mut wakers: Wakers) {
        let core = self.awaited_on.load(Relaxed);
        if core != NONE && here() != Some(core) {
            self.leave_to_one_on(core, me, &mut wakers);
        }
        wake_all(wakers);
    }

    /// The worker takes wakers out of `wakers`; the rest stays there.
    fn leave_to_one_on(&self, core: usize, me: usize, wakers: &mut Wakers) {
        let is_there = |i: usize, worker: &Worker| i != me && worker.core.load(Relaxed) == core;
        let Some((_, worker)) =
            self.workers.iter().enumerate().find(|(i, worker)| is_there(*i, worker))
        else {
            return;
        };
        let from = Instant::now();
        let mut is_left = false;
        while from.elapsed() < self.wait && worker.core.load(Relaxed) == core {
            if is_left && !worker.is_some.load(Relaxed) {
                return;
            }
            is_left = is_left || worker.take_on(wakers);
            spin_loop();
        }
        // The worker does not run just now: until it names its core again nobody waits for it. This
        // thread calls all wakers in the worker's queue, those of others too.
        worker.core.store(NONE, Relaxed);
        if is_left {
            while let Some(waker) = worker.next() {
                wakers.push(waker);
            }
        }
    }
}

impl Worker {
    fn take_on(&self, wakers: &mut Wakers) -> bool {
        // The holder of the lock may be off its core.
        let Ok(mut left) = self.left.try_lock() else { return false };
        if left.is_idle {
            left.wakers.append(wakers);
            self.is_some.store(true, Relaxed);
        }
        left.is_idle
    }

    /// One at a time: a woken thread may take this very core, and the wakers after it are taken
    /// back then.
    fn next(&self) -> Option<Waker> {
        let mut left = lock(&self.left);
        let waker = (!left.wakers.is_empty()).then(|| left.wakers.remove(0));
        self.is_some.store(!left.wakers.is_empty(), Relaxed);
        waker
    }
}

/// An idle worker.
pub(super) struct Idle<'a>(&'a Worker);

impl<'a> Idle<'a> {
    /// The system may have moved the worker.
    pub fn is_on(&self, core: Option<usize>) {
        self.0.core.store(core.unwrap_or(NONE), Relaxed);
    }

    /// True where others have left wakers to the worker.
    #[inline]
    pub fn is_asked(&self) -> bool {
        self.0.is_some.load(Relaxed)
    }

    /// The worker is idle no more: the wakers that were left to it, if any.
    pub fn end(self) -> Option<LeftTo<'a>> {
        let worker = self.0;
        std::mem::forget(self);
        let mut left = lock(&worker.left);
        left.is_idle = false;
        (!left.wakers.is_empty()).then(|| LeftTo(worker))
    }
}

/// A panic of the engine forgets no waker.
impl Drop for Idle<'_> {
    fn drop(&mut self) {
        lock(&self.0.left).is_idle = false;
        drop(LeftTo(self.0));
    }
}

/// The wakers that were left to a worker that is idle no more. The drop calls them.
pub(super) struct LeftTo<'a>(&'a Worker);

impl Drop for LeftTo<'_> {
    fn drop(&mut self) {
        while let Some(waker) = self.0.next() {
            wake_all([waker]);
        }
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::thread::{self, ThreadId};

    /// How often it was woken, and by whom last.
    #[derive(Default)]
    struct Sleeper {
        times: AtomicUsize,
        by: Mutex<Option<ThreadId>>,
    }

    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {
            *lock(&self.by) = Some(thread::current().id());
            self.times.fetch_add(1, Relaxed);
        }
    }

    impl Sleeper {
        fn times(&self) -> usize {
            self.times.load(Relaxed)
        }
    }

    /// Worker 0, on core 3, calls a waker.
    fn wake(wake_queues: &WakeQueues, sleeper: &Arc<Sleeper>) {
        wake_queues.wake(0, || Some(3), Wakers::from_iter([Waker::from(sleeper.clone())]));
    }

    #[test]
    fn an_idle_worker_on_the_core_of_who_waits_wakes_it_and_each_is_woken_once() {
        // Long enough for a thread to have its turn on a busy machine.
        let wake_queues = WakeQueues { wait: Duration::from_secs(60), ..WakeQueues::new(2) };
        let sleeper = Arc::new(Sleeper::default());
        wake_queues.awaits_on(Some(7));
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let idle = wake_queues.idle(1, Some(7));
                    (0..100).any(|_| idle.is_asked());
                    drop(idle.end());
                }
            });
            while wake_queues.workers[1].core.load(Relaxed) == NONE {
                thread::yield_now();
            }
            let is_woken_by_other = |wakes| {
                wake(&wake_queues, &sleeper);
                // The taker may still be about to call it.
                while sleeper.times() < wakes {
                    thread::yield_now();
                }
                (sleeper.times(), *lock(&sleeper.by)) == (wakes, Some(other.thread().id()))
            };
            let all = (1..=100).all(is_woken_by_other);
            is_over.store(true, Relaxed);
            assert!(all, "{} times, last by {:?}", sleeper.times(), lock(&sleeper.by));
        });
    }

    #[test]
    fn who_goes_away_wakes_whom_was_left_to_it() {
        let (wake_queues, sleeper) = (WakeQueues::new(2), Arc::new(Sleeper::default()));
        let idle = wake_queues.idle(1, Some(7));
        let mut wakers = Wakers::from_iter([Waker::from(sleeper.clone())]);
        assert!(wake_queues.workers[1].take_on(&mut wakers));
        assert!(wakers.is_empty());
        assert!(idle.is_asked());
        let left = idle.end().expect("somebody");
        assert_eq!(sleeper.times(), 0);
        drop(left);
        assert_eq!(sleeper.times(), 1);
        assert!(wake_queues.idle(1, Some(7)).end().is_none());
        wakers.push(Waker::from(sleeper.clone()));
        assert!(!wake_queues.workers[1].take_on(&mut wakers), "it has gone");
        assert_eq!(wakers.len(), 1);
    }

    #[test]
    fn where_no_worker_comes_for_it_who_has_woken_does_it() {
        let (wake_queues, sleeper) = (WakeQueues::new(3), Arc::new(Sleeper::default()));
        let here = thread::current().id();
        let mut times = 0;
        let mut wakes_here = |wake_queues: &WakeQueues| {
            wake(wake_queues, &sleeper);
            times += 1;
            assert_eq!((sleeper.times(), *lock(&sleeper.by)), (times, Some(here)));
        };
        wakes_here(&wake_queues);
        // The waiter's core is the waker's, then one where no worker is, then one where one is that
        // does not look.
        let elsewhere = wake_queues.idle(1, Some(5));
        for core in [3, 6, 5] {
            wake_queues.awaits_on(Some(core));
            wakes_here(&wake_queues);
        }
        assert!(elsewhere.end().is_none());
        wake_queues.busy(1);
        wakes_here(&wake_queues);
    }
}
