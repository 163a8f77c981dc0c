//! Regions that run again are one graph: the values of their ops, in order with everything else,
//! and nothing left.

use super::support::{Counter, Rng, block_on, until};
use super::{Entry, device, entries, two_devices};
use futensor::cuda::CudaOptions;
use futensor::{Device, TensorFuture};
use futensor_simulated_driver::{ILLEGAL_ADDRESS, LAUNCH_OUT_OF_RESOURCES, Simulator};
use futures::FutureExt;
use std::time::Duration;

pub fn all() -> Vec<Entry> {
    let mut list = entries![1, false;
        a_region_that_runs_again_is_launched_as_one_graph
        inputs_and_outputs_are_bound_anew
        a_strided_or_constant_input_gets_a_graph_of_its_own
        draws_of_a_graph_advance
        an_index_out_of_range_fails_its_call_alone
        an_input_that_nobody_else_holds_is_written_over_by_a_graph
        an_output_that_is_dropped_is_not_computed_by_a_graph
        products_of_inputs_and_of_weights_are_part_of_a_graph
        an_op_from_outside_keeps_its_region_from_being_a_graph
        a_region_with_graphs_switched_off_has_none
        the_memory_of_a_graph_goes_with_its_region
        trim_gives_graphs_and_kernels_back
        memory_that_is_short_makes_graphs_go]
    .to_vec();
    list.extend(entries![12, false;
        any_region_gives_what_its_ops_give
        calls_of_one_region_that_overlap_do_not_meet
        an_urgent_call_overtakes_what_is_queued
        steps_that_run_again_ask_for_no_memory
        memory_that_is_short_once_fails_no_replay
        a_graph_that_is_refused_is_launched_in_parts
        two_devices_replay_beside_each_other]);
    list.extend(entries![3, false; leaving_out_any_one_wait_between_replays_is_reported]);
    list.extend(entries![12, true; a_fault_in_a_replay_fails_all_its_values_and_that_device_alone]);
    list
}

fn values(x: &TensorFuture) -> Vec<f32> {
    block_on(x.to_vec::<f32>()).unwrap()
}

fn bits(x: &TensorFuture) -> Vec<u32> {
    values(x).into_iter().map(f32::to_bits).collect()
}

fn read<'a>(all: impl IntoIterator<Item = &'a TensorFuture>) {
    all.into_iter().for_each(|x| drop(values(x)));
}

/// Calls until a call is a graph: fused kernels have to be compiled first.
fn warm(device: &Device, mut call: impl FnMut()) {
    let before = device.stats().graphs;
    while device.stats().graphs == before {
        call();
        block_on(device.waitall()).unwrap();
    }
}

/// A value that is there once somebody sends its elements.
fn later(device: &Device, n: usize) -> (futures::channel::oneshot::Sender<Vec<f32>>, TensorFuture) {
    let (sender, receiver) = futures::channel::oneshot::channel();
    let nobody = |_| futensor::Error::custom("test", "nobody sent");
    (sender, device.from_future([n], async move { receiver.await.map_err(nobody) }))
}

fn ramp(device: &Device, n: usize, from: f64) -> TensorFuture {
    device.arange(from, from + (n * n) as f64, 1.0).reshape([n, n]) / 100.0
}

/// A few ops of every kind of step.
fn body(x: &TensorFuture, y: &TensorFuture) -> [TensorFuture; 3] {
    let a = (x * 0.5 + y).tanh();
    let b = a.t().softmax(0) + x;
    let c = (b.cumsum(1) * 0.01).relu();
    let sum = (&c * &a).sum([1]);
    let d = futensor::cat(&[&c.narrow(0, 0, 2), &a], 0);
    [d - 1.0, sum, b]
}

