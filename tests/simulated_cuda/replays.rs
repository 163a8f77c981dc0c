//! Regions replayed beside each other and beside other work: any region, any order, memory that is
//! short once, faults, and each wait between them.

use super::regions::{bits, body, ramp, read, values, warm};
use super::support::{Rng, block_on, until};
use super::{Entry, device, entries, two_devices};
use futensor::cuda::CudaOptions;
use futensor::{Device, TensorFuture};
use futensor_simulated_driver::{ILLEGAL_ADDRESS, LAUNCH_OUT_OF_RESOURCES, Simulator};
use futures::FutureExt;
use std::time::Duration;

pub fn all() -> Vec<Entry> {
    let mut list = entries![12, false;
        any_region_gives_what_its_ops_give
        calls_of_one_region_that_overlap_do_not_meet
        an_urgent_call_overtakes_what_is_queued
        steps_that_run_again_ask_for_no_memory
        memory_that_is_short_once_fails_no_replay
        a_graph_that_is_refused_is_launched_in_parts
        two_devices_replay_beside_each_other]
    .to_vec();
    list.extend(entries![3, false; leaving_out_any_one_wait_between_replays_is_reported]);
    list.extend(entries![12, true; a_fault_in_a_replay_fails_all_its_values_and_that_device_alone]);
    list
}

/// Random ops on some values; what comes out last.
fn tangle(seed: u64, nodes: usize, from: &[TensorFuture]) -> Vec<TensorFuture> {
    let mut rng = Rng(seed);
    let mut values = from.to_vec();
    for _ in 0..nodes {
        let a = values[rng.below(values.len())].clone();
        let b = values[rng.below(values.len())].clone();
        let n = a.dims()[0];
        values.push(match rng.below(9) {
            0 => (a + b) * 0.5,
            1 => a.maximum(&b) - 1.0,
            2 => a.t() + b,
            3 => a.sum([0]) * 0.0625 + b,
            4 => b.slice_assign(3..9, a.narrow(0, 0, 6)),
            5 => futensor::cat(&[a.narrow(0, 1, n - 1), b.narrow(0, 0, 1)].each_ref(), 0),
            6 => a.matmul(&b) * 0.01,
            7 => a.cumsum(1) * 0.1,
            _ => a.minimum(&b).t(),
        });
    }
    let kept = values.len() - (1 + rng.below(4));
    values.split_off(kept.max(from.len()))
}

fn any_region_gives_what_its_ops_give(_: &Simulator, seed: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().streams(3)).unwrap();
    let region = device.region(move |x: Vec<TensorFuture>| tangle(seed, 14, &x));
    let inputs = |k: usize| -> Vec<TensorFuture> {
        (0..3).map(|i| ramp(&device, 16, (k * 3 + i) as f64) + 0.0).collect()
    };
    let first = inputs(0);
    warm(&device, || read(&region.call(first.clone())));
    let before = device.stats().graphs;
    let calls: Vec<_> = (1..8).map(|k| (inputs(k), k)).map(|(x, k)| (region.call(x), k)).collect();
    for (out, k) in &calls {
        let want = tangle(seed, 14, &inputs(*k));
        for (got, want) in out.iter().zip(&want) {
            assert_eq!(bits(got), bits(want), "call {k}");
        }
    }
    assert!(device.stats().graphs > before);
}

/// As a decode: a cache that changes in place, inputs from the host, and a result that is read
/// while the next step is queued.
fn steps_that_run_again_ask_for_no_memory(simulator: &Simulator, seed: u64) {
    let device = device(0);
    let step = device.region(|(cache, x): (TensorFuture, TensorFuture)| {
        let x = (x.tanh() + 1.0).cumsum(0);
        let cache = cache.slice_assign(3..4, x.reshape([1, 64]));
        let sums = cache.sum([1]);
        (cache, sums)
    });
    let mut cache = device.zeros([64, 64]) + 0.5;
    let mut reads = std::collections::VecDeque::new();
    let mut once = |k: u64| {
        let x = device.from_vec((0..64u64).map(|i| (i * k + seed) as f32).collect(), [64]);
        let (next, sums) = step.call((std::mem::replace(&mut cache, device.zeros([1])), x));
        cache = next;
        reads.push_back(sums.to_vec::<f32>());
        if reads.len() > 1 {
            block_on(reads.pop_front().expect("two")).unwrap();
        }
    };
    // The graph is made beside the calls, however many those are.
    let mut k = 0;
    while device.stats().graphs == 0 {
        once(k);
        k += 1;
    }
    // As many pieces as there may ever be under way at a time, and then no more.
    let (first, mut last) = (k, k);
    block_on(device.waitall()).unwrap();
    let mut before = (simulator.stats().allocations, device.stats());
    while k < last + 100 {
        once(k);
        k += 1;
        let count = || (simulator.stats().allocations, device.stats());
        let now = count();
        if (now.0, now.1.allocations) != (before.0, before.1.allocations) {
            // The last call may not be through, and be no graph.
            block_on(device.waitall()).unwrap();
            (before, last) = (count(), k);
        }
        assert!(k < first + 1000, "{before:?}");
    }
    let after = device.stats();
    assert!(before.1.allocations > 0);
    let graphs = after.graphs - before.1.graphs;
    assert!(graphs > 80, "{graphs} of 100 were graphs");
    // A graph copies nothing. Step by step, the sums of one call may not have been taken up when
    // the next writes.
    let copied = after.copied_bytes - before.1.copied_bytes;
    assert!(copied <= (100 - graphs) * 64 * 64 * 4, "{copied} bytes, {graphs} of 100 were graphs");
}

