//! The end of the process. At exit, ranks say goodbye, which needs working devices; and NVIDIA's
//! libraries destroy their state while this crate's threads still run, so that a call after that,
//! or in progress, may fault. One exit handler does both in order: it calls the function registered
//! by [first], then waits until no thread of this crate is [inside] a library, and keeps threads
//! out from then on.
//!
//! Exit handlers run in reverse order, and a library adds its own when it is loaded or first used.
//! So this handler is added again after each of these ([guard], [guard_first]): the last added runs
//! first. A library may also add one in a later call, when that is the first that takes a path
//! through the library; so calls are sorted by what may choose the path. Not known is a handler
//! that a library adds in a later call of one sort (or of one that shares its bit of 4,096), or in
//! a call during which the process ends.
//!
//! A thread that sleeps in the driver does not count as inside: the sleep may last as long as
//! queued work, and the driver does not disturb sleepers at exit.

#![allow(unsafe_code)]
#![allow(dead_code)] // Ranks have a use for one half of it, GPUs for the other.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

/// The longest time that the exit waits. A thread may be compiling a kernel, which takes seconds on
/// a busy machine; one that hangs in a library must not keep the process for ever.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether the process is ending.
static ENDS: AtomicBool = AtomicBool::new(false);
/// The number of threads inside.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// The process that has added the handler; a forked child has none of its threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The nesting depth of this thread's entries.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// While this lives, the thread is inside an NVIDIA library.
pub(crate) struct Inside(PhantomData<*const ()>);

/// Enters; once the process is ending, this never returns.
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

/// An exit handler: it gets the status, and has no state of its own.
type Handler = extern "C" fn(c_int, *mut c_void);

static FIRST: OnceLock<Handler> = OnceLock::new();

/// Registers the handler that runs first at exit, while threads may still enter. There is only one.
pub(crate) fn first(handler: Handler) {
    if FIRST.set(handler).is_ok() {
        add();
    }
}

/// Adds the exit handler. Call it after loading a library, and after the first call that may have
/// added a handler of the library.
pub(crate) fn guard() {
    PROCESS.store(std::process::id(), SeqCst);
    add();
}

/// The sorts of calls that are told apart; an exit handler is some bytes.
const SORTS: usize = 4096;

/// The same after a call that is made often, and of which the first of each sort may add a handler.
/// The numbers of a sort say what it is.
pub(crate) fn guard_first(sort: &[u32]) {
    static SEEN: [AtomicU64; SORTS / 64] = [const { AtomicU64::new(0) }; SORTS / 64];
    // Fowler, Noll and Vo's hash, a number at a time.
    let step = |hash: u64, &n: &u32| (hash ^ u64::from(n)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = sort.iter().fold(0xcbf2_9ce4_8422_2325, step);
    let place = (hash >> 32) as usize % SORTS;
    let (word, bit) = (&SEEN[place / 64], 1 << (place % 64));
    if word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0 {
        guard();
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn add() {
    unsafe extern "C" {
        fn on_exit(end: Handler, of: *mut c_void) -> c_int;
    }
    // SAFETY: the handler is a function of this crate, and does not unwind. If it cannot be added,
    // the process ends without it.
    let _ = unsafe { on_exit(ends, std::ptr::null_mut()) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn add() {
    // The status is unknown here: a handler that needs it has to assume failure.
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
    // The thread that ends the process may be inside itself.
    let own = usize::from(DEPTH.get() > 0);
    let from = Instant::now();
    while THREADS.load(SeqCst) > own && from.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(50));
    }
}
