//! Whatever goes wrong, every await ends, and only what has to fail fails.

use super::support::{Rng, block_on, until};
use super::values::graph;
use super::{Entry, device, entries, two_devices};
use futensor::cuda::CudaOptions;
use futensor::nn::Parameter;
use futensor::optim::{self, Optimizer};
use futensor::{DType, Device, Error, TensorFuture};
use futensor_simulated_driver::{
    DEVICE_UNAVAILABLE, ECC_UNCORRECTABLE, ILLEGAL_ADDRESS, LAUNCH_FAILED, LAUNCH_OUT_OF_RESOURCES,
    Simulator,
};
use std::time::Duration;

pub fn all() -> Vec<Entry> {
    let mut list = entries![12, false;
        memory_that_is_short_once_fails_nothing
        a_launch_that_is_refused_fails_its_value_alone
        a_step_that_fails_on_the_gpu_changes_nothing
        a_gradient_whose_launch_is_refused_stops_the_whole_step]
    .to_vec();
    list.extend(entries![1, false;
        memory_that_cannot_be_had_fails_that_op_and_leaves_the_device_well
        memory_that_is_found_missing_while_other_devices_work_stalls_nothing
        a_step_of_several_results_comes_or_fails_however_much_memory_there_is
        memory_that_comes_free_is_waited_for
        memory_that_other_streams_free_is_waited_for
        values_without_elements_and_values_without_end_come_or_fail]);
    list.extend(entries![12, true;
        an_illegal_address_ends_every_await_of_that_device_alone
        a_launch_that_fails_for_good_ends_the_device
        a_product_that_fails_for_good_ends_the_device
        a_lost_device_ends_every_await
        memory_that_a_lost_device_was_to_fill_is_never_used_again
        a_kernel_that_never_ends_is_ended_by_the_watchdog]);
    list.extend(entries![1, true;
        a_kernel_that_never_ends_is_found_while_others_come_behind_it
        a_fault_names_the_op_when_each_runs_to_its_end
        a_fault_is_logged_for_detached_work
        what_is_asked_of_a_lost_device_fails_at_once]);
    list
}

/// Awaits everything; how many values there are, and the errors of the others.
fn read(values: &[TensorFuture]) -> (usize, Vec<Error>) {
    let (mut there, mut errors) = (0, Vec::new());
    for x in values {
        match block_on(x.to_vec::<f32>()) {
            Ok(_) => there += 1,
            Err(error) => errors.push(error),
        }
    }
    (there, errors)
}

fn memory_that_is_short_once_fails_nothing(simulator: &Simulator, seed: u64) {
    let device = device(0);
    block_on((device.ones([3]) + 1.0).wait_to_read()).unwrap();
    simulator.fail_allocation(1 + Rng(seed).next() % 40);
    let (_, errors) = read(&graph(&device, seed, 40));
    assert!(errors.is_empty(), "{}", errors[0]);
}

fn a_launch_that_is_refused_fails_its_value_alone(simulator: &Simulator, seed: u64) {
    let device = device(0);
    let values: Vec<TensorFuture> =
        (0..8).map(|i| device.arange(0.0, 5000.0 + i as f64, 1.0).exp()).collect();
    let one = values[0].clone() + 1.0;
    block_on(one.wait_to_read()).unwrap();
    simulator.fail_launch(1 + seed % 8, LAUNCH_OUT_OF_RESOURCES);
    let made: Vec<TensorFuture> = values.iter().map(|x| x.sqrt().sum_all()).collect();
    let (there, errors) = read(&made);
    assert!(errors.len() <= 1 && there >= 7, "{there} {errors:?}");
    assert!(errors.iter().all(|e| e.is_kernel()), "{errors:?}");
    assert_eq!(block_on((device.ones([2]) + 1.0).to_vec::<f32>()).unwrap(), [2.0, 2.0]);
}