fn an_urgent_call_overtakes_what_is_queued(simulator: &Simulator, _: u64) {
    for graphs in [false, true] {
        let options =
            CudaOptions::default().streams(1).depth(1000).in_flight_ops(1000).graphs(graphs);
        let device = Device::cuda_with(0, options).unwrap();
        let x = ramp(&device, 16, 0.01) + 0.0;
        // No fused kernels, which come when they come.
        let more = |x: TensorFuture| x.softmax(0).cumsum(0);
        let region = device.region(|x: TensorFuture| x.cumsum(0).softmax(0).cumsum(1)).urgent(true);
        drop(values(&more(x.clone())));
        let wanted = values(&region.call(x.clone()));
        if graphs {
            warm(&device, || drop(values(&region.call(x.clone()))));
        }
        simulator.pause();
        let long = (0..100).fold(x.clone(), |x, _| more(x));
        until(|| device.stats().in_flight >= 200);
        let queued = simulator.pending();
        // What comes next is queued behind it, and taken up before.
        let mut urgent = region.call(x.clone()).to_vec::<f32>();
        until(|| simulator.pending() > queued);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(simulator.runnable(), 1, "the stream of the greatest priority alone");
        until(|| {
            // Slowly, so that what is to overtake is there.
            std::thread::sleep(Duration::from_millis(2));
            simulator.step(1);
            (&mut urgent)
                .now_or_never()
                .inspect(|found| assert!(found.as_ref().unwrap() == &wanted))
                .is_some()
        });
        assert!(!long.is_ready(), "graphs {graphs}");
        simulator.resume();
        block_on(device.waitall()).unwrap();
    }
}

fn calls_of_one_region_that_overlap_do_not_meet(_: &Simulator, seed: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().streams(4)).unwrap();
    let region = device.region(|x: TensorFuture| ((&x * 2.0).cumsum(0) + x.softmax(0)).cumsum(0));
    let x = device.arange(0.0, 300.0, 1.0) * 0.01;
    warm(&device, || drop(values(&region.call(x.clone()))));
    let mut rng = Rng(seed);
    // Chains on several streams, each with a replay in it; some are dropped.
    let mut calls = Vec::new();
    for k in 0..24 {
        let from = &x + k as f32;
        let out = region.call(from.clone());
        if rng.below(4) > 0 {
            calls.push((from, out * 3.0));
        }
    }
    for (from, out) in &calls {
        let plain = ((from * 2.0).cumsum(0) + from.softmax(0)).cumsum(0) * 3.0;
        assert_eq!(bits(out), bits(&plain));
    }
}

fn memory_that_is_short_once_fails_no_replay(simulator: &Simulator, seed: u64) {
    let device = device(0);
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| body(&x, &y));
    let x = ramp(&device, 16, 0.0) + 0.0;
    let want: Vec<_> = body(&x, &x).iter().map(bits).collect();
    if seed.is_multiple_of(2) {
        warm(&device, || read(&region.call((x.clone(), x.clone()))));
    }
    simulator.fail_allocation(1 + Rng(seed).next() % 30);
    let calls: Vec<_> = (0..12).map(|_| region.call((x.clone(), x.clone()))).collect();
    for out in &calls {
        assert_eq!(out.iter().map(bits).collect::<Vec<_>>(), want);
    }
}

