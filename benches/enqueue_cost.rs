//! Question: what does the caller pay to queue one small op?
//!
//! Method: 10,000 ops `y = x + i` on a `[1, 2]` are one iteration; only the calls are timed, into a
//! vector with room for them. The device works meanwhile, as it would. `waitall`, the check that
//! all have run, the check of the values (once per sample) and the drops come after the clock has
//! stopped. Also an op of two operands and a chain in which each op takes the one before. Peers:
//! spawning an empty tokio task, and sending a boxed 100-byte message into an unbounded channel.
//!
//! Then 1, 2 and 8 tasks of a multi_thread runtime do so at once, each its own 10,000 ops on its
//! own `x`: a time is the wall clock from the moment all may begin until the last call has
//! returned, over all ops. Peer: as many tasks that send into one channel.
//!
//! `cargo bench -p futensor-benches --bench enqueue_cost`

use futensor::{CpuOptions, Device, TensorFuture};
use ledger::{assert_increments, assert_ran};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const OPS: usize = 10_000;

#[derive(Clone, Copy, PartialEq)]
enum Case {
    Increment,
    Sum,
    Chain,
}

async fn enqueue(device: &Device, iterations: u64, case: Case) -> Duration {
    let x: TensorFuture = device.ones([1, 2]).await.expect("ones").into();
    let mut time = Duration::ZERO;
    for iteration in 0..iterations {
        let before = device.stats();
        let mut held: Vec<TensorFuture> = Vec::with_capacity(OPS + 1);
        let from = Instant::now();
        match case {
            Case::Increment => held.extend((0..OPS).map(|i| &x + i as f32)),
            Case::Sum => held.extend((0..OPS).map(|_| &x + &x)),
            Case::Chain => {
                held.push(x.clone());
                for i in 0..OPS {
                    held.push(&held[i] + 1.0);
                }
            }
        }
        time += from.elapsed();
        device.waitall().await.expect("no errors");
        assert_ran(device, before, OPS);
        if iteration == 0 && case != Case::Sum {
            assert_increments(&held).await;
        }
    }
    time
}

async fn spawn(iterations: u64) -> Duration {
    let mut time = Duration::ZERO;
    for _ in 0..iterations {
        let mut held = Vec::with_capacity(OPS);
        let from = Instant::now();
        held.extend((0..OPS).map(|_| tokio::spawn(async {})));
        time += from.elapsed();
        for task in held {
            task.await.expect("an empty task");
        }
    }
    time
}

fn send(iterations: u64) -> Duration {
    let mut time = Duration::ZERO;
    for _ in 0..iterations {
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let from = Instant::now();
        for i in 0..OPS {
            sender.send(Box::new([i as u8; 100])).expect("the receiver is there");
        }
        time += from.elapsed();
        while receiver.try_recv().is_ok() {}
    }
    time
}

/// A task each begins with its work when all may; how long until all have done it, and what they
/// made.
fn at_once<T: Send + 'static>(
    runtime: &tokio::runtime::Runtime,
    work: impl Iterator<Item = impl FnOnce() -> T + Send + 'static>,
) -> (Duration, Vec<T>) {
    let begin = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = work
        .map(|work| {
            let begin = begin.clone();
            runtime.spawn(async move {
                while !begin.load(Ordering::Acquire) {
                    tokio::task::yield_now().await;
                }
                let made = work();
                (Instant::now(), made)
            })
        })
        .collect();
    let from = Instant::now();
    begin.store(true, Ordering::Release);
    let done: Vec<_> = tasks.into_iter().map(|t| runtime.block_on(t).expect("a task")).collect();
    let last = done.iter().map(|d| d.0).max().expect("a task at least");
    (last - from, done.into_iter().map(|d| d.1).collect())
}

fn enqueue_at_once(
    runtime: &tokio::runtime::Runtime,
    device: &Device,
    tasks: usize,
    iterations: u64,
) -> Duration {
    let x: Vec<TensorFuture> = (0..tasks).map(|_| device.ones([1, 2])).collect();
    runtime.block_on(device.waitall()).expect("no errors");
    let mut time = Duration::ZERO;
    for iteration in 0..iterations {
        let before = device.stats();
        let work = x.iter().cloned().map(|x| {
            move || {
                let mut held: Vec<TensorFuture> = Vec::with_capacity(OPS);
                held.extend((0..OPS).map(|i| &x + i as f32));
                held
            }
        });
        let (took, held) = at_once(runtime, work);
        time += took;
        runtime.block_on(device.waitall()).expect("no errors");
        assert_ran(device, before, OPS * tasks);
        if iteration == 0 {
            held.iter().for_each(|held| runtime.block_on(assert_increments(held)));
        }
    }
    time
}

fn send_at_once(runtime: &tokio::runtime::Runtime, tasks: usize, iterations: u64) -> Duration {
    let mut time = Duration::ZERO;
    for _ in 0..iterations {
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let work = (0..tasks).map(|_| {
            let sender = sender.clone();
            move || {
                for i in 0..OPS {
                    sender.send(Box::new([i as u8; 100])).expect("the receiver is there");
                }
            }
        });
        time += at_once(runtime, work).0;
        while receiver.try_recv().is_ok() {}
    }
    time
}

fn main() {
    ledger::run("enqueue_cost", |group, ledger| {
        let runtime = ledger::runtime();
        let device = Device::cpu_with(CpuOptions::default());
        let cases =
            [("x + i", Case::Increment), ("x + x", Case::Sum), ("chain of + 1", Case::Chain)];
        for (name, case) in cases {
            ledger.bench(group, name, OPS as u64, |n| runtime.block_on(enqueue(&device, n, case)));
        }
        ledger.bench(group, "tokio spawn", OPS as u64, |n| runtime.block_on(spawn(n)));
        ledger.bench(group, "channel send", OPS as u64, send);
        let many = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
        for tasks in [1, 2, 8] {
            let ops = (tasks * OPS) as u64;
            let name = format!("x + i, tasks at once: {tasks}");
            ledger.bench(group, &name, ops, |n| enqueue_at_once(&many, &device, tasks, n));
            let name = format!("channel send, tasks at once: {tasks}");
            ledger.bench(group, &name, ops, |n| send_at_once(&many, tasks, n));
        }
        for (name, _) in cases {
            ledger.ratio(name, "tokio spawn");
        }
        for tasks in [1, 2, 8] {
            let name = |what: &str| format!("{what}, tasks at once: {tasks}");
            ledger.ratio(&name("x + i"), &name("channel send"));
        }
        ledger.ratio("x + i", "channel send");
    });
}
