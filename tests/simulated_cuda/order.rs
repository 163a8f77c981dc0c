//! Every wait of one stream for another is needed, and the race check sees it when one is missing.

use super::support::{Counter, Gate, block_on, until};
use super::values::graph;
use super::{Entry, entries};
use futensor::cuda::CudaOptions;
use futensor::{Device, TensorFuture};
use futensor_simulated_driver::Simulator;
use std::time::Duration;

pub fn all() -> Vec<Entry> {
    let mut list = entries![6, false; leaving_out_any_one_wait_is_reported].to_vec();
    list.extend(entries![1, false;
        a_wait_that_is_left_out_is_reported_where_the_driver_gives_memory_out_again
            what_lanes_keep_goes_back_behind_those_who_use_it
            a_steady_state_grows_no_pool
            lanes_keep_no_more_than_they_may]);
    list
}

/// A device with three streams whose steps are all launched, however far they are from having run.
pub fn deep() -> Device {
    Device::cuda_with(0, CudaOptions::default().streams(3).depth(1000).in_flight_ops(1000)).unwrap()
}

/// Plays a scene in which nothing depends on how fast anybody is: its ops are asked for while the
/// device's thread stands still, and nothing runs until all of them, and one that joins them, have
/// been launched. All that they make is read then. Two that begin on streams of their own are
/// joined as well, so that one stream waits for another at least.
pub fn launched_at_once(
    simulator: &Simulator,
    device: &Device,
    ask: impl FnOnce() -> Vec<TensorFuture>,
) {
    let [x, y] = [1.0, 2.0].map(|v| device.from_vec(vec![v; 64], [64]));
    simulator.pause();
    let (gate, joined) = (Gate::new(), Counter::new());
    let _first = gate.op(&device.ones([1]));
    gate.wait_entered(1);
    let begun = x.cumsum(0).sum_all() + y.cumsum(0).sum_all();
    let values = ask();
    let sum = values.iter().fold(begun, |sum, x| sum + x);
    let _last = joined.op(&sum);
    gate.open();
    until(|| joined.runs() == 1);
    simulator.resume();
    for x in &values {
        let _ = block_on(x.to_vec::<f32>());
    }
}

/// A graph on three streams; how often one of them waited for another, and whether the device is
/// lost (a missing wait may make a kernel read what is freed).
fn tangle(simulator: &Simulator, seed: u64, drop_wait: u64) -> (u64, bool) {
    let device = deep();
    simulator.drop_wait(drop_wait);
    launched_at_once(simulator, &device, || graph(&device, seed, 100));
    (simulator.stats().waits, block_on(device.ones([1]) + 1.0).is_err())
}

fn leaving_out_any_one_wait_is_reported(simulator: &Simulator, seed: u64) {
    every_wait_is_needed(simulator, seed, u64::MAX, |n| tangle(simulator, seed, n));
}

/// The same in memory that the driver has taken back from one stream and gives out on another.
fn tangle_again(simulator: &Simulator, seed: u64, drop_wait: u64) -> (u64, bool) {
    let options = CudaOptions::default().streams(3).depth(1000).in_flight_ops(1000).kept_bytes(0);
    let device = Device::cuda_with(0, options).unwrap();
    simulator.reuse(true);
    for x in graph(&device, seed + 1, 60) {
        let _ = block_on(x.to_vec::<f32>());
    }
    until(|| simulator.stats().frees > 40 && simulator.pending() == 0);
    let before = simulator.stats();
    simulator.drop_wait(drop_wait);
    launched_at_once(simulator, &device, || graph(&device, seed, 60));
    let after = simulator.stats();
    assert!(after.reused > before.reused + 10, "{} of it", after.reused - before.reused);
    (after.waits - before.waits, block_on(device.ones([1]) + 1.0).is_err())
}

fn a_wait_that_is_left_out_is_reported_where_the_driver_gives_memory_out_again(
    simulator: &Simulator,
    seed: u64,
) {
    // A scene takes a second: the first waits in every run, more where seeds are asked for.
    let most = if std::env::var_os("FUTENSOR_SEEDS").is_some() { 12 } else { 4 };
    every_wait_is_needed(simulator, seed, most, |n| tangle_again(simulator, seed, n));
}