fn a_graph_that_is_refused_is_launched_in_parts(simulator: &Simulator, seed: u64) {
    let device = device(0);
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| body(&x, &y));
    let x = ramp(&device, 16, 0.0) + 0.0;
    let want: Vec<_> = body(&x, &x).iter().map(bits).collect();
    warm(&device, || read(&region.call((x.clone(), x.clone()))));
    simulator.fail_launch(1 + seed % 4, LAUNCH_OUT_OF_RESOURCES);
    for _ in 0..3 {
        let out = region.call((x.clone(), x.clone()));
        assert_eq!(out.iter().map(bits).collect::<Vec<_>>(), want);
    }
}

fn two_devices_replay_beside_each_other(_: &Simulator, seed: u64) {
    let (a, b) = two_devices();
    let [on_a, on_b] = [&a, &b].map(|device| {
        let region = device.region(move |x: Vec<TensorFuture>| tangle(seed, 12, &x));
        let x: Vec<TensorFuture> = (0..3).map(|k| ramp(device, 16, k as f64) + 0.0).collect();
        warm(device, || read(&region.call(x.clone())));
        (region, x)
    });
    for _ in 0..4 {
        // What one gives goes into the other.
        let made = on_a.0.call(on_a.1.clone());
        let moved: Vec<TensorFuture> = on_b
            .1
            .iter()
            .enumerate()
            .map(|(k, x)| made[k % made.len()].to_device(&b) * 0.0 + x)
            .collect();
        let got = on_b.0.call(moved.clone());
        for (x, y) in got.iter().zip(&tangle(seed, 12, &moved)) {
            assert_eq!(bits(x), bits(y));
        }
    }
}

fn a_fault_in_a_replay_fails_all_its_values_and_that_device_alone(
    simulator: &Simulator,
    seed: u64,
) {
    let (a, b) = two_devices();
    let region = a.region(|(x, y): (TensorFuture, TensorFuture)| body(&x, &y));
    let x = ramp(&a, 16, 0.0) + 0.0;
    warm(&a, || read(&region.call((x.clone(), x.clone()))));
    simulator.fault_launch(1 + seed % 9, ILLEGAL_ADDRESS);
    let calls: Vec<_> = (0..4).map(|_| region.call((x.clone(), x.clone()))).collect();
    let mut lost = 0;
    for out in &calls {
        let failed: Vec<bool> = out
            .iter()
            .map(|out| match block_on(out.to_vec::<f32>()) {
                Ok(_) => false,
                Err(error) => {
                    assert!(error.is_device_lost(), "{error}");
                    true
                }
            })
            .collect();
        lost += failed.iter().any(|&f| f) as u32;
    }
    assert!(lost >= 1, "no replay met the fault");
    let _ = block_on(a.waitall());
    assert!(block_on(&region.call((x.clone(), x))[1]).unwrap_err().is_device_lost());
    for other in [&b, &Device::cpu()] {
        assert_eq!(
            block_on((other.ones([2]) + 1.0).to_vec::<f32>()).unwrap(),
            [2.0, 2.0],
            "{other}"
        );
    }
    simulator.clear_report();
}

/// Replays on several streams whose inputs come from other streams and whose outputs go there; how
/// often one stream waited for another since, and whether the device is lost.
fn crossing(simulator: &Simulator, seed: u64, drop_wait: u64) -> (u64, bool) {
    let device = super::order::deep();
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| {
        let sum = (&x + &y).cumsum(0);
        (sum.softmax(0) + &x, sum * 0.5)
    });
    let x = device.arange(0.0, 200.0, 1.0) * 0.01;
    warm(&device, || {
        let (p, q) = region.call((x.clone(), x.clone()));
        read([&p, &q]);
    });
    block_on(device.waitall()).unwrap();
    let before = simulator.stats().waits;
    simulator.drop_wait(drop_wait);
    let mut rng = Rng(seed);
    super::order::launched_at_once(simulator, &device, || {
        let mut made = vec![&x + 1.0, (&x * 2.0).cumsum(0), x.softmax(0)];
        for k in 0..20 {
            let (a, b) = (rng.below(made.len()), rng.below(made.len()));
            let (p, q) = region.call((made[a].clone(), made[b].clone()));
            made.push(if k % 2 == 0 { p } else { q.cumsum(0) * 0.1 });
            if rng.below(3) == 0 {
                drop(made.swap_remove(0));
            }
        }
        made
    });
    (simulator.stats().waits - before, block_on(device.ones([1]) + 1.0).is_err())
}

fn leaving_out_any_one_wait_between_replays_is_reported(simulator: &Simulator, seed: u64) {
    super::order::every_wait_is_needed(simulator, seed, 12, |n| crossing(simulator, seed, n));
}
