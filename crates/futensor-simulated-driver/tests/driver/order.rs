//! Order: streams, events, and the seed that picks.

use crate::Test;
use crate::rig::{context, grid, kernel};
use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, DevicePtr, PushKernelArg, result};
use futensor_simulated_driver::Simulator;
use std::sync::Arc;
use std::time::Duration;

pub const TESTS: &[(&str, Test)] = &[
    ("events_order_streams", events_order),
    ("a_seed_replays_and_seeds_differ", seeds),
    ("nothing_moves_while_paused_and_steps_move_one_item", steps),
    ("lazy_mode_moves_only_when_somebody_waits_or_asks", lazy),
    ("a_wait_takes_the_record_that_was_last_when_it_was_called", rerecord),
    ("an_unrecorded_event_is_complete", unrecorded),
    ("the_legacy_default_stream_waits_for_blocking_streams_only", legacy),
    ("a_destroyed_stream_still_runs_its_work", destroyed),
];

/// `x = x * 3 + add`: the result tells the order of two of them.
pub const STEP: &str = r#"extern "C" __global__ void k(int* x, int add) { *x = *x * 3 + add; }"#;

pub fn step(stream: &Arc<CudaStream>, k: &CudaFunction, x: &CudaSlice<i32>, add: i32) {
    let address = x.device_ptr(stream).0;
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(k).arg(&address).arg(&add).launch(grid(1, 1)) }.unwrap();
}

pub fn one(stream: &Arc<CudaStream>) -> CudaSlice<i32> {
    let x = stream.clone_htod(&[1i32]).unwrap();
    stream.synchronize().unwrap();
    x
}

fn events_order(simulator: &Simulator) {
    for seed in 0..50 {
        simulator.reset(seed, 1);
        let context = context(0);
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let k = kernel(&context, STEP);
        let x = one(&a);
        step(&a, &k, &x, 1);
        b.wait(&a.record_event(None).unwrap()).unwrap();
        step(&b, &k, &x, 2);
        a.wait(&b.record_event(None).unwrap()).unwrap();
        step(&a, &k, &x, 3);
        assert_eq!(a.clone_dtoh(&x).unwrap(), [((3 + 1) * 3 + 2) * 3 + 3], "seed {seed}");
    }
}

/// The order in which two unordered streams' kernels ran, four of each, as a string of digits to
/// base 3.
fn interleaving(simulator: &Simulator, seed: u64, lazy: bool) -> i32 {
    simulator.reset(seed, 1);
    simulator.lazy(lazy);
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, STEP);
    let x = one(&a);
    if !lazy {
        simulator.pause();
    }
    for _ in 0..4 {
        step(&a, &k, &x, 1);
        step(&b, &k, &x, 2);
    }
    simulator.resume();
    a.synchronize().unwrap();
    b.synchronize().unwrap();
    simulator.clear_report(); // The streams race, on purpose.
    a.clone_dtoh(&x).unwrap()[0]
}

fn seeds(simulator: &Simulator) {
    for lazy in [false, true] {
        let first: Vec<i32> = (0..20).map(|seed| interleaving(simulator, seed, lazy)).collect();
        let again: Vec<i32> = (0..20).map(|seed| interleaving(simulator, seed, lazy)).collect();
        assert_eq!(first, again);
        let different: std::collections::BTreeSet<i32> = first.iter().copied().collect();
        assert!(different.len() > 5, "{different:?}");
    }
}

fn steps(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let k = kernel(&context, STEP);
    let x = one(&a);
    simulator.pause();
    (0..3).for_each(|_| step(&a, &k, &x, 1));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!((simulator.pending(), simulator.runnable()), (3, 1));
    assert_eq!(simulator.step(1), 1);
    assert_eq!(simulator.pending(), 2);
    assert_eq!(simulator.step(10), 2);
    assert_eq!(simulator.step(10), 0);
    simulator.resume();
    assert_eq!(a.clone_dtoh(&x).unwrap(), [40]);
}

fn lazy(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let k = kernel(&context, STEP);
    let x = one(&a);
    simulator.lazy(true);
    (0..4).for_each(|_| step(&a, &k, &x, 1));
    let event = a.record_event(None).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(simulator.pending(), 5);
    let mut asked = 0;
    while !event.is_complete() {
        asked += 1;
        std::thread::sleep(Duration::from_millis(1));
        assert!(asked < 100);
    }
    assert_eq!(simulator.pending(), 0);
    assert!(asked >= 5, "{asked}");
    step(&a, &k, &x, 1);
    a.synchronize().unwrap();
    assert_eq!(simulator.pending(), 0);
}

fn rerecord(simulator: &Simulator) {
    for seed in 0..20 {
        simulator.reset(seed, 1);
        let context = context(0);
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let k = kernel(&context, STEP);
        let (x, y) = (one(&a), one(&a));
        simulator.pause();
        let event = a.record_event(None).unwrap();
        b.wait(&event).unwrap();
        step(&a, &k, &x, 1);
        event.record(&a).unwrap();
        step(&b, &k, &y, 2);
        // b needs the first record only: with a's kernel held back, b's may run.
        simulator.step(1);
        simulator.stall_stream(a.cu_stream() as usize, true);
        simulator.resume();
        b.synchronize().unwrap();
        assert_eq!(event.try_is_complete(), Ok(false));
        simulator.stall_stream(a.cu_stream() as usize, false);
        event.synchronize().unwrap();
    }
}

fn unrecorded(_: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let event = context.new_event(None).unwrap();
    assert_eq!(event.try_is_complete(), Ok(true));
    a.wait(&event).unwrap();
    event.synchronize().unwrap();
}

fn legacy(simulator: &Simulator) {
    let context = context(0);
    let default = context.default_stream();
    let k = kernel(&context, STEP);
    let blocking = result::stream::create(result::stream::StreamKind::Default).unwrap();
    // SAFETY: the stream lives to the end of the test.
    let blocking = unsafe { context.wrap_borrowed_stream(blocking) };
    let free = context.new_stream().unwrap();
    let (x, y) = (one(&free), one(&free));
    context.synchronize().unwrap();
    simulator.stall_stream(blocking.cu_stream() as usize, true);
    step(&blocking, &k, &x, 1);
    step(&default, &k, &x, 2);
    step(&free, &k, &y, 3);
    free.synchronize().unwrap();
    assert_eq!(simulator.pending(), 2, "the default stream waits for the blocking stream");
    simulator.stall_stream(blocking.cu_stream() as usize, false);
    default.synchronize().unwrap();
    step(&blocking, &k, &x, 3);
    blocking.synchronize().unwrap();
    assert_eq!(free.clone_dtoh(&x).unwrap(), [((3 + 1) * 3 + 2) * 3 + 3]);
    assert_eq!(free.clone_dtoh(&y).unwrap(), [6]);
    // SAFETY: the stream is not used any more.
    unsafe { result::stream::destroy(blocking.cu_stream()) }.unwrap();
}

fn destroyed(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let k = kernel(&context, STEP);
    let x = one(&a);
    simulator.pause();
    step(&b, &k, &x, 1);
    let event = b.record_event(None).unwrap();
    drop(b);
    simulator.resume();
    event.synchronize().unwrap();
    assert_eq!(a.clone_dtoh(&x).unwrap(), [4]);
}
