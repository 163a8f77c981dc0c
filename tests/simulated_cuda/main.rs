//! The CUDA device, whole, on a machine without a GPU: see `crates/futensor-simulated-driver`.
//!
//!     cargo test -p futensor-tests --test simulated_cuda   # all; ignored without g++
//!     FUTENSOR_SEEDS=100 cargo test -p futensor-tests --test simulated_cuda faults
//!
//! The program starts itself again with the simulated driver in the loader's path. Each trial gets
//! a machine anew, with two GPUs, and must leave nothing behind: no race, no leak, no misuse, or it
//! fails.

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/trials.rs"]
mod trials;

mod convolutions;
mod doors;
mod driver;
mod edges;
mod experts;
mod faults;
mod foreign;
mod halves;
mod hosted;
mod odd;
mod optim;
mod order;
mod pinned;
mod regions;
mod replays;
mod times;
mod values;

use futensor::Device;
use futensor::cuda::CudaOptions;
use futensor_simulated_driver::{Simulator, harness};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use trials::{Came, Case};

/// A promise, given the simulated machine and a seed.
pub type Promise = fn(&Simulator, u64);

/// How a promise is tried.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Of the function.
    pub name: &'static str,
    /// The function.
    pub promise: Promise,
    /// How many seeds it is tried with, by default.
    pub seeds: u64,
    /// The device is lost on the way: what it had is not given back.
    pub loses: bool,
}

/// `entries![once: a b c]`
macro_rules! entries {
    ($seeds:expr, $loses:expr; $($name:ident)*) => {
        [$($crate::Entry {
            name: stringify!($name),
            promise: $name,
            seeds: $seeds,
            loses: $loses,
        }),*]
    };
}
pub(crate) use entries;

/// A device of its own on a simulated GPU.
fn device(index: usize) -> Device {
    Device::cuda_with(index, CudaOptions::default()).expect("a simulated GPU")
}

fn two_devices() -> (Device, Device) {
    (device(0), device(1))
}

/// Waits until the devices' threads have ended, which they do by themselves once the last handle is
/// gone. A device gives its pool back last.
fn settle(simulator: &Simulator) {
    support::until(|| {
        let stats = simulator.stats();
        stats.live_streams == 0 && stats.live_pools == 0
    });
}

fn run(simulator: &Simulator, entry: Entry) -> Came {
    let seeds = match std::env::var("FUTENSOR_SEEDS") {
        Ok(text) if entry.seeds > 1 => text.parse().unwrap_or(entry.seeds),
        _ => entry.seeds,
    };
    let first: u64 = std::env::var("FUTENSOR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for seed in first..first + seeds {
        trials::round();
        println!("seed {seed}");
        simulator.reset(seed, 2);
        let outcome = catch_unwind(AssertUnwindSafe(|| (entry.promise)(simulator, seed)));
        simulator.release_hangs();
        simulator.resume();
        if !entry.loses {
            // Also behind a failure: the next reset takes the memory from whoever still runs.
            settle(simulator);
        }
        if let Err(panic) = outcome {
            return trials::words(panic)
                .map_err(|text| format!("seed {seed}: {text}\n{}", simulator.report()));
        }
        if !entry.loses {
            simulator.check();
        }
        let report = simulator.report();
        if !report.is_empty() {
            return Err(format!("seed {seed} leaves reports:\n{report}"));
        }
    }
    Ok(None)
}

fn main() -> ExitCode {
    if let Some(code) = edges::part() {
        return code;
    }
    let (simulator, skipped) = match harness::enter() {
        Ok(simulator) => (Some(simulator), simulator.can_compile().err()),
        Err(why) => (None, Some(why)),
    };
    if let Some(why) = &skipped {
        eprintln!("ignored, as the simulated driver cannot be used: {why}");
    }
    let entries: Vec<(String, Entry)> = [
        ("values", values::all()),
        ("optim", optim::all()),
        ("order", order::all()),
        ("regions", regions::all()),
        ("replays", replays::all()),
        ("convolutions", convolutions::all()),
        ("times", times::all()),
        ("faults", faults::all()),
        ("driver", driver::all()),
        ("edges", edges::all()),
        ("experts", experts::all()),
        ("odd", odd::all()),
        ("foreign", foreign::all()),
        ("halves", halves::all()),
        ("doors", doors::all()),
        ("pinned", pinned::all()),
        ("hosted", hosted::all()),
    ]
    .into_iter()
    .flat_map(|(group, list)| list.into_iter().map(move |e| (format!("{group}::{}", e.name), e)))
    .collect();
    let cases = entries.into_iter().map(|(name, entry)| {
        let case = Case::that(name, move || match &simulator {
            Some(simulator) => run(simulator, entry),
            None => Err("there is no simulated driver".into()),
        });
        case.ignored(skipped.is_some())
    });
    trials::run(cases.collect(), true)
}
