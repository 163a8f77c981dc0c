//! The calls of the driver, and their times: nothing that may wait while the device works, few
//! calls an op, memory that comes back, and an end that may come at any time.

use super::edges::{folder, played};
use super::support::{Deadline, block_on, until};
use super::{Entry, device, entries, two_devices};
use futensor::cuda::CudaOptions;
use futensor::{DType, Device, TensorFuture};
use futensor_simulated_driver::Simulator;
use std::path::Path;

pub fn all() -> Vec<Entry> {
    entries![1, false;
        while_a_kernel_is_compiled_other_values_come
        a_large_value_comes_in_pieces_wherever_it_goes
        many_large_values_come_at_once_through_little_page_locked_memory
        an_op_is_one_call_of_the_driver
        what_other_libraries_share_is_left_alone
        a_copy_between_gpus_that_brings_nothing_is_found_out
        a_pair_of_gpus_is_tried_once
        graphs_with_products_share_one_workspace_a_lane
        a_block_with_large_products_becomes_a_graph_and_its_operands_may_move
        a_warm_region_is_one_graph_from_its_first_call
        a_warm_device_has_its_handles_before_the_first_product
        a_device_that_is_lost_while_values_arrive_ends_every_await
        a_process_may_end_with_work_queued
        the_end_of_a_process_waits_for_the_kernel_that_is_being_compiled
        a_process_may_end_behind_the_first_product_of_a_sort
    ]
    .to_vec()
}

/// What a process does while its compiler is held: `x + i` comes, and then `exp`, once it goes on.
pub fn held(hold: &Path) -> String {
    let _deadline = Deadline::of("values beside a kernel that is being compiled");
    let device = device(0);
    let simulator = Simulator::attach().unwrap();
    // Large enough to be asked of the driver, and given back to it.
    let x = block_on(device.arange(0.0, (1 << 20) as f64, 1.0)).unwrap();
    block_on(&x + 1.0).unwrap();
    std::fs::write(hold, "").unwrap();
    let before = simulator.stats().allocations;
    let slow: Vec<TensorFuture> = (0..3).map(|_| x.exp()).collect();
    let quick: Vec<f32> =
        (0..40).map(|i| block_on((&x + i as f32).to_vec::<f32>()).unwrap()[i]).collect();
    assert!(quick.iter().enumerate().all(|(i, &v)| v == 2.0 * i as f32));
    assert!(slow.iter().all(|y| !y.is_ready()));
    // What needs the kernel is not tried again, with memory for its result each time, whenever
    // anything else has come.
    let tries = simulator.stats().allocations - before;
    assert!(
        tries <= 8,
        "{tries} allocations for 3 results, and for those of 40 others one after the other"
    );
    std::fs::remove_file(hold).unwrap();
    let same = slow.iter().all(|y| block_on(y.to_vec::<f32>()).unwrap()[1] == 1f32.exp());
    format!("{same} {}", simulator.report())
}

/// What a part prints under a compiler of its own, a shell script in `folder` that gets the name of
/// the real one. The part finds no kernel of an earlier run, and `path` in `FUTENSOR_TEST_HOLD`.
fn compiled_by(folder: &Path, script: impl Fn(&str) -> String, part: &str, path: &Path) -> String {
    let compiler = folder.join("compiler");
    let real = std::env::var("FUTENSOR_SIM_CXX").unwrap_or_else(|_| "g++".into());
    std::fs::write(&compiler, format!("#!/bin/sh\n{}\n", script(&real))).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o700)).unwrap();
    played(part, |c| {
        c.env("FUTENSOR_SIM_CXX", &compiler)
            .env("FUTENSOR_SIM_CACHE", folder.join("kernels"))
            .env("FUTENSOR_CACHE", "")
            .env("FUTENSOR_RELATIVES", "never")
            .env("FUTENSOR_TEST_HOLD", path)
    })
}