fn a_region_that_runs_again_is_launched_as_one_graph(simulator: &Simulator, _: u64) {
    // Each value is asked of the driver.
    let device = Device::cuda_with(0, CudaOptions::default().kept_bytes(0)).unwrap();
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| body(&x, &y));
    let (x, y) = (ramp(&device, 24, 1.0) * 1.0, ramp(&device, 24, -9.0) * 1.0);
    let want: Vec<_> = body(&x, &y).iter().map(bits).collect();
    warm(&device, || read(&region.call((x.clone(), y.clone()))));
    block_on(device.waitall()).unwrap();
    for _ in 0..3 {
        let before = simulator.stats();
        let out = region.call((x.clone(), y.clone()));
        for out in &out {
            block_on(out).unwrap();
        }
        let after = simulator.stats();
        assert_eq!(after.graph_launches - before.graph_launches, 1);
        // Its outputs, and nothing else.
        assert_eq!(after.allocations - before.allocations, 3);
        assert!(after.launches - before.launches >= 4, "{}", after.launches - before.launches);
        let got: Vec<_> = out.iter().map(bits).collect();
        assert_eq!(got, want);
    }
}

fn inputs_and_outputs_are_bound_anew(_: &Simulator, _: u64) {
    let device = device(0);
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| body(&x, &y));
    let input = |k: usize| ramp(&device, 16, k as f64) + 0.0;
    warm(&device, || read(&region.call((input(0), input(1)))));
    let graphs = device.stats().graphs;
    // All are alive at once, so every address is another.
    let inputs: Vec<_> = (0..12).map(|k| (input(k), input(50 + k * k))).collect();
    let outs: Vec<_> = inputs.iter().map(|(x, y)| region.call((x.clone(), y.clone()))).collect();
    for ((x, y), out) in inputs.iter().zip(&outs) {
        let want: Vec<_> = body(x, y).iter().map(bits).collect();
        assert_eq!(out.iter().map(bits).collect::<Vec<_>>(), want);
    }
    // One value as both.
    let x = input(3);
    let out = region.call((x.clone(), x.clone()));
    assert_eq!(
        out.iter().map(bits).collect::<Vec<_>>(),
        body(&x, &x).iter().map(bits).collect::<Vec<_>>()
    );
    assert!(device.stats().graphs >= graphs + 13, "{} {graphs}", device.stats().graphs);
}

fn a_strided_or_constant_input_gets_a_graph_of_its_own(_: &Simulator, _: u64) {
    let device = device(0);
    let x = ramp(&device, 16, 0.0) + 0.0;
    graphs_of_their_own(
        &device,
        [
            (x.clone(), &x + 1.0),
            (x.t(), &x + 1.0),
            (x.clone(), device.full([16, 16], 2.0)),
            (device.from_vec(vec![0.5f32; 256], [16, 16]), x.clone()),
        ],
    );
    // Strides alone are other ones, or the number.
    let wide = ramp(&device, 32, 1.0) + 0.0;
    graphs_of_their_own(
        &device,
        [
            (x.t(), &x + 1.0),
            (wide.narrow(0, 0, 16).narrow(1, 0, 16), &x + 1.0),
            (x.clone(), device.full([16, 16], 2.0)),
            (x.clone(), device.full([16, 16], 3.0)),
        ],
    );
}

fn graphs_of_their_own(device: &Device, variants: [(TensorFuture, TensorFuture); 4]) {
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| body(&x, &y));
    let want: Vec<Vec<_>> =
        variants.iter().map(|(x, y)| body(x, y).iter().map(bits).collect()).collect();
    for (k, (x, y)) in variants.iter().enumerate() {
        warm(device, || {
            let got: Vec<_> = region.call((x.clone(), y.clone())).iter().map(bits).collect();
            assert_eq!(got, want[k]);
        });
    }
    let before = device.stats().graphs;
    for _ in 0..2 {
        for (k, (x, y)) in variants.iter().enumerate() {
            let got: Vec<_> = region.call((x.clone(), y.clone())).iter().map(bits).collect();
            assert_eq!(got, want[k]);
        }
    }
    assert_eq!(device.stats().graphs - before, 8);
    assert_eq!(region.traces(), 1);
}

