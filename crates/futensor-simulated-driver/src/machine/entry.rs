//! The frame of every entry point: it takes the lock, refuses what is not allowed at that time, and
//! turns a panic into an error.

use crate::machine::scheduler;
use crate::machine::sim::{Guard, Sim, lock, sleep_until};
use crate::machine::thread::{IN_HOST_FUNCTION, LAUNCHES};
use crate::status::{
    DEINITIALIZED, NOT_INITIALIZED, NOT_PERMITTED, Outcome, Status, UNKNOWN, code,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The frame of an entry point that may be called before `cuInit`, or that a control function uses.
pub fn call_any(body: impl FnOnce(Guard) -> Outcome) -> Status {
    scheduler::start();
    match catch_unwind(AssertUnwindSafe(|| body(lock()))) {
        Ok(outcome) => code(outcome),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            lock()
                .report("internal", text.unwrap_or_else(|| "a panic inside the simulator".into()));
            UNKNOWN
        }
    }
}

/// The frame of an entry point that may wait: it is handed the lock.
pub fn call_holding(body: impl FnOnce(Guard) -> Outcome) -> Status {
    call_any(|mut sim| {
        if IN_HOST_FUNCTION.get() {
            sim.report("misuse", "a host function called the driver".into());
            return Err(NOT_PERMITTED);
        }
        if !sim.started {
            return Err(NOT_INITIALIZED);
        }
        if OVER.load(SeqCst) {
            return Err(DEINITIALIZED);
        }
        sim.stats.calls += 1;
        body(sim)
    })
}

/// The frame of an entry point that does not wait.
pub fn call(body: impl FnOnce(&mut Sim) -> Outcome) -> Status {
    call_holding(|mut sim| body(&mut sim))
}

/// What a driver may make wait for all of a context's work, and may take long over: loading a
/// module, page-locking memory, making a library's handle, trimming a pool. Here it waits, unless
/// work stands still on demand; a thread that launches is not to do it while anything is under way
/// (kind `stall`).
pub fn may_wait(mut sim: Guard, call: &str) -> Outcome {
    let context = sim.healthy_current()?;
    sim.is_safe()?;
    let under_way = |sim: &Sim| {
        let mut streams = sim.streams.values().filter(|stream| stream.context == context);
        streams.any(|stream| {
            let waits = stream.queue.iter().any(|item| !item.work.is_mark());
            stream.capture.is_none() && (waits || stream.running && !stream.passing)
        })
    };
    if !under_way(&sim) {
        return Ok(());
    }
    if LAUNCHES.get() {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        sim.report(
            "stall",
            format!("{call} on thread {name:?}, which launches, while work is under way"),
        );
    }
    sim.pace.waiters += 1;
    let (mut sim, outcome) = sleep_until(sim, |sim| match sim.healthy(context) {
        Err(error) => Some(Err(error)),
        Ok(()) => (!under_way(sim) || sim.stands_still()).then_some(Ok(())),
    });
    sim.pace.waiters -= 1;
    outcome
}

/// The process's exit handlers run: the driver has shut down, and answers so to the threads that go
/// on.
static OVER: AtomicBool = AtomicBool::new(false);

/// To be called at exit.
pub extern "C" fn exit() {
    OVER.store(true, SeqCst);
}