fn while_a_kernel_is_compiled_other_values_come(_: &Simulator, _: u64) {
    let folder = folder("held");
    let hold = folder.join("hold");
    let held = |real: &str| {
        format!("while [ -e {} ]; do sleep 0.01; done\nexec {real} \"$@\"", hold.display())
    };
    assert_eq!(compiled_by(&folder, held, "held", &hold), "true \n");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Ends the process as soon as a kernel is being compiled.
pub fn left(begun: &Path) {
    (device(0).ones([10]) + 1.0).detach();
    until(|| begun.exists());
}

fn the_end_of_a_process_waits_for_the_kernel_that_is_being_compiled(_: &Simulator, _: u64) {
    let folder = folder("left");
    let (begun, through) = (folder.join("begun"), folder.join("through"));
    let slow = |real: &str| {
        let (begun, through) = (begun.display(), through.display());
        let compile = format!("touch {begun}; sleep 3; {real} \"$@\" && touch {through}");
        format!("case \"$*\" in *-shared*) {compile};; *) exec {real} \"$@\";; esac")
    };
    assert_eq!(compiled_by(&folder, slow, "left", &begun), "");
    assert!(through.exists(), "the process ended inside the compiler");
    std::fs::remove_dir_all(&folder).unwrap();
}

fn a_large_value_comes_in_pieces_wherever_it_goes(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().pinned_bytes(0)).unwrap();
    let n = 1_500_001usize; // 6 MB: pieces, and a last one that is shorter.
    let x = block_on(device.arange(0.0, n as f64, 1.0) + 0.0).unwrap();
    let before = simulator.stats();
    let right = |v: Vec<f32>, at: &dyn Fn(usize) -> usize| {
        v.iter().enumerate().all(|(i, &v)| v == at(i) as f32)
    };
    assert!(right(block_on(x.to_vec::<f32>()).unwrap(), &|i| i));
    assert!(right(block_on(x.flip(0).to_vec::<f32>()).unwrap(), &|i| n - 1 - i));
    assert!(right(block_on(x.narrow(0, 3, 1_000_000).to_vec::<f32>()).unwrap(), &|i| i + 3));
    let turned = x.narrow(0, 0, 1_500_000).reshape([1000, 1500]).t();
    assert!(right(block_on(turned.to_vec::<f32>()).unwrap(), &|i| i % 1000 * 1500 + i / 1000));
    let on_host = x.to_device(&Device::cpu());
    assert!(right(block_on(on_host.to_vec::<f32>()).unwrap(), &|i| i));
    let places = block_on(x.ge(n as f64 - 3.0).nonzero()).unwrap();
    assert_eq!(places.dims(), [3, 1]);
    assert!(block_on(x.display()).unwrap().contains("1.5000e+06"));
    assert_eq!(
        simulator.stats().live_pinned,
        before.live_pinned,
        "page-locked memory is had at the start"
    );
    // Somebody who looks away is no reason to keep anything.
    drop((x.to_vec::<f32>(), x.flip(0).to_vec::<f32>()));
    block_on(device.waitall()).unwrap();
    drop((x, turned, on_host, places));
    until(|| device.stats().bytes_live == 0);
}

fn many_large_values_come_at_once_through_little_page_locked_memory(_: &Simulator, seed: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().pinned_bytes(0)).unwrap();
    let reads: Vec<_> = (0..12)
        .map(|k| {
            let x = device.from_vec(vec![k as f32; 700_000 + 1000 * k], [700_000 + 1000 * k]) * 2.0;
            (x.to_vec::<f32>(), (&x + seed as f64).to_vec::<f32>(), x.sum_all().item::<f32>())
        })
        .collect();
    for (k, (twice, more, sum)) in reads.into_iter().enumerate().rev() {
        let n = 700_000 + 1000 * k;
        assert_eq!(block_on(twice).unwrap(), vec![2.0 * k as f32; n]);
        assert_eq!(block_on(more).unwrap(), vec![2.0 * k as f32 + seed as f32; n]);
        assert_eq!(block_on(sum).unwrap(), (2 * k * n) as f32);
    }
}