fn draws_of_a_graph_advance(_: &Simulator, _: u64) {
    let (gpu, cpu) = (device(0), Device::cpu_with(Default::default()));
    let made = |device: &Device, x: &TensorFuture| {
        let noise = device.rand([40, 50]);
        let kept = (x + &noise) * 2.0;
        (kept.sum([0]) * 0.0 + kept.narrow(0, 3, 1).reshape([50]), device.rand([7]))
    };
    let inside = gpu.clone();
    let region = gpu.region(move |x: TensorFuture| made(&inside, &x));
    let x =
        |device: &Device| device.from_vec((0..2000).map(|i| i as f32).collect(), [40, 50]) + 0.0;
    let (here, there) = (x(&gpu), x(&cpu));
    gpu.seed(11);
    cpu.seed(11);
    let before = gpu.stats().graphs;
    let mut last = Vec::new();
    let mut rounds = 0;
    while gpu.stats().graphs < before + 5 {
        let (a, b) = region.call(here.clone());
        let (c, d) = made(&cpu, &there);
        assert_eq!((values(&a), values(&b)), (values(&c), values(&d)), "round {rounds}");
        assert_ne!(last, values(&b));
        last = values(&b);
        rounds += 1;
    }
}

fn an_index_out_of_range_fails_its_call_alone(_: &Simulator, _: u64) {
    let device = device(0);
    let table = device.arange(0.0, 60.0, 1.0).reshape([20, 3]) + 0.0;
    let region = device.region(|(ids, x): (TensorFuture, TensorFuture)| {
        let rows = (table.index_select(0, ids) * 2.0).cumsum(0);
        (rows + 1.0, (x * 3.0).softmax(0))
    });
    let ids = |k: i64| device.from_vec(vec![k, 1, 19], [3]) * 1;
    let x = device.arange(0.0, 9.0, 1.0) + 0.0;
    warm(&device, || {
        let (rows, other) = region.call((ids(2), x.clone()));
        read([&rows, &other]);
    });
    let before = device.stats().graphs;
    let calls: Vec<_> = [4, 20, 5, -21, 6].map(|k| (k, region.call((ids(k), x.clone())))).into();
    for (k, (rows, other)) in &calls {
        assert!((values(other).iter().sum::<f32>() - 1.0).abs() < 1e-5);
        if (-20..20).contains(k) {
            assert_eq!(values(rows)[0], 6.0 * *k as f32 + 1.0);
        } else {
            let error = block_on(rows.to_vec::<f32>()).unwrap_err();
            assert!(error.is_index() && error.message().contains(&k.to_string()), "{error}");
        }
    }
    assert_eq!(device.stats().graphs - before, 5);
    // What was doubted before the call fails as well, and only what is made from it.
    let bad = table.index_select(0, ids(77)).narrow(1, 0, 1).reshape([3]);
    let (rows, other) = region.call((ids(1), futensor::cat(&[&bad, &x.narrow(0, 3, 6)], 0)));
    assert!(block_on(other).unwrap_err().is_index());
    assert_eq!(values(&rows)[0], 7.0);
}

fn an_input_that_nobody_else_holds_is_written_over_by_a_graph(simulator: &Simulator, _: u64) {
    // Each value is asked of the driver.
    let device = Device::cuda_with(0, CudaOptions::default().kept_bytes(0)).unwrap();
    let step = device.region(|(cache, x): (TensorFuture, TensorFuture)| {
        let x = (x.tanh() + 1.0).cumsum(0);
        (cache.slice_assign(3..4, x.reshape([1, 64])), x.sum_all())
    });
    let x = device.arange(0.0, 64.0, 1.0) + 0.0;
    let mut cache = device.zeros([64, 64]) + 0.5;
    // The call begins when `x` is there: then the caller has long let go of the cache.
    let mut once = || {
        // The engine's task table has the call before as a reader until it lets go of it, a moment
        // after its values are known.
        until(|| device.stats().queued == 0);
        let (sender, late) = later(&device, 64);
        let (next, sum) = step.call((std::mem::replace(&mut cache, device.zeros([1])), late));
        sender.send((0..64).map(|i| i as f32).collect()).unwrap();
        block_on(sum).unwrap();
        cache = next;
    };
    warm(&device, &mut once);
    let (graphs, allocations) = (device.stats().graphs, simulator.stats().allocations);
    (0..10).for_each(|_| once());
    assert_eq!(device.stats().graphs - graphs, 10);
    // The sum is new each time, and what came from the host; the cache stays where it is.
    assert_eq!(simulator.stats().allocations - allocations, 20);
    let held = cache.clone();
    let (next, _sum) = step.call((cache, &x * 2.0));
    let (old, new) = (values(&held), values(&next));
    assert_eq!((old[0], new[0]), (0.5, 0.5));
    assert!(old[3 * 64 + 9] != new[3 * 64 + 9] && old[..192] == new[..192]);
    // As in the graph's own calls, but that somebody else holds the cache.
    until(|| device.stats().queued == 0);
    let (sender, late) = later(&device, 64);
    let (after, _sum) = step.call((next.clone(), late));
    sender.send((64..128).map(|i| i as f32).collect()).unwrap();
    block_on(&after).unwrap();
    assert_eq!(values(&next), new);
}

