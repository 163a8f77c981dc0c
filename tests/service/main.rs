//! The needs of a service: scopes that deny barriers, the barrier report, the batcher,
//! every executor, results in the order of their completion.
//!
//! `FUTENSOR_SEED=7 cargo test -p futensor-tests --test service` runs one seed of the tests that
//! have seeds.

#![allow(clippy::async_yields_async)] // Handles are futures, and tasks hand them on.

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/trials.rs"]
mod trials;

mod batcher;
mod batcher_seeds;
mod executors;
mod isolate;
mod report;
mod scopes;
mod timers;

use std::process::ExitCode;

fn main() -> ExitCode {
    let modules = [
        batcher::all(),
        batcher_seeds::all(),
        executors::all(),
        isolate::all(),
        report::all(),
        scopes::all(),
        timers::all(),
    ];
    trials::run(modules.into_iter().flatten().collect(), false)
}