fn an_op_is_one_call_of_the_driver(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().streams(1)).unwrap();
    let chain = || (0..50).fold(device.ones([1000]) + 0.0, |x, _| x.cumsum(0));
    (0..4).for_each(|_| drop(block_on(chain()).unwrap()));
    block_on(device.waitall()).unwrap();
    // Nothing is through before all is queued: how often the host looks is not counted.
    simulator.pause();
    let before = simulator.stats();
    let last = chain();
    until(|| simulator.stats().launches >= before.launches + 51);
    let after = simulator.stats();
    simulator.resume();
    block_on(last).unwrap();
    // Without events: they stand where a burst of the caller's ends, and who waits for them asks
    // and sleeps on another thread.
    let elsewhere =
        |s: &futensor_simulated_driver::Stats| s.queries + s.blocking_calls + s.records + s.events;
    let calls = (after.calls - elsewhere(&after)) - (before.calls - elsewhere(&before));
    // Two more an op, where each asks for memory and gives it back.
    assert!(calls <= 55, "{calls} calls for 51 launches");
    assert!(after.allocations <= before.allocations + 2);
}

fn what_other_libraries_share_is_left_alone(simulator: &Simulator, _: u64) {
    let device = device(0);
    let x = block_on(device.ones([100]) + 1.0).unwrap();
    assert_eq!(simulator.stats().live_pools, 1);
    drop((x, device));
    super::settle(simulator);
    assert_eq!(simulator.stats().live_pools, 0);
}

/// Some elements, on their way from one GPU to another and back.
fn there_and_back((a, b): &(Device, Device), k: f32) {
    let x = a.arange(0.0, 5000.0, 1.0) + k as f64;
    let y = x.to_device(b) * 2.0;
    let z = y.to_device(a) + 1.0;
    let got = block_on(z.to_vec::<f32>()).unwrap();
    assert!(got.iter().enumerate().all(|(i, &v)| v == (i as f32 + k) * 2.0 + 1.0), "{k}: {got:?}");
}

fn a_copy_between_gpus_that_brings_nothing_is_found_out(simulator: &Simulator, _: u64) {
    let devices = two_devices();
    simulator.silence_peers(true);
    (0..20).for_each(|k| there_and_back(&devices, k as f32));
    simulator.silence_peers(false);
}

fn a_pair_of_gpus_is_tried_once(simulator: &Simulator, _: u64) {
    let devices = two_devices();
    (0..50).for_each(|k| there_and_back(&devices, k as f32));
    // Each way.
    assert!(simulator.stats().accesses <= 2, "{} rights given", simulator.stats().accesses);
}

/// A block of two products, of operands that need so many bytes each.
fn products(
    device: &Device,
    n: usize,
) -> (impl Fn(&TensorFuture) -> TensorFuture + use<>, TensorFuture) {
    let w = block_on(device.randn([n, n]) * (1.0 / n as f64)).unwrap();
    let x = block_on(device.randn([n, n]) + 0.0).unwrap();
    let region = device.region(move |x: TensorFuture| (x.matmul(&w).relu() + 1.0).matmul(&w) * 0.5);
    (move |x: &TensorFuture| region.call(x.clone()), TensorFuture::clone(&x))
}

fn bits(x: &TensorFuture) -> Vec<u32> {
    block_on(x.to_vec::<f32>()).unwrap().into_iter().map(f32::to_bits).collect()
}

/// Calls until that is a graph.
fn warm(device: &Device, call: impl Fn() -> TensorFuture) {
    let before = device.stats().graphs;
    until(|| {
        block_on(call()).unwrap();
        device.stats().graphs > before
    });
}

fn graphs_with_products_share_one_workspace_a_lane(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().streams(1)).unwrap();
    let blocks: Vec<_> = (0..5).map(|k| products(&device, 16 + 8 * k)).collect();
    for (call, x) in &blocks {
        warm(&device, || call(x));
    }
    // The lane's own: 32 MiB, as NVIDIA recommends for this GPU. One each would be 160.
    let held = simulator.stats().live_bytes;
    assert!((32 << 20..40 << 20).contains(&held), "{held} bytes");
}