/// Plays a scene as it is, where it has to be silent, and once without each of its first waits,
/// where the race check has to report it. The scene leaves out the wait of a number (0: none), and
/// tells how many it had and whether the device is lost.
pub fn every_wait_is_needed(
    simulator: &Simulator,
    seed: u64,
    most: u64,
    scene: impl Fn(u64) -> (u64, bool),
) {
    let (waits, lost) = scene(0);
    assert_eq!((simulator.report(), lost), (String::new(), false));
    assert!(waits > 0, "a scene without a wait");
    super::settle(simulator);
    let mut dropped = 0;
    for n in 1..=waits.min(most) {
        // Which stream takes what depends on timing: a run may have fewer waits, and one may be for
        // what the host has come to know just then.
        let silent = (0..3).all(|_| {
            simulator.reset(seed, 2);
            let (waits, lost) = scene(n);
            if !lost {
                super::settle(simulator);
            }
            let found = simulator.count("race") + simulator.count("use after free");
            dropped += (found > 0) as u32;
            waits >= n && found == 0
        });
        assert!(!silent, "wait {n} of {waits} was left out, and nothing was reported");
    }
    simulator.reset(seed, 2);
    assert!(dropped > 0, "no wait was left out");
}

/// Memory is given back while all that uses it is queued, on every lane, and none of it has run:
/// the race check sees a free that is not behind it.
fn what_lanes_keep_goes_back_behind_those_who_use_it(simulator: &Simulator, _: u64) {
    let device = deep();
    let inputs: Vec<TensorFuture> =
        (0..6).map(|k| device.from_vec(vec![k as f32; 256], [16, 16])).collect();
    let chain = |x: &TensorFuture| (0..4).fold(x + 1.0, |y, k| y.cumsum(k % 2).sort(1, false));
    // Their kernels are there before it counts.
    inputs.iter().for_each(|x| drop(block_on(chain(x)).unwrap()));
    block_on(device.waitall()).unwrap();
    device.trim();
    simulator.pause();
    let joined = Counter::new();
    let ends: Vec<TensorFuture> = inputs.iter().map(chain).collect();
    // Nothing joins them: no lane is behind another.
    let last: Vec<TensorFuture> = ends.iter().map(|end| joined.op(end)).collect();
    until(|| joined.runs() == ends.len());
    let before = simulator.stats().frees;
    device.trim();
    until(|| simulator.stats().frees > before);
    simulator.resume();
    last.iter().for_each(|end| drop(block_on(end).unwrap()));
}

/// What a round has freed is enough for the next one, though the host waits in between.
fn a_steady_state_grows_no_pool(simulator: &Simulator, _: u64) {
    // Each value is asked of the driver, and a reaper waits for each event.
    let options = CudaOptions::default().streams(1).kept_bytes(0).spin(Duration::ZERO);
    let device = Device::cuda_with(0, options).unwrap();
    let x = device.arange(0.0, 500_000.0, 1.0).reshape([500, 1000]) + 0.5;
    let x: TensorFuture = block_on(x).unwrap().into();
    let round = || {
        let y = (0..6).fold(&x + 1.0, |y, _| y.t().reshape([500, 1000]) * 0.5);
        block_on(y.sum_all().item::<f32>()).unwrap();
        block_on(device.waitall()).unwrap();
        until(|| simulator.pending() == 0);
    };
    // Once beside others, so that it is a matter of no chance how much there is at once.
    let others = [2.0, 3.0, 4.0].map(|k| block_on(&x + k).unwrap());
    round();
    drop(others);
    round();
    let before = simulator.stats();
    (0..5).for_each(|_| round());
    let after = simulator.stats();
    assert!(after.allocations > before.allocations + 30, "the pool is asked for nothing");
    assert_eq!(after.growths, before.growths, "of {}", after.allocations - before.allocations);
    assert!(before.growths > 0);
}

fn lanes_keep_no_more_than_they_may(simulator: &Simulator, _: u64) {
    const MOST: usize = 1 << 20;
    let device = Device::cuda_with(0, CudaOptions::default().kept_bytes(MOST)).unwrap();
    for k in 1..40 {
        // Of many sizes, so that none is of use to the next.
        block_on(device.arange(0.0, (k * 10_000) as f32, 1.0) + 1.0).unwrap();
    }
    block_on(device.waitall()).unwrap();
    until(|| simulator.stats().live_bytes as usize <= MOST + MOST / 2);
}
