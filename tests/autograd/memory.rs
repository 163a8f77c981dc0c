//! The memory that the tape keeps, and the time at which it lets go.

use super::{block_on, device, read};
use futensor::sim::SimOptions;
use futensor::{CpuOptions, DType, Device, TensorFuture, checkpoint, grad};

const N: usize = 1 << 18;
const MIB: usize = N * 4;

/// Waits for what is sure to come.
fn until(so: impl Fn() -> bool) {
    let from = std::time::Instant::now();
    while !so() {
        assert!(from.elapsed().as_secs() < 60, "it does not come");
        std::thread::yield_now();
    }
}

/// A device with one thread, so that what is alive at once is settled.
fn narrow() -> Device {
    Device::cpu_with(CpuOptions::default().threads(1).nice(0))
}

#[test]
fn dropping_the_loss_cancels_what_only_the_tape_observed() {
    let (device, simulation) = Device::simulated(SimOptions::new(1));
    let w = device.ones([64, 64]).requires_grad();
    simulation.block_on(w.wait_to_read()).expect("it ends").unwrap();
    let before = device.stats();
    let mut h = w.matmul(&w);
    for _ in 0..10 {
        h = (h.matmul(&w) * 0.1).tanh().softmax(-1);
    }
    let loss = h.sum_all();
    let gradients = grad(&loss, &[&w]);
    drop((loss, h, gradients));
    simulation.block_on(device.waitall()).expect("it ends").unwrap();
    let after = device.stats();
    assert_eq!(after.started, before.started, "something ran for nobody");
    assert!(after.skipped > before.skipped + 30);
}

#[test]
fn a_tape_of_a_million_ops_is_freed_in_a_loop() {
    let small_stack = std::thread::Builder::new().stack_size(256 << 10);
    let run = || {
        let device = narrow();
        let w = device.ones([1]).requires_grad();
        let mut y = w.clone();
        for i in 0..1_000_000 {
            y = &y * 1.0 + &w * ((i == 500_000) as i32 as f32);
            if i % 1000 == 0 {
                block_on(device.ready());
            }
        }
        drop(y.requires_grad());
        drop(y);
        block_on(device.waitall()).unwrap();
    };
    small_stack.spawn(run).unwrap().join().unwrap();
}

#[test]
fn a_long_chain_has_a_gradient() {
    let device = narrow();
    let w = device.ones([1]).requires_grad();
    let mut y = w.clone();
    for _ in 0..20_000 {
        y = &y * 1.0 + 1.0;
    }
    assert_eq!(read(&grad(y.sum_all(), &[&w])[0]), [1.0]);
}

#[test]
fn light_values_are_not_written_for_the_tape() {
    // A device that runs nothing while ops are asked for.
    let (device, simulation) = Device::simulated(SimOptions::new(1));
    let w = (device.ones([N]) * 0.5).requires_grad();
    simulation.block_on(w.wait_to_read()).expect("it ends").unwrap();
    let names = |steps: &[futensor::recording::RecordedStep]| -> Vec<String> {
        let ops = steps.iter().flat_map(|step| &step.ops);
        ops.filter(|op| op.written && op.shape.numel() == N).map(|op| op.name.clone()).collect()
    };
    let recording = device.record();
    let loss = ((&w * 2.0).exp() + (&w + 1.0).log()).sin().sum_all();
    simulation.block_on(loss.wait_to_read()).expect("it ends").unwrap();
    let forward = recording.finish().steps;
    assert_eq!(names(&forward), [""; 0], "the tape made the forward pass write a temporary");
    let gradients = grad(&loss, &[&w]);
    let got = simulation.block_on(gradients[0].to_vec::<f32>()).expect("it ends").unwrap();
    let x = 0.5f64;
    let want = ((2.0 * x).exp() + (x + 1.0).ln()).cos() * (2.0 * (2.0 * x).exp() + 1.0 / (x + 1.0));
    assert!(got.iter().all(|g| (*g as f64 - want).abs() < 1e-4), "{} {want}", got[0]);
}

#[test]
fn an_activation_is_kept_in_place_of_the_product_before_it() {
    let device = narrow();
    let w = (device.ones([512, 512]) * 0.01).requires_grad();
    let x = device.ones([512, 512]) * 0.1;
    block_on(&w).unwrap();
    block_on(&x).unwrap();
    let before = device.stats().bytes_live;
    let mut h = x.clone();
    const LAYERS: usize = 6;
    for _ in 0..LAYERS {
        h = (h.matmul(&w) + 0.01).relu();
    }
    let loss = h.sum_all();
    drop(h);
    block_on(&loss).unwrap();
    block_on(device.waitall()).unwrap();
    // One value a layer (of the last, the product: nobody else needs its relu in memory). The
    // weight's packed form is not the tape's.
    device.trim();
    let kept = device.stats().bytes_live - before;
    assert!(kept <= LAYERS * MIB + 4096, "{kept} bytes are kept for {LAYERS} layers of {MIB}");
    assert!(kept >= (LAYERS - 1) * MIB);
    let gradients = grad(&loss, &[&w]);
    block_on(&gradients[0]).unwrap();
    block_on(device.waitall()).unwrap();
    // The loss's handle is still here; what the rules needed is not.
    device.trim();
    let left = device.stats().bytes_live - before;
    assert!(left <= MIB + 4096, "{left} bytes are left beside a gradient of {MIB}");
    drop((loss, gradients));
}