fn a_block_with_large_products_becomes_a_graph_and_its_operands_may_move(
    simulator: &Simulator,
    _: u64,
) {
    let device = device(0);
    let (call, x) = products(&device, 80);
    let want = bits(&call(&x));
    warm(&device, || call(&x));
    let (graphs, launches) = (device.stats().graphs, simulator.stats().graph_launches);
    // All are alive at once, so each lies elsewhere.
    let inputs: Vec<TensorFuture> = (0..6).map(|_| &x + 0.0).collect();
    let outputs: Vec<TensorFuture> = inputs.iter().map(&call).collect();
    assert!(outputs.iter().all(|y| bits(y) == want));
    assert_eq!(device.stats().graphs - graphs, 6);
    assert_eq!(simulator.stats().graph_launches - launches, 6);
}

fn a_warm_region_is_one_graph_from_its_first_call(simulator: &Simulator, _: u64) {
    for graphs in [true, false] {
        let device = Device::cuda_with(0, CudaOptions::default().graphs(graphs)).unwrap();
        let w = block_on(device.randn([24, 24])).unwrap();
        let region =
            device.region(move |x: TensorFuture| (x.matmul(&w).exp() * 0.5 + 1.0).softmax(1));
        let x = TensorFuture::clone(&block_on(device.randn([24, 24]) + 0.0).unwrap());
        block_on(region.warm(x.clone())).unwrap();
        // The same launches as ever after: no kernel is missing. One that `warm` asked for and then
        // did without may still come.
        let launches = || {
            let before = simulator.stats();
            block_on(region.call(x.clone())).unwrap();
            let after = simulator.stats();
            [after.graph_launches - before.graph_launches, after.launches - before.launches]
        };
        let first = launches();
        assert_eq!(first[0], graphs as u64);
        assert_eq!(launches(), first);
    }
}

fn a_warm_device_has_its_handles_before_the_first_product(simulator: &Simulator, _: u64) {
    let made = |options: CudaOptions| {
        let device = Device::cuda_with(0, options.streams(2)).unwrap();
        let x = block_on(device.ones([8, 8]) + 0.0).unwrap();
        (simulator.stats().live_handles, x, device)
    };
    assert_eq!(made(CudaOptions::default()).0, 0);
    let (_, x, device) = made(CudaOptions::default().warm(true).tf32(true));
    // Of the two streams, of the one for what is urgent, and for captures.
    until(|| simulator.stats().live_handles == 4);
    assert_eq!(block_on(x.matmul(&x).sum_all().item::<f32>()).unwrap(), 512.0);
    assert_eq!(simulator.stats().live_handles, 4);
    drop((x, device));
    until(|| simulator.stats().live_handles == 0);
}

/// A device is lost when some pieces of what is read have come. In a process of its own: what has
/// come is copied on, from memory that a machine made anew would take away.
pub fn lost() {
    let seed: u64 = std::env::var("FUTENSOR_TEST_SEED").unwrap().parse().unwrap();
    let _deadline = Deadline::of("reads of a device that is lost");
    let simulator = Simulator::attach().unwrap();
    let device = Device::cuda_with(0, CudaOptions::default().pinned_bytes(0)).unwrap();
    let x = block_on(device.arange(0.0, 2_500_000.0, 1.0) + 0.0).unwrap();
    simulator.pause();
    let reads: Vec<_> = (0..4).map(|k| (&x + k as f64).to_vec::<f32>()).collect();
    let (moved, shown) = (x.to_device(&Device::cpu()), x.display());
    simulator.step(4 + 3 * seed);
    simulator.lose_device(0, futensor_simulated_driver::ECC_UNCORRECTABLE);
    simulator.resume();
    for read in reads {
        assert!(block_on(read).unwrap_err().is_device_lost());
    }
    assert!(block_on(moved).unwrap_err().is_device_lost());
    assert!(block_on(shown).unwrap_err().is_device_lost());
}