fn values_without_elements_and_values_without_end_come_or_fail(_: &Simulator, _: u64) {
    let device = device(0);
    assert_eq!(
        block_on(device.zeros([4]).narrow(0, 0, 0).to_dtype(DType::F64).to_vec::<f64>()).unwrap(),
        [0.0; 0]
    );
    let large = device.zeros([1usize << 40]);
    assert_eq!(
        block_on(large.narrow(0, 0, 0).to_dtype(DType::F64).to_vec::<f64>()).unwrap(),
        [0.0; 0]
    );
    let error = block_on(large.to_dtype(DType::F64) + 1.0).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let error = block_on(large.repeat(2) + 1.0).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(block_on((device.ones([2]) + 1.0).to_vec::<f32>()).unwrap(), [2.0, 2.0]);
}

fn memory_that_cannot_be_had_fails_that_op_and_leaves_the_device_well(
    simulator: &Simulator,
    _: u64,
) {
    simulator.set_memory(0, 8 << 20);
    let device = device(0);
    let small = device.arange(0.0, 1000.0, 1.0) + 1.0;
    let large = device.arange(0.0, 4_000_000.0, 1.0) + 1.0;
    let made = &large * 2.0;
    let error = block_on(&large).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert!(block_on(&made).unwrap_err().is_out_of_memory());
    assert_eq!(block_on(small.to_vec::<f32>()).unwrap()[9], 10.0);
    let limited = Device::cuda_with(1, CudaOptions::default().bytes_max(1 << 20)).unwrap();
    let error = block_on(limited.arange(0.0, 1_000_000.0, 1.0) + 1.0).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    // Handed in, and no room for the copy that a group reads, nor for that of an op.
    let handed = limited.from_vec(vec![1f32; 150_000], [150_000]);
    for made in [&handed + 1.0, handed.cumsum(0)] {
        let error = block_on(made).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
    }
}

/// The driver may wait for all work of the GPU, other devices' too, when it gives memory back. (A
/// thread that launches and waits so is reported.)
fn memory_that_is_found_missing_while_other_devices_work_stalls_nothing(
    simulator: &Simulator,
    _: u64,
) {
    let other = device(0);
    let ready = block_on(other.arange(0.0, 1000.0, 1.0)).unwrap();
    let small = Device::cuda_with(0, CudaOptions::default().bytes_max(1 << 20).streams(1)).unwrap();
    let x = block_on(small.ones([2]) + 1.0).unwrap();
    let before = simulator.stats().launches;
    simulator.hang_launch(1);
    let hung = ready.exp();
    until(|| simulator.stats().launches > before);
    let missing = small.arange(0.0, 300_000.0, 1.0) + 1.0;
    assert!(block_on(missing).unwrap_err().is_out_of_memory());
    simulator.release_hangs();
    block_on(hung).unwrap();
    assert_eq!(block_on((x + 1.0).to_vec::<f32>()).unwrap(), [3.0, 3.0]);
}

/// Where the first result finds room and the second does not, the first goes back, which is
/// something that moves: the step is not tried for ever.
fn a_step_of_several_results_comes_or_fails_however_much_memory_there_is(_: &Simulator, seed: u64) {
    let n = 8_000;
    for quarters in 1..24 {
        let options = CudaOptions::default().bytes_max(quarters * n).streams(2);
        let device = Device::cuda_with(0, options).unwrap();
        device.seed(seed);
        let x = device.rand([n / 4]);
        let (values, places) = x.sort_with_positions(0, false);
        let (largest, at) = x.topk(n / 8, 0, true);
        let made = [values, places, largest, at, x.cumsum(0).exp(), x];
        for value in made {
            match block_on(value) {
                Ok(_) => {}
                Err(error) => assert!(error.is_out_of_memory(), "{quarters}: {error}"),
            }
        }
        assert_eq!(block_on((device.ones([2]) + 1.0).to_vec::<f32>()).unwrap(), [2.0, 2.0]);
    }
}