#[test]
fn what_no_rule_needs_is_not_kept() {
    let device = narrow();
    let w = device.ones([512, 512]).requires_grad();
    let x = device.ones([512, 512]) * 0.5;
    block_on(&x).unwrap();
    block_on(&w).unwrap();
    let before = device.stats().bytes_live;
    // The gradient of a product by `w` needs `x` alone.
    let loss = (x.matmul(&w) + 1.0).sum_all();
    block_on(&loss).unwrap();
    block_on(device.waitall()).unwrap();
    // The task table lets go a moment before the step lets go of what it read.
    until(|| device.stats().bytes_live <= before + 4096);
    drop(loss);
}

#[test]
fn a_checkpoint_keeps_its_inputs_and_nothing_between() {
    let device = narrow();
    let w = (device.ones([512, 512]) * 0.01).requires_grad();
    let x = (device.ones([512, 512]) * 0.1).requires_grad();
    block_on(&w).unwrap();
    block_on(&x).unwrap();
    let before = device.stats().bytes_live;
    let block = |h: &TensorFuture, w: &TensorFuture| (h.matmul(w) + 0.01).tanh();
    let own = w.clone();
    let y = checkpoint(move |x| (0..6).fold(x[0].clone(), |h, _| block(&h, &own)), &[&x]);
    let loss = y.sum_all();
    drop(y);
    block_on(&loss).unwrap();
    block_on(device.waitall()).unwrap();
    device.trim();
    let kept = device.stats().bytes_live - before;
    assert!(kept <= MIB + 4096, "{kept} bytes are kept");
    let got = read(&grad(&loss, &[&w])[0]);
    let plain = (0..6).fold(x.clone(), |h, _| block(&h, &w)).sum_all();
    assert_eq!(got, read(&grad(&plain, &[&w])[0]));
}

#[test]
fn an_update_in_place_leaves_alone_what_the_tape_kept() {
    let device = device();
    let x =
        device.from_vec((0..1000).map(|i| i as f32).collect::<Vec<_>>(), [1000]).requires_grad();
    let y = &x * 1.0;
    let loss = (&y * &y).sum_all();
    // The last handle of `y` goes into the assignment, which would write in place.
    let z = y.slice_assign(0..1000, device.zeros([1000]));
    assert_eq!(read(&z.stop_gradient()), [0.0; 1000]);
    let gradients = grad(&loss, &[&x]);
    assert_eq!(read(&gradients[0]), (0..1000).map(|i| 2.0 * i as f64).collect::<Vec<_>>());
}

#[test]
fn a_norms_gradient_of_its_weight_keeps_no_memory_but_its_own() {
    let device = narrow();
    let x = device.ones([1024, 1024]).requires_grad();
    let weight = device.ones([1024]).requires_grad();
    block_on(x.wait_to_read()).unwrap();
    block_on(weight.wait_to_read()).unwrap();
    let before = device.stats().bytes_live;
    let bias = device.zeros([1024]);
    let loss = x.layer_norm(&weight, &bias, 1e-5).sum_all();
    let mut gradients = grad(&loss, &[&x, &weight]);
    let of_weight = gradients.remove(1);
    block_on(gradients[0].wait_to_read()).unwrap();
    block_on(of_weight.wait_to_read()).unwrap();
    drop((gradients, bias, loss));
    until(|| device.stats().bytes_live <= before + 64 * 1024);
}

#[test]
fn a_loss_of_logits_in_halves_keeps_no_copy_of_them_in_float32() {
    let device = narrow();
    let x = (device.ones([N]).to_dtype(DType::BF16) + 0.0).requires_grad();
    let target = device.zeros([N]).to_dtype(DType::BF16) + 0.0;
    block_on(x.wait_to_read()).unwrap();
    block_on(target.wait_to_read()).unwrap();
    let before = device.stats().bytes_live;
    let loss = x.bce_with_logits(&target, ());
    block_on(loss.wait_to_read()).unwrap();
    // What the logits' own factor is: one less the target.
    until(|| device.stats().bytes_live <= before + MIB + MIB / 4);
    drop(grad(&loss, &[&x]));
}