fn a_device_that_is_lost_while_values_arrive_ends_every_await(_: &Simulator, _: u64) {
    for seed in 0..8 {
        assert_eq!(
            played("lost", |c| c.env("FUTENSOR_TEST_SEED", seed.to_string())),
            "",
            "seed {seed}"
        );
    }
}

/// Queues work of every kind and goes.
pub fn gone() {
    let seed: u64 = std::env::var("FUTENSOR_TEST_SEED").unwrap().parse().unwrap();
    let device = device(0);
    let other = Device::cuda_with(1, CudaOptions::default()).unwrap();
    let simulator = Simulator::attach().unwrap();
    let (call, x) = products(&device, 24);
    // One that closes as the process ends, after all libraries were in use.
    let closing = Device::cuda_with(0, CudaOptions::default()).unwrap();
    let image = closing.ones([1, 2, 8, 8]);
    block_on(image.conv2d(closing.ones([2, 2, 3, 3]), None, ())).unwrap();
    // Of the sort that is queued: the first of each may add a handler, and nothing is known of one
    // that comes as the process ends. (A small product of ones, one element that repeats, is a
    // kernel of ours.)
    let matrix = closing.randn([24, 24]);
    block_on(matrix.matmul(&matrix)).unwrap();
    if seed.is_multiple_of(3) {
        simulator.pause();
    }
    for k in 0..seed * 7 % 40 {
        let y = call(&(&x + k as f64)).cumsum(0);
        y.detach();
        y.to_device(&other).exp().detach();
        drop(y.to_vec::<f32>());
        std::mem::forget((device.randn([700, 700]) + k as f64).to_vec::<f32>());
    }
    drop((image, matrix, closing));
    if seed.is_multiple_of(2) && !seed.is_multiple_of(3) {
        block_on(device.ones([10]) + 1.0).unwrap_or_else(|e| panic!("{e}"));
    }
    if seed.is_multiple_of(5) {
        std::process::exit(0);
    }
}

fn a_process_may_end_with_work_queued(_: &Simulator, _: u64) {
    // Some at a time: each waits more than it works.
    let one = |seed: u64| {
        let text = played("gone", |c| {
            c.env("FUTENSOR_TEST_SEED", seed.to_string()).env("FUTENSOR_SIM_DEVICES", "2")
        });
        assert_eq!(text, "", "seed {seed}");
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..5)
            .map(|part| scope.spawn(move || (part * 10..part * 10 + 10).for_each(one)))
            .collect();
        for part in parts {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

/// Queues more products of a type than run soon, all of whose kernels are there, and goes.
pub fn multiplied() {
    let device = device(0);
    // The first of a type, or of other sizes, of a batch, or with one row.
    let way = std::env::var("FUTENSOR_TEST_SEED").unwrap();
    let x = block_on(device.eye_dtype(96, DType::F64) * 1.0).unwrap();
    assert_eq!(block_on(x.matmul(&x).sum_all().item::<f64>()).unwrap(), 96.0);
    let (mut y, x) = match &*way {
        "0" => (x.matmul(&x), x),
        "1" => {
            let x = block_on(device.eye_dtype(130, DType::F64) * 1.0).unwrap();
            (x.matmul(&x), x)
        }
        "2" => {
            let x = block_on(x.expand([2, 96, 96]) * 1.0).unwrap();
            (x.matmul(&x), x)
        }
        _ => (x.narrow(0, 5, 1).matmul(&x), x),
    };
    for _ in 0..5000 {
        y = y.matmul(&x);
    }
    y.detach();
    let simulator = Simulator::attach().unwrap();
    let launches = simulator.stats().launches;
    until(|| simulator.stats().launches > launches);
}

fn a_process_may_end_behind_the_first_product_of_a_sort(_: &Simulator, _: u64) {
    for way in 0..4 {
        let text = played("multiplied", |c| c.env("FUTENSOR_TEST_SEED", way.to_string()));
        assert_eq!(text, "", "way {way}");
    }
}
