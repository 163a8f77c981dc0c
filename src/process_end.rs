//! The end of the process. Ranks then say goodbye, for which devices still have to work. NVIDIA's
//! libraries destroy what they keep, while our threads go on: a call after that, or under way, may
//! fault. So one handler of the end does both in this order: it calls what is [first], then waits
//! until no thread of ours is [inside] a library, and lets none come in any more.
//!
//! Handlers run in reverse order, and a library adds its own when it is loaded or first used. So
//! this one is added again after each of these ([guard]): the last added runs first.
//!
//! A sleep in the driver does not count as inside: it may last as long as the work that is queued,
//! and the driver lets a sleeper be as it ends.

#![allow(unsafe_code)]
#![allow(dead_code)] // Ranks have a use for one half of it, GPUs for the other.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;
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

/// A handler of the end: it is told the status, and has no state of its own.
type Handler = extern "C" fn(c_int, *mut c_void);

static FIRST: OnceLock<Handler> = OnceLock::new();

/// Has this called as the process ends, while threads may still come inside. There is one.
pub(crate) fn first(handler: Handler) {
    if FIRST.set(handler).is_ok() {
        add();
    }
}

/// Adds the handler: to be called after a library was loaded, and after the first call that may
/// have added a handler of the library's.
pub(crate) fn guard() {
    PROCESS.store(std::process::id(), SeqCst);
    add();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn add() {
    unsafe extern "C" {
        fn on_exit(end: Handler, of: *mut c_void) -> c_int;
    }
    // SAFETY: a function of this crate's, which does not unwind. Where there is no room for it the
    // process ends as it did without.
    let _ = unsafe { on_exit(ends, std::ptr::null_mut()) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn add() {
    // The status is told to nobody: whoever needs one has to take the process for failed.
    extern "C" fn without_status() {
        ends(libc::EXIT_FAILURE, std::ptr::null_mut());
    }
    // SAFETY: as above.
    let _ = unsafe { libc::atexit(without_status) };
}

extern "C" fn ends(status: c_int, of: *mut c_void) {
    if let Some(first) = FIRST.get() {
        first(status, of);
    }
    if PROCESS.load(SeqCst) != std::process::id() || ENDS.swap(true, SeqCst) {
        return;
    }
    // The thread that ends the process may itself be inside.
    let own = usize::from(DEPTH.get() > 0);
    let from = Instant::now();
    while THREADS.load(SeqCst) > own && from.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(50));
    }
}