fn memory_that_comes_free_is_waited_for(simulator: &Simulator, _: u64) {
    // Room for three of these at once; twenty are asked for, and each is gone when its sum is
    // there.
    simulator.set_memory(0, 13 << 20);
    let device = Device::cuda_with(0, CudaOptions::default().streams(2).in_flight_ops(2)).unwrap();
    let sums: Vec<TensorFuture> = (0..10)
        .map(|i| {
            let x = device.arange(0.0, 1_000_000.0, 1.0);
            let y = x.cumsum(0);
            y.index_select(0, device.from_vec(vec![i as i64], [1])).sum_all()
        })
        .collect();
    for (i, sum) in sums.iter().enumerate() {
        let want: usize = (0..=i).sum();
        assert_eq!(block_on(sum.item::<f32>()).unwrap(), want as f32);
    }
}

/// A free is work of its stream like all else: until that has come past it, other streams cannot
/// have the memory.
fn memory_that_other_streams_free_is_waited_for(simulator: &Simulator, _: u64) {
    simulator.set_memory(0, 4 << 20);
    // A stream runs while somebody waits for it, so that a free to which nobody listens stays
    // undone.
    simulator.lazy(true);
    let device = Device::cuda_with(0, CudaOptions::default().streams(3)).unwrap();
    for round in 0..4 {
        let small: Vec<TensorFuture> = (0..3).map(|_| device.arange(0.0, 300_000.0, 1.0)).collect();
        for x in &small {
            block_on(x).unwrap();
        }
        drop(small);
        let large = device.arange(0.0, 1_000_000.0, 1.0);
        assert_eq!(
            block_on(large.narrow(0, 7, 1).to_vec::<f32>()).unwrap(),
            [7.0],
            "round {round}"
        );
    }
    simulator.lazy(false);
}

fn everything_ends(device: &Device, others: &[&Device], values: &[TensorFuture]) {
    let (_, errors) = read(values);
    for error in &errors {
        assert!(error.is_device_lost(), "{error}");
    }
    let _ = block_on(device.waitall());
    block_on(device.ready());
    for other in others {
        assert_eq!(
            block_on((other.ones([2]) + 1.0).to_vec::<f32>()).unwrap(),
            [2.0, 2.0],
            "{other}"
        );
    }
}

fn an_illegal_address_ends_every_await_of_that_device_alone(simulator: &Simulator, seed: u64) {
    let (a, b) = two_devices();
    let there = graph(&b, seed, 10);
    assert!(read(&there).1.is_empty());
    simulator.fault_launch(1 + Rng(seed).next() % 30, ILLEGAL_ADDRESS);
    let values = graph(&a, seed, 40);
    everything_ends(&a, &[&b, &Device::cpu()], &values);
    let error = block_on(a.ones([2]) + 1.0).unwrap_err();
    assert!(error.is_device_lost(), "{error}");
    assert!(error.message().contains("ILLEGAL_ADDRESS"), "{error}");
    simulator.clear_report();
}

fn a_launch_that_fails_for_good_ends_the_device(simulator: &Simulator, seed: u64) {
    let (a, b) = two_devices();
    simulator.fail_launch(1 + Rng(seed).next() % 30, LAUNCH_FAILED);
    let values = graph(&a, seed, 40);
    everything_ends(&a, &[&b, &Device::cpu()], &values);
}

fn a_product_that_fails_for_good_ends_the_device(simulator: &Simulator, _: u64) {
    let (a, b) = two_devices();
    let x = a.randn([40, 40]);
    block_on(x.wait_to_read()).unwrap();
    simulator.fault_launch(1, ILLEGAL_ADDRESS);
    let y = x.matmul(&x);
    let z = &y + 1.0;
    everything_ends(&a, &[&b, &Device::cpu()], &[y, z]);
    assert!(block_on(a.ones([2]) + 1.0).unwrap_err().is_device_lost());
    simulator.clear_report();
}

