//! Laws 1 and 2: what is not a future never waits, and work starts by itself.

use crate::support::{ALL, Counter, Gate, Kind, block_on, identity};
use crate::{Laws, promises};
use futensor::{DType, Device, TensorFuture};
use std::sync::mpsc;

pub fn add(laws: &mut Laws) {
    promises!(laws, 1, ALL;
        op_calls_compute_nothing_on_the_callers_thread
        shape_type_and_device_are_known_while_the_device_is_blocked
        calls_return_while_every_thread_of_the_device_is_blocked
        looking_at_a_handle_never_reads_the_device
        dropping_never_waits);
    promises!(laws, 2, ALL;
        work_starts_without_a_poll
        a_chain_runs_to_its_end_without_a_poll
        an_idle_device_wakes_for_one_op
        queued_results_have_no_memory_until_they_are_taken_up);
}

/// An op that tells a channel when it runs.
fn telling(x: &TensorFuture, channel: mpsc::Sender<()>) -> TensorFuture {
    let channel = std::sync::Mutex::new(channel);
    identity("tell", x, move || {
        let _ = channel.lock().unwrap().send(());
        Ok(())
    })
}

fn op_calls_compute_nothing_on_the_callers_thread(kind: Kind) {
    let device = kind.device();
    let counter = Counter::new();
    let made: Vec<TensorFuture> =
        (0..50).map(|i| counter.op_of(&device.ones([4]), Some(10 + 1000 * i))).collect();
    // No poll: whatever ran, ran by itself.
    made.iter().for_each(TensorFuture::detach);
    crate::support::until(|| counter.runs() == 50);
    assert!(!counter.threads().contains(&std::thread::current().id()));
}

fn shape_type_and_device_are_known_while_the_device_is_blocked(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let x = device.rand([8, 3]);
    let sum = (&x + 1).sum(1);
    assert_eq!((sum.dims(), sum.dtype(), sum.device()), (&[8][..], DType::F32, device.clone()));
    let places = x.argmax(0).unsqueeze(-1);
    assert_eq!((places.dims(), places.dtype()), (&[3, 1][..], DType::I64));
    let product = x.matmul(x.t());
    assert_eq!((product.dims(), product.numel(), product.rank()), (&[8, 8][..], 64, 2));
    assert_eq!(x.gt(0.5).dtype(), DType::Bool);
    assert!(!product.is_ready() && product.error().is_none());
    busy.release();
    assert_eq!(block_on(&product).unwrap().dims(), [8, 8]);
}

fn calls_return_while_every_thread_of_the_device_is_blocked(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let mut x = device.zeros([1 << 12]);
    for i in 0..10_000 {
        x = x + i % 3;
    }
    let read = x.to_vec::<f32>();
    let item = x.sum_all().item::<f32>();
    let shown = x.display();
    let places = x.nonzero();
    let all = device.waitall();
    let (ready, admit) = (device.ready(), device.admit());
    let brought = device.from_future([1], std::future::pending::<Result<Vec<f32>, String>>());
    let wrong = &x + device.ones([7]);
    x.detach();
    assert!(!x.is_ready() && wrong.is_ready());
    drop((item, shown, places, ready, admit, brought));
    busy.release();
    block_on(all).unwrap();
    assert_eq!(block_on(read).unwrap(), vec![9999.0; 1 << 12]);
}

fn looking_at_a_handle_never_reads_the_device(kind: Kind) {
    let device = kind.device();
    let gate = Gate::new();
    let x = gate.op(&device.ones([2]));
    gate.wait_entered(1);
    let text = format!("{x} {x:?}");
    for part in ["float32", "[2]", device.name(), "pending"] {
        assert!(text.contains(part), "{text} says nothing of {part}");
    }
    gate.open();
    block_on(&x).unwrap();
    assert!(x.to_string().contains("ready"), "{x}");
    let wrong = device.ones([2]) + device.ones([3]);
    assert!(wrong.to_string().contains("failed"), "{wrong}");
}

fn dropping_never_waits(kind: Kind) {
    let device = kind.device();
    let large = device.ones([1 << 20]);
    block_on(&large).unwrap();
    let gate = Gate::new();
    let running: Vec<TensorFuture> =
        (0..kind.threads()).map(|_| gate.op(&device.ones([1 << 10]))).collect();
    gate.wait_entered(kind.threads());
    let queued = (&large * 2.0).sum_all();
    let read = large.to_vec::<f32>();
    let all = device.waitall();
    // Each of these returns, although nothing can be finished.
    drop(running);
    drop(queued);
    drop(read);
    drop(all);
    drop(large);
    gate.open();
    block_on(device.waitall()).unwrap();
}

fn work_starts_without_a_poll(kind: Kind) {
    let device = kind.device();
    let (tell, told) = mpsc::channel();
    let held = telling(&device.ones([2]), tell);
    told.recv().unwrap();
    drop(held);
}

fn a_chain_runs_to_its_end_without_a_poll(kind: Kind) {
    let device = kind.device();
    let (tell, told) = mpsc::channel();
    let mut x = device.rand([64, 64]);
    for _ in 0..20 {
        x = x.matmul(&x).tanh() + 0.5;
    }
    let held = telling(&x, tell);
    told.recv().unwrap();
    crate::support::until(|| held.is_ready());
    assert!(held.error().is_none());
}

fn an_idle_device_wakes_for_one_op(kind: Kind) {
    let device: Device = kind.device_with(|o| o.linger(std::time::Duration::ZERO));
    for _ in 0..500 {
        let (tell, told) = mpsc::channel();
        let held = telling(&device.ones([1]), tell);
        told.recv().unwrap();
        drop(held);
    }
}

fn queued_results_have_no_memory_until_they_are_taken_up(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let before = device.stats().bytes_live;
    let held: Vec<TensorFuture> = (0..256).map(|i| device.zeros([1 << 20]) + i).collect();
    // A gigabyte of results.
    assert_eq!(device.stats().bytes_live, before);
    drop(held);
    busy.release();
    block_on(device.waitall()).unwrap();
    assert!(device.stats().bytes_peak < 64 << 20);
}
