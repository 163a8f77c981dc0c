//! Small programs over the whole host engine, each run under many orders of its threads.
//!
//!     .ci/schedules     # of each program 1,000 orders by priority and 1,000 at random
//!     .ci/schedules drops                    # of those whose name has this word
//!     FUTENSOR_SCHEDULES=1000000 .ci/schedules
//!     FUTENSOR_SCHEDULE=91... .ci/schedules drops_beside_take_up   # one order again
//!
//! What runs is what ships: port, intake, scheduler, machine, small steps, workers; `src/sync` is
//! where the scheduler comes in. It takes every access for SeqCst: weaker orders of memory are what
//! loom's models are for. After each order nothing may stay behind, and every thread of the engine
//! has to end by itself.
#![cfg(futensor_shuttle)]

mod programs;
mod support;

/// `programs! { a b }`: the functions `a` and `b` of [`programs`] are explored, each in a test of
/// its name.
macro_rules! programs {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            support::explore(stringify!($name), programs::$name);
        })*
    };
}

programs! {
    drops_beside_take_up
    drops_of_a_wide_graph
    an_await_that_is_given_up_beside_its_end
    two_awaits_of_one_value
    ready_beside_cancellation
    admit_beside_cancellation
    waitall_beside_enqueueing
    sources_that_come_beside_drops
    inline_polls_beside_workers
    steps_beside_drops
    an_op_after_the_last_handle
    a_shutdown_in_the_middle
    a_shutdown_beside_a_source
}