fn a_lost_device_ends_every_await(simulator: &Simulator, seed: u64) {
    let (a, b) = two_devices();
    let values = graph(&a, seed, 20);
    let more = graph(&a, seed + 1000, 20);
    if !seed.is_multiple_of(3) {
        let _ = block_on(values[values.len() / 2].wait_to_read());
    }
    simulator.lose_device(
        0,
        if seed.is_multiple_of(2) { ECC_UNCORRECTABLE } else { DEVICE_UNAVAILABLE },
    );
    everything_ends(&a, &[&b, &Device::cpu()], &values);
    everything_ends(&a, &[], &more);
    simulator.clear_report();
}

fn a_kernel_that_never_ends_is_ended_by_the_watchdog(simulator: &Simulator, seed: u64) {
    let options = CudaOptions::default().watchdog(Some(Duration::from_millis(300)));
    let a = Device::cuda_with(0, options).unwrap();
    let b = device(1);
    // Kernels are compiled and loaded before: the watchdog looks at what runs.
    assert!(read(&graph(&b, seed, 20)).1.is_empty());
    simulator.hang_launch(1 + Rng(seed).next() % 20);
    let values = graph(&a, seed, 40);
    everything_ends(&a, &[&b, &Device::cpu()], &values);
    let error = block_on(a.ones([2]) + 1.0).unwrap_err();
    assert!(error.message().contains("watchdog"), "{error}");
    simulator.clear_report();
}

fn a_kernel_that_never_ends_is_found_while_others_come_behind_it(simulator: &Simulator, _: u64) {
    let options = CudaOptions::default().watchdog(Some(Duration::from_millis(300)));
    let device =
        Device::cuda_with(0, options.streams(1).depth(100_000).in_flight_ops(100_000)).unwrap();
    let x = device.arange(0.0, 100.0, 1.0) + 0.0;
    block_on(&x + 1.0).unwrap();
    simulator.hang_launch(1);
    let hangs = &x + 2.0;
    let begun = std::time::Instant::now();
    let mut behind = Vec::new();
    while !hangs.is_ready() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} steps came behind it", behind.len());
        behind.push(&x + behind.len() as f64);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(block_on(&hangs).unwrap_err().message().contains("watchdog"));
    assert!(behind.iter().all(|value| block_on(value).is_err_and(|error| error.is_device_lost())));
    simulator.clear_report();
}

fn a_fault_names_the_op_when_each_runs_to_its_end(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().sync(true)).unwrap();
    let x = device.arange(0.0, 100.0, 1.0);
    block_on(x.wait_to_read()).unwrap();
    simulator.fault_launch(1, ILLEGAL_ADDRESS);
    let y = x.tanh();
    let error = block_on(&y).unwrap_err();
    assert!(error.is_device_lost() && error.message().contains("running tanh"), "{error}");
    assert!(error.message().contains("faults.rs"), "{error}");
    simulator.clear_report();
}

fn a_fault_is_logged_for_detached_work(simulator: &Simulator, _: u64) {
    let device = device(0);
    simulator.fault_launch(1, ILLEGAL_ADDRESS);
    (device.arange(0.0, 100.0, 1.0) + 1.0).detach();
    assert!(block_on(device.waitall()).unwrap_err().is_device_lost());
    simulator.clear_report();
}

fn what_is_asked_of_a_lost_device_fails_at_once(simulator: &Simulator, _: u64) {
    let device = device(0);
    simulator.lose_device(0, ECC_UNCORRECTABLE);
    assert!(block_on(device.arange(0.0, 100.0, 1.0) + 1.0).unwrap_err().is_device_lost());
    let late = device.ones([3]) + 1.0;
    assert!(late.error().is_some_and(|e| e.is_device_lost()));
    drop(block_on(device.admit()));
    simulator.clear_report();
}

