//! Repeated draws: a block that runs twice must see the same random numbers both times.
//!
//! While a block is recorded, the positions that its draws reserve are logged; while it is
//! repeated, the logged positions are used in the same order, and nothing is reserved.

use crate::sync::threads::thread_local;
use std::cell::RefCell;
use std::collections::VecDeque;

/// The seed and position of a draw.
pub(crate) type Draw = (u64, u64);

enum Log {
    Noting(Vec<Draw>),
    Repeating(VecDeque<Draw>),
}

thread_local! {
    /// The blocks that this thread is in, the innermost last.
    static LOGS: RefCell<Vec<Log>> = const { RefCell::new(Vec::new()) };
}

/// The position of a draw: from the innermost repeated block, or reserved by `reserve`. All
/// recorded blocks log it.
pub(crate) fn drawn(reserve: impl FnOnce() -> Draw) -> Draw {
    LOGS.with_borrow_mut(|logs| {
        if logs.is_empty() {
            return reserve();
        }
        let again = logs.iter_mut().rev().find_map(|log| match log {
            Log::Repeating(draws) => draws.pop_front(),
            Log::Noting(_) => None,
        });
        let draw = again.unwrap_or_else(reserve);
        for log in logs {
            if let Log::Noting(draws) = log {
                draws.push(draw);
            }
        }
        draw
    })
}

fn within<R>(log: Log, f: impl FnOnce() -> R) -> (R, Option<Log>) {
    /// Removes the log, also after a panic.
    struct Pop;
    impl Drop for Pop {
        fn drop(&mut self) {
            LOGS.with_borrow_mut(|logs| logs.pop());
        }
    }
    LOGS.with_borrow_mut(|logs| logs.push(log));
    let pop = Pop;
    let out = f();
    let log = LOGS.with_borrow_mut(|logs| logs.pop());
    std::mem::forget(pop);
    (out, log)
}

/// Runs a block and logs its draws.
pub(super) fn noting<R>(f: impl FnOnce() -> R) -> (R, Vec<Draw>) {
    match within(Log::Noting(Vec::new()), f) {
        (out, Some(Log::Noting(draws))) => (out, draws),
        (out, _) => (out, Vec::new()),
    }
}

/// Runs a block with logged draws.
pub(super) fn repeating<R>(draws: &[Draw], f: impl FnOnce() -> R) -> R {
    within(Log::Repeating(draws.iter().copied().collect()), f).0
}
