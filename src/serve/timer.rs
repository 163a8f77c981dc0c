//! The clock of a batcher.
//!
//! A batch that is not full goes out when its oldest request has waited long enough, which needs a
//! timer. Under tokio the reactor could be one, but other executors may have none. So the default
//! is one thread of the process, which sleeps until the next deadline; a test uses a
//! [`ManualTimer`]. The thread also starts the batches that become due when a running batch ends:
//! the engine only wakes it.

use crate::guard::{caught, wake_all};
use crate::sync::lock_plain as lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

/// A clock that wakes. If a timer panics, its batcher replaces it by the timer thread of the
/// process, which continues from the last time that the timer returned.
pub trait Timer: Send + Sync + 'static {
    /// The time since some fixed moment.
    fn now(&self) -> Duration;
    /// Wakes `waker` once `now()` has reached `at`, or soon if it already has; never from inside
    /// this call.
    fn wake_at(&self, at: Duration, waker: Waker);
}

#[derive(Default)]
struct Alarms {
    /// Ordered by time, then by the order of the calls.
    list: BTreeMap<(Duration, u64), Waker>,
    next: u64,
}

impl Alarms {
    fn add(&mut self, at: Duration, waker: Waker) {
        self.list.insert((at, self.next), waker);
        self.next += 1;
    }

    fn due(&mut self, now: Duration) -> Vec<Waker> {
        let later = self.list.split_off(&(now, u64::MAX));
        std::mem::replace(&mut self.list, later).into_values().collect()
    }
}

/// The timer thread of the process. It starts with the first alarm, sleeps until the next one, and
/// ends with the process.
pub(super) struct ThreadTimer {
    epoch: Instant,
    alarms: Mutex<Alarms>,
    changed: Condvar,
}

impl ThreadTimer {
    /// `None` if the thread cannot be started; the next call tries again.
    pub fn of_the_process() -> Option<Arc<ThreadTimer>> {
        static TIMER: Mutex<Option<Arc<ThreadTimer>>> = Mutex::new(None);
        let mut there = lock(&TIMER);
        if there.is_none() {
            let (epoch, alarms) = (Instant::now(), Mutex::default());
            let timer = Arc::new(ThreadTimer { epoch, alarms, changed: Condvar::new() });
            let own = timer.clone();
            let thread = std::thread::Builder::new().name("futensor-timer".into());
            thread.spawn(move || own.live()).ok()?;
            *there = Some(timer);
        }
        there.clone()
    }

    fn live(&self) -> ! {
        let mut alarms = lock(&self.alarms);
        loop {
            let due = alarms.due(self.now());
            if !due.is_empty() {
                drop(alarms);
                wake_all(due);
                alarms = lock(&self.alarms);
                continue;
            }
            let first = alarms.list.first_key_value().map(|((at, _), _)| *at);
            alarms = match first {
                Some(at) => {
                    let wait = at.saturating_sub(self.now());
                    self.changed.wait_timeout(alarms, wait).unwrap_or_else(|p| p.into_inner()).0
                }
                None => self.changed.wait(alarms).unwrap_or_else(|p| p.into_inner()),
            };
        }
    }
}

impl Timer for ThreadTimer {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn wake_at(&self, at: Duration, waker: Waker) {
        lock(&self.alarms).add(at, waker);
        self.changed.notify_one();
    }
}

/// A batcher's timer. It may be user code, so it is called under a guard and outside every lock.
pub(super) struct Clock {
    timer: Arc<dyn Timer>,
    /// The latest time that it returned, in nanoseconds.
    last: AtomicU64,
    substitute: OnceLock<Substitute>,
}

/// The replacement of a timer that panicked.
struct Substitute {
    /// `None` if the process cannot start a thread: time then stands still.
    timer: Option<Arc<ThreadTimer>>,
    /// The last time of the old timer, and the time of the new one at the switch.
    last: Duration,
    since: Duration,
}

impl Substitute {
    fn now(&self) -> Duration {
        let passed = self
            .timer
            .as_ref()
            .map_or(Duration::ZERO, |timer| timer.now().saturating_sub(self.since));
        self.last.saturating_add(passed)
    }
}

impl Clock {
    pub fn new(timer: Arc<dyn Timer>) -> Clock {
        Clock { timer, last: AtomicU64::new(0), substitute: OnceLock::new() }
    }

    /// The time, and whether the timer panicked in this call, so that its alarms may be lost.
    pub fn now(&self) -> (Duration, bool) {
        if let Some(substitute) = self.substitute.get() {
            return (substitute.now(), false);
        }
        let Ok(now) = caught(|| self.timer.now()) else { return (self.substituted().now(), true) };
        self.last.fetch_max(now.as_nanos().min(u64::MAX as u128) as u64, Relaxed);
        (now, false)
    }

    /// Whether the timer panicked in this call, as for [`now`](Self::now).
    pub fn wake_at(&self, at: Duration, waker: Waker) -> bool {
        let was_sound = self.substitute.get().is_none();
        if was_sound && caught(|| self.timer.wake_at(at, waker.clone())).is_ok() {
            return false;
        }
        let Substitute { timer, last, since } = self.substituted();
        if let Some(timer) = timer {
            timer.wake_at(since.saturating_add(at.saturating_sub(*last)), waker);
        }
        was_sound
    }

    fn substituted(&self) -> &Substitute {
        self.substitute.get_or_init(|| {
            let timer = ThreadTimer::of_the_process();
            let since = timer.as_ref().map_or(Duration::ZERO, |timer| timer.now());
            Substitute { timer, last: Duration::from_nanos(self.last.load(Relaxed)), since }
        })
    }
}

/// A timer that a test advances by hand: nothing is due before [`advance`](Self::advance).
///
/// ```
/// use futensor::serve::{ManualTimer, Timer};
/// use std::time::Duration;
/// let timer = ManualTimer::new();
/// timer.advance(Duration::from_millis(5));
/// assert_eq!(timer.now(), Duration::from_millis(5));
/// ```
#[derive(Clone, Default)]
pub struct ManualTimer(Arc<Mutex<(Duration, Alarms)>>);

impl ManualTimer {
    /// A timer at time zero.
    pub fn new() -> ManualTimer {
        ManualTimer::default()
    }

    /// Advances the clock and calls the wakers that are due, on this thread; returns their number.
    /// With zero, those that are already due.
    pub fn advance(&self, by: Duration) -> usize {
        let due = {
            let (now, alarms) = &mut *lock(&self.0);
            *now = now.saturating_add(by);
            alarms.due(*now)
        };
        let count = due.len();
        wake_all(due);
        count
    }
}

impl std::fmt::Debug for ManualTimer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ManualTimer({:?})", self.now())
    }
}

impl Timer for ManualTimer {
    fn now(&self) -> Duration {
        lock(&self.0).0
    }

    fn wake_at(&self, at: Duration, waker: Waker) {
        lock(&self.0).1.add(at, waker);
    }
}
