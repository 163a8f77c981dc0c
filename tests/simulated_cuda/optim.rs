//! Steps of optimizers and clipping on a GPU: the promises of `tests/optim`.

#[allow(dead_code)] // Some of it is for the host's tests.
#[path = "../reference/steps.rs"]
mod steps;

use super::{Entry, device, entries};
use futensor_simulated_driver::Simulator;

pub fn all() -> Vec<Entry> {
    entries![1, false;
        halves_step_as_float64_rounded_once
        a_region_steps_halves_as_well
        halves_are_clipped_as_float64_rounded_once
        steps_are_counted_for_each_parameter
    ]
    .to_vec()
}

fn halves_step_as_float64_rounded_once(_: &Simulator, _: u64) {
    steps::halves_step_as_float64_rounded_once(
        &device(0),
        &["sgd_decay", "sgd_momentum", "adam_decay", "adamw"],
    );
}

fn a_region_steps_halves_as_well(_: &Simulator, _: u64) {
    steps::a_region_steps_halves_as_float64_rounded_once(&device(0), &["sgd_momentum", "adamw"]);
}

fn halves_are_clipped_as_float64_rounded_once(_: &Simulator, _: u64) {
    steps::halves_are_clipped_as_float64_rounded_once(&device(0));
}

fn steps_are_counted_for_each_parameter(_: &Simulator, _: u64) {
    let of = |name: &str, p| steps::optimizer(name, p, 0.1);
    steps::steps_are_counted_for_each_parameter(&device(0), of, None);
}
