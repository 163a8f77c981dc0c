//! The one door to threads: starting, parking, waking, yielding, and thread-local values.
//!
//! [`sync`](super) names the implementations. Further requests to the operating system (priorities,
//! cores) stand in `host/threads`.

use std::io;

#[cfg(futensor_shuttle)]
pub(crate) use super::schedule::{Life, local as thread_local, spin_loop};
#[cfg(futensor_shuttle)]
pub(crate) use shuttle::thread::{Thread, current, park, yield_now};
#[cfg(not(futensor_shuttle))]
pub(crate) use std::{
    hint::spin_loop,
    thread::{Thread, current, park, yield_now},
    thread_local,
};

/// Starts a thread, which nobody joins.
pub(crate) fn start(name: String, life: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    #[cfg(futensor_shuttle)]
    return Ok(Life::begin(name, life));
    #[cfg(not(futensor_shuttle))]
    std::thread::Builder::new().name(name).spawn(life).map(|handle| handle.thread().clone())
}

/// How many threads run at once on this machine, as far as the system tells.
pub(crate) fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