fn an_output_that_is_dropped_is_not_computed_by_a_graph(simulator: &Simulator, _: u64) {
    let device = device(0);
    let block = |x: TensorFuture| {
        let y = (&x * 2.0).cumsum(0);
        let long = (0..5).fold(y.clone(), |y, _| (y * 0.5).cumsum(0));
        ((y + 1.0).softmax(0), long)
    };
    let region = device.region(block);
    let x = device.arange(0.0, 500.0, 1.0) + 0.0;
    let (short, long) = region.call(x.clone());
    let want = (bits(&short), bits(&long));
    warm(&device, || {
        let (short, long) = region.call(x.clone());
        read([&short, &long]);
    });
    // An input that is not there yet: the drop comes before the call begins.
    let mut launches = [0; 2];
    for both in [true, false] {
        let mut graphs = 0;
        while graphs < 2 {
            let (sender, late) = later(&device, 500);
            let (short, long) = region.call(late * 1.0);
            let long = both.then_some(long);
            let before = (simulator.stats().launches, device.stats().graphs);
            sender.send((0..500).map(|i| i as f32).collect()).unwrap();
            assert_eq!(bits(&short), want.0);
            if let Some(long) = long {
                assert_eq!(bits(&long), want.1);
            }
            launches[both as usize] = simulator.stats().launches - before.0;
            graphs += device.stats().graphs - before.1;
        }
    }
    assert!(launches[0] < launches[1], "{launches:?}");
    // A graph that was made for the first alone does not serve for both.
    let region = device.region(block);
    let call = |both: bool| {
        let (sender, late) = later(&device, 500);
        let (short, long) = region.call(late * 1.0);
        let long = both.then_some(long);
        sender.send((0..500).map(|i| i as f32).collect()).unwrap();
        assert_eq!(bits(&short), want.0);
        long.iter().for_each(|long| assert_eq!(bits(long), want.1));
    };
    warm(&device, || call(false));
    (0..3).for_each(|_| call(true));
}

fn products_of_inputs_and_of_weights_are_part_of_a_graph(simulator: &Simulator, _: u64) {
    let device = device(0);
    let (w, v) = (ramp(&device, 32, 3.0).t() + 0.0, ramp(&device, 32, 7.0) + 0.0);
    let made = |x: &TensorFuture, m: &TensorFuture| {
        let hidden = (x.matmul(&w) * 0.001).tanh();
        // A product that is an output, one of a transposed input, and one that is read on.
        let out = hidden.matmul(&v);
        let turned = x.matmul(m.t());
        (out, turned.clone(), (turned + 1.0).sum([0]))
    };
    let region = device.region(|(x, m): (TensorFuture, TensorFuture)| made(&x, &m));
    let input = |k: usize| ramp(&device, 32, k as f64) + 0.0;
    warm(&device, || {
        let (a, b, c) = region.call((input(0), input(9)));
        read([&a, &b, &c]);
    });
    let before = (device.stats().graphs, simulator.stats().graph_launches);
    let calls: Vec<_> = (1..6).map(|k| (k, region.call((input(k), input(3 * k))))).collect();
    for (k, (out, turned, sums)) in &calls {
        let want = made(&input(*k), &input(3 * k));
        assert_eq!(
            (bits(out), bits(turned), bits(sums)),
            (bits(&want.0), bits(&want.1), bits(&want.2))
        );
    }
    assert_eq!(device.stats().graphs - before.0, 5);
    assert_eq!(simulator.stats().graph_launches - before.1, 5);
}

