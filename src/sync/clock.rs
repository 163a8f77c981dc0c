//! The one door to time: what it is, and how long to wait for something.
//!
//! Under `--cfg futensor_shuttle` time is what the scheduler makes of it: each look at the clock
//! may find that little has passed since the last, or more than anybody waits for.

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
