//! Every wait of one stream for another is needed, and the race check sees it when one is missing.

use super::support::block_on;
use super::values::graph;
use super::{Entry, entries};
use futensor::{CudaOptions, Device};
use futensor_simulated_driver::Simulator;

pub fn all() -> Vec<Entry> {
    entries![1, false; leaving_out_any_one_wait_is_reported].to_vec()
}

/// Queues a graph while nothing runs, then reads it; says how often one stream waited for another.
fn tangle(simulator: &Simulator, seed: u64) -> u64 {
    let device = Device::cuda_with(0, CudaOptions::default().streams(3).depth(4)).unwrap();
    // With elements on the device before anything else is queued.
    let values = graph(&device, seed, 120);
    for x in &values {
        let _ = block_on(x.to_vec::<f32>());
    }
    simulator.stats().waits
}

fn leaving_out_any_one_wait_is_reported(simulator: &Simulator, seed: u64) {
    let waits = tangle(simulator, seed);
    assert_eq!(simulator.report(), "");
    assert!(waits > 4, "only {waits} waits");
    let mut dropped = 0;
    for n in 1..=waits {
        super::settle(simulator);
        simulator.reset(seed, 2);
        simulator.drop_wait(n);
        // Which stream takes what depends on timing: a run may have fewer waits.
        if tangle(simulator, seed) < n {
            continue;
        }
        dropped += 1;
        let found = simulator.count("race") + simulator.count("use after free");
        assert!(found > 0, "wait {n} of {waits} was left out, and nothing was reported");
        simulator.clear_report();
    }
    assert!(dropped > 2, "only {dropped} waits were left out");
}
