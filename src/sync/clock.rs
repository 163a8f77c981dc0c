//! The one door to time: the clock, and waits with a limit.
//!
//! Under `--cfg futensor_shuttle` the explorer of schedules makes the time: at each look the clock
//! may have moved little since the last look, or more than any wait.

use super::plain::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

#[cfg(futensor_shuttle)]
pub(crate) use super::schedule::Instant;
#[cfg(not(futensor_shuttle))]
pub(crate) use std::time::Instant;

/// Waits to be notified, at most for so long. The guard is this lock's.
pub(crate) fn wait_for<'a, T>(
    condvar: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    limit: Duration,
) -> MutexGuard<'a, T> {
    #[cfg(futensor_shuttle)]
    {
        let _ = (condvar, limit);
        super::schedule::wait_for(mutex, guard)
    }
    #[cfg(not(futensor_shuttle))]
    let _ = mutex;
    #[cfg(not(futensor_shuttle))]
    condvar.wait_timeout(guard, limit).unwrap_or_else(|poisoned| poisoned.into_inner()).0
}

/// Sleeps for so long.
pub(crate) fn sleep(time: Duration) {
    #[cfg(futensor_shuttle)]
    super::schedule::sleep(time);
    #[cfg(not(futensor_shuttle))]
    std::thread::sleep(time);
}
