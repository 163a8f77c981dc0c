//! Promises of the simulated driver, tested through unmodified cudarc.
//!
//! The program starts itself again with the driver in the loader's path, and runs its tests one
//! after the other: the simulated machine is one for the process. A test gets a machine reset to
//! its seed and must leave no report behind, except those it expects and clears.

mod blas;
mod faults;
mod graphs;
mod host;
mod kernels;
mod language;
mod memory;
mod order;
mod races;
mod rig;

use futensor_simulated_driver::{Simulator, harness};
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

type Test = fn(&Simulator);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let simulator = match harness::enter() {
        Ok(simulator) => simulator,
        Err(why) => {
            eprintln!("the simulated driver cannot be used: {why}");
            return ExitCode::FAILURE;
        }
    };
    let skipped = simulator.can_compile().err();
    if let Some(why) = &skipped {
        eprintln!("skipped, as kernels cannot be compiled: {why}");
    }
    let groups: [&[(&str, Test)]; 9] = [
        kernels::TESTS,
        language::TESTS,
        order::TESTS,
        host::TESTS,
        memory::TESTS,
        faults::TESTS,
        races::TESTS,
        graphs::TESTS,
        blas::TESTS,
    ];
    let trials = groups.into_iter().flatten().map(|&(name, test)| {
        let run = move || -> Result<(), Failed> {
            simulator.reset(1, 2);
            simulator.watch_shared(false);
            let outcome = std::panic::catch_unwind(|| test(&simulator));
            simulator.release_hangs();
            simulator.resume();
            let report = simulator.report();
            match outcome {
                Ok(()) if report.is_empty() => Ok(()),
                Ok(()) => Err(format!("reports:\n{report}").into()),
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text =
                        text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
                    Err(format!("{}\nreports:\n{report}", text.unwrap_or_default()).into())
                }
            }
        };
        Trial::test(name, run).with_ignored_flag(skipped.is_some())
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
