//! The reference cases of every op on simulated CUDA: the list of `ops_reference`, on the third
//! device.
//!
//!     cargo test -p futensor-tests --test ops_simulated_cuda   # ignored without g++
//!
//! The first run compiles the kernels with g++, which takes some minutes; they are kept.

#[allow(dead_code)]
#[path = "ops_reference.rs"]
mod ops;

use futensor_simulated_driver::harness;

fn main() {
    let ready = harness::enter().and_then(|simulator| simulator.can_compile().map(|()| simulator));
    match ready {
        Ok(simulator) => {
            // Four, each with a trial at a time and a thread that compiles: of two, one looked
            // after its steps half of the time (1:27 and 0:59 for all kernels, on two cores).
            simulator.reset(1, 4);
            ops::run(&["cuda", ops::COLUMNS], true);
        }
        Err(why) => {
            // Without a driver there is no such device: its trials are ignored.
            eprintln!("ignored, as the simulated driver cannot be used: {why}");
            ops::run(&["cuda", ops::COLUMNS], true);
        }
    }
}
