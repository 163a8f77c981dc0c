//! The yield budget: how much a task may do before other tasks get their turn.
//!
//! A loop of awaits that are all ready would never return to the executor. After a number of
//! values, or an amount of work inside polls, a poll wakes itself and returns `Pending`. The budget
//! is counted per thread, since a library without a runtime does not know tasks; a task that shares
//! its thread yields a little more often, which is harmless.

use crate::graph::node::INLINE_NS;
use crate::sync::threads::thread_local;
use std::cell::Cell;

/// The number of ready values before a poll yields.
const VALUES: u32 = 128;
/// The estimated nanoseconds of work inside polls before a poll yields.
const WORK_NS: u32 = 50_000;
thread_local! {
    static SPENT: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// Takes one value, and its work, out of the budget; false if the task should yield.
pub(crate) fn spend(work_ns: u32) -> bool {
    let (values, work) = SPENT.get();
    if values >= VALUES || work >= WORK_NS {
        SPENT.set((0, 0));
        return false;
    }
    SPENT.set((values + 1, work.saturating_add(work_ns.min(INLINE_NS))));
    true
}

/// Resets the budget after the task has yielded.
pub(crate) fn rest() {
    SPENT.set((0, 0));
}