fn an_op_from_outside_keeps_its_region_from_being_a_graph(_: &Simulator, _: u64) {
    let device = device(0);
    let counter = Counter::new();
    let region = device.region(|x: TensorFuture| counter.op(&(x * 2.0).cumsum(0)) + 1.0);
    let x = device.ones([4]) + 0.0;
    let want = values(&((&x * 2.0).cumsum(0) + 1.0));
    assert_eq!(values(&region.call(x.clone())), want);
    let asked = counter.runs();
    for _ in 0..12 {
        assert_eq!(values(&region.call(x.clone())), want);
    }
    // It was asked once a call, now that its kernel is there.
    assert_eq!((device.stats().graphs, counter.runs() - asked), (0, 12));
}

fn a_region_with_graphs_switched_off_has_none(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().graphs(false)).unwrap();
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| body(&x, &y));
    let x = ramp(&device, 8, 0.0) + 0.0;
    let want: Vec<_> = body(&x, &x).iter().map(bits).collect();
    for _ in 0..6 {
        assert_eq!(region.call((x.clone(), x.clone())).iter().map(bits).collect::<Vec<_>>(), want);
    }
    assert_eq!((device.stats().graphs, simulator.stats().graph_launches), (0, 0));
}

/// A region with some 200 KiB of temporaries, warm; and how much is alive without its graph.
fn heavy(device: &Device) -> (impl Fn() -> TensorFuture + use<>, usize) {
    let x = device.arange(0.0, 10_000.0, 1.0) + 0.0;
    block_on(&x).unwrap();
    let live = device.stats().bytes_live;
    let region = device.region(|x: TensorFuture| {
        let y = (&x * 0.001).cumsum(0);
        (x.softmax(0).cumsum(0) + y.flip([0])).narrow(0, 70, 5) * 2.0
    });
    (move || region.call(x.clone()), live)
}

fn the_memory_of_a_graph_goes_with_its_region(simulator: &Simulator, _: u64) {
    let device = device(0);
    let (call, live) = heavy(&device);
    let want = values(&call());
    warm(&device, || assert_eq!(values(&call()), want));
    assert!(device.stats().bytes_live > live + 70_000, "{} {live}", device.stats().bytes_live);
    assert!(simulator.stats().live_graphs > 0);
    // Its last call is still under way.
    let last = call();
    drop(call);
    assert_eq!(values(&last), want);
    drop(last);
    super::support::until(|| simulator.stats().live_graphs == 0);
    super::support::until(|| device.stats().bytes_live < live);
}

fn trim_gives_graphs_and_kernels_back(simulator: &Simulator, _: u64) {
    let device = device(0);
    let (call, live) = heavy(&device);
    let want = values(&call());
    warm(&device, || assert_eq!(values(&call()), want));
    device.trim();
    super::support::until(|| simulator.stats().live_graphs == 0);
    super::support::until(|| device.stats().bytes_live <= live);
    assert!(simulator.stats().live_modules > 0, "kernels that were used since stay");
    device.trim();
    super::support::until(|| simulator.stats().live_modules == 0);
    // All of it comes back.
    warm(&device, || assert_eq!(values(&call()), want));
    assert!(simulator.stats().live_modules > 0 && simulator.stats().live_graphs > 0);
}

fn memory_that_is_short_makes_graphs_go(simulator: &Simulator, _: u64) {
    simulator.set_memory(0, 4 << 20);
    let device = device(0);
    let (call, _) = heavy(&device);
    let want = values(&call());
    warm(&device, || assert_eq!(values(&call()), want));
    // Room for this one only without the graph's memory.
    let large = device.arange(0.0, 1_020_000.0, 1.0);
    assert_eq!(block_on(large.narrow(0, 7, 1).to_vec::<f32>()).unwrap(), [7.0]);
    assert_eq!(simulator.stats().live_graphs, 0);
    drop(large);
    warm(&device, || assert_eq!(values(&call()), want));
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