/// The bits of a table after steps with Adam along rows of it; `bad` steps in between name a row
/// that it has not.
fn trained(device: &Device, bad: bool) -> (Vec<u32>, Vec<Error>) {
    let table = Parameter::new(device.arange(0.0, 12.0, 1.0).reshape([4, 3]).sin());
    let bias = Parameter::new(device.zeros([3]));
    let mut adam = optim::Adam::new(vec![table.clone(), bias.clone()], 0.1);
    let mut step = |rows: Vec<i64>| {
        let n = rows.len();
        let chosen = table.value().embedding(device.from_vec(rows, [n])) + bias.value();
        adam.minimize(&chosen.square().sum_all())
    };
    // All of it is queued before anything is known to have failed.
    let mut wrong = Vec::new();
    for k in 0..4 {
        if bad {
            wrong.push(step(vec![0, 9 + k]));
        }
        step(vec![k, 0, 2]).detach();
    }
    let read =
        |p: &Parameter| block_on(p.value().to_vec::<f32>()).expect("a parameter that is there");
    let bits = read(&table).into_iter().chain(read(&bias)).map(f32::to_bits).collect();
    block_on(device.waitall()).unwrap();
    (bits, wrong.into_iter().map(|step| block_on(step).unwrap_err()).collect())
}

fn a_step_that_fails_on_the_gpu_changes_nothing(_: &Simulator, _: u64) {
    let device = device(0);
    let (want, _) = trained(&device, false);
    let (bits, errors) = trained(&device, true);
    assert_eq!(bits, want);
    assert!(errors.len() == 4 && errors.iter().all(Error::is_index), "{errors:?}");
}

fn a_gradient_whose_launch_is_refused_stops_the_whole_step(simulator: &Simulator, seed: u64) {
    let device = device(0);
    let parameters: Vec<Parameter> =
        (0..4).map(|k| Parameter::new(device.arange(0.0, 3000.0 + k as f64, 1.0).sin())).collect();
    let read = || -> Vec<Vec<f32>> {
        parameters
            .iter()
            .map(|p| block_on(p.value().to_vec::<f32>()).expect("a parameter that is there"))
            .collect()
    };
    let before = read();
    let mut sgd = optim::Sgd::new(parameters.clone(), 0.1);
    // Before any of them is asked for: the first launches are theirs.
    simulator.fail_launch(1 + seed % 4, LAUNCH_OUT_OF_RESOURCES);
    let gradients: Vec<TensorFuture> =
        parameters.iter().map(|p| p.value().stop_gradient().cumsum(0)).collect();
    for g in &gradients {
        // Some of them are there before the step is asked for, some are not.
        if seed.is_multiple_of(2) {
            let _ = block_on(g);
        }
    }
    let step = sgd.step(&gradients);
    let ended = gradients.iter().map(|g| block_on(g).is_ok()).filter(|ok| !ok).count();
    // What is made from a gradient may be launched before the last of them: then that is refused.
    assert!(ended == 1 || ended == 0 && !seed.is_multiple_of(2), "{ended} gradients have failed");
    assert!(block_on(step).unwrap_err().is_kernel());
    assert_eq!(read(), before, "one of them has stepped");
}

fn memory_that_a_lost_device_was_to_fill_is_never_used_again(simulator: &Simulator, seed: u64) {
    let (device, other) = two_devices();
    block_on(other.ones([3]) + 1.0).unwrap();
    // As it goes with the step, and by itself.
    let n = if seed.is_multiple_of(2) { 5000 } else { 300_000 };
    let x = block_on(device.arange(0.0, n as f64, 1.0) + 1.0).unwrap();
    let own = simulator.stats().live_pinned;
    let buffer = block_on(device.pinned::<f32>(n)).unwrap();
    simulator.pause();
    let before = simulator.stats().copies;
    let reading = x.to_pinned(buffer);
    until(|| simulator.stats().copies > before);
    simulator.lose_device(0, ECC_UNCORRECTABLE);
    simulator.resume();
    assert!(block_on(reading).unwrap_err().is_device_lost());
    drop(x);
    // The copy may still run on a real GPU, so the memory is nobody's any more.
    block_on(other.trim_wait()).unwrap();
    assert_eq!(simulator.stats().live_pinned, own + 1);
}
