//! Giving way: how much a task may do before its siblings get their turn.
//!
//! A loop of awaits that are all ready at once would never return to the executor. After so many
//! values, or so much work done inside polls, a poll wakes itself and returns `Pending`. Counted a
//! thread, since a core without a runtime knows no tasks; a task that shares its thread gives way a
//! little more often, which is harmless.

use crate::engine::limits::INLINE_NS;
use crate::sync::threads::thread_local;
use std::cell::Cell;

/// Values ready at once before a poll gives way.
const VALUES: u32 = 128;
/// Estimated nanoseconds of work inside polls before a poll gives way.
const WORK_NS: u32 = 50_000;
thread_local! {
    static SPENT: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// Takes one value, and the work that it was, out of the budget; false where the task is to give
/// way.
pub(crate) fn spend(work_ns: u32) -> bool {
    let (values, work) = SPENT.get();
    if values >= VALUES || work >= WORK_NS {
        SPENT.set((0, 0));
        return false;
    }
    SPENT.set((values + 1, work.saturating_add(work_ns.min(INLINE_NS))));
    true
}

/// The task has given way.
pub(crate) fn rest() {
    SPENT.set((0, 0));
}
