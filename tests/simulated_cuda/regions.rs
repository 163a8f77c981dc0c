//! Regions that run again are one graph: the values of their ops, in order with everything else,
//! and nothing left.

use super::support::{Counter, block_on, until};
use super::{Entry, device, entries};
use futensor::cuda::CudaOptions;
use futensor::{Device, TensorFuture};
use futensor_simulated_driver::Simulator;

pub fn all() -> Vec<Entry> {
    entries![1, false;
        a_region_that_runs_again_is_launched_as_one_graph
        inputs_and_outputs_are_bound_anew
        a_strided_or_constant_input_gets_a_graph_of_its_own
        draws_of_a_graph_advance
        an_index_out_of_range_fails_its_call_alone
        an_input_that_nobody_else_holds_is_written_over_by_a_graph
        an_output_that_is_dropped_is_not_computed_by_a_graph
        products_of_inputs_and_of_weights_are_part_of_a_graph
        what_moves_between_replays_changes_few_nodes
        a_product_at_the_edge_of_a_region_is_captured_once
        an_op_from_outside_keeps_its_region_from_being_a_graph
        a_region_with_graphs_switched_off_has_none
        the_memory_of_a_graph_goes_with_its_region
        trim_gives_graphs_and_kernels_back
        memory_that_is_short_makes_graphs_go]
    .to_vec()
}

pub fn values(x: &TensorFuture) -> Vec<f32> {
    block_on(x.to_vec::<f32>()).unwrap()
}

pub fn bits(x: &TensorFuture) -> Vec<u32> {
    values(x).into_iter().map(f32::to_bits).collect()
}

pub fn read<'a>(all: impl IntoIterator<Item = &'a TensorFuture>) {
    all.into_iter().for_each(|x| drop(values(x)));
}

/// Calls until a call is a graph: fused kernels have to be compiled first.
pub fn warm(device: &Device, mut call: impl FnMut()) {
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

pub fn ramp(device: &Device, n: usize, from: f64) -> TensorFuture {
    device.arange(from, from + (n * n) as f64, 1.0).reshape([n, n]) / 100.0
}

/// A few ops of every kind of step.
pub fn body(x: &TensorFuture, y: &TensorFuture) -> [TensorFuture; 3] {
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

fn what_moves_between_replays_changes_few_nodes(simulator: &Simulator, _: u64) {
    let device = device(0);
    // Each step writes over what the one before made, up to the output.
    let made = |x: &TensorFuture, row: &TensorFuture| {
        let step = |x: TensorFuture, k: usize| (x * 0.5 + 1.0).slice_assign(k..k + 1, row.clone());
        (0..8).fold(x * 2.0, step)
    };
    let region = device.region(|(x, row): (TensorFuture, TensorFuture)| made(&x, &row));
    let row = device.arange(0.0, 16.0, 1.0).reshape([1, 16]) + 0.0;
    let input = |k: usize| ramp(&device, 16, k as f64) + 0.0;
    warm(&device, || drop(values(&region.call((input(0), row.clone())))));
    let mut held = Vec::new();
    for k in 0..6 {
        let x = input(k);
        block_on(&x).unwrap();
        let before = simulator.stats();
        let out = region.call((x.clone(), row.clone()));
        assert_eq!(bits(&out), bits(&made(&x, &row)));
        let after = simulator.stats();
        assert_eq!(after.graph_launches - before.graph_launches, 1);
        // The first reader of the input, and the last two writers of the output.
        assert!(after.node_updates - before.node_updates <= 3, "{before:?} {after:?}");
        held.push((x, out));
    }
    // An input that may be written over is the output's memory, and nothing else's.
    let other = device.region(|x: TensorFuture| made(&x, &row));
    let once = |k: usize| {
        until(|| device.stats().queued == 0);
        let (sender, late) = later(&device, 256);
        let out = other.call(late.reshape([16, 16]));
        sender.send((0..256).map(|i| (i + k) as f32 / 100.0).collect()).unwrap();
        bits(&out)
    };
    warm(&device, || drop(once(0)));
    for k in 1..4 {
        let same: Vec<f32> = (0..256).map(|i| (i + k) as f32 / 100.0).collect();
        assert_eq!(once(k), bits(&made(&device.from_vec(same, [16, 16]), &row)));
    }
}

fn a_product_at_the_edge_of_a_region_is_captured_once(simulator: &Simulator, _: u64) {
    let device = device(0);
    let w = ramp(&device, 32, 3.0).t() + 0.0;
    let made = |x: &TensorFuture| (x.matmul(&w), (x * 0.5).matmul(&w));
    let region = device.region(|x: TensorFuture| made(&x));
    let input = |k: usize| ramp(&device, 32, k as f64) + 0.0;
    let mut held = Vec::new();
    let mut once = |k: usize| {
        let x = input(k);
        let want = made(&x);
        let out = region.call(x.clone());
        assert_eq!((bits(&out.0), bits(&out.1)), (bits(&want.0), bits(&want.1)), "{k}");
        held.push((x, out));
    };
    warm(&device, || once(0));
    // What moves is known after two more.
    (1..3).for_each(&mut once);
    let before = (simulator.stats(), device.stats().graphs);
    (3..9).for_each(&mut once);
    let after = simulator.stats();
    assert_eq!(device.stats().graphs - before.1, 6);
    assert_eq!(after.captures - before.0.captures, 0);
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
