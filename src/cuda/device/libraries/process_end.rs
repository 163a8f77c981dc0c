//! The end of the process. NVIDIA's libraries then destroy what they keep, while our threads go on:
//! a call after that, or under way, may fault. So a handler of the end waits until no thread of
//! ours is inside a library, and none comes in after it.
//!
//! Handlers run in reverse order, and a library adds its own when it is loaded or first used. So
//! this one is added again after each of these ([`guard`]): the last added runs first.
//!
//! A reaper's sleep does not count as inside: it may last as long as the work that is queued, and
//! the driver lets a sleeper be as it ends.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

/// Longest time that the end of the process is held up: a thread may be compiling a kernel.
const PATIENCE: Duration = Duration::from_secs(2);

/// The process ends.
static ENDS: AtomicBool = AtomicBool::new(false);
/// Threads that are inside.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// The process that has added the handler; a forked child has none of its threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// How often this thread has come in and not gone out.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// This thread is inside a library of NVIDIA's while it holds this.
pub(crate) struct Inside(PhantomData<*const ()>);

/// Comes in; once the process ends, this never returns.
pub(crate) fn inside() -> Inside {
    if DEPTH.get() == 0 {
        // SeqCst: either the handler counts this thread, or this thread sees that the process ends.
        THREADS.fetch_add(1, SeqCst);
        if ENDS.load(SeqCst) {
            THREADS.fetch_sub(1, SeqCst);
            loop {
                std::thread::park();
            }
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    Inside(PhantomData)
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            THREADS.fetch_sub(1, SeqCst);
        }
    }
}

/// Adds the handler: to be called after a library was loaded, and after the first call that may
/// have added a handler of the library's.
pub(crate) fn guard() {
    PROCESS.store(std::process::id(), SeqCst);
    // SAFETY: a function of this crate's, which does not unwind. Where there is no room for it the
    // process ends as it did without.
    let _ = unsafe { libc::atexit(keep_out) };
}

extern "C" fn keep_out() {
    if PROCESS.load(SeqCst) != std::process::id() {
        return;
    }
    if ENDS.swap(true, SeqCst) {
        return;
    }
    // The thread that ends the process may itself be inside.
    let own = usize::from(DEPTH.get() > 0);
    let from = Instant::now();
    while THREADS.load(SeqCst) > own && from.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(50));
    }
}
