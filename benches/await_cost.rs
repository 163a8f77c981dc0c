//! Question: what does it cost to queue a small op and await it, against what tokio asks for a
//! task?
//!
//! Method: 1,000 times `(&x + i).await` on a `[1, 2]`, one after the other, on a current_thread
//! runtime, are one iteration; a time is one op's share, its drop included. With inline polling,
//! and without it, and with a read back to the host. Peers of the same run on the same runtime:
//! spawning and awaiting an empty task, and the same with `spawn_blocking`, which is how a blocking
//! library is called from a server. Graphs of tiny ops (chains of 2, 8 and 64, a tree of 31, an
//! LSTM cell's 8) are queued and awaited as a whole; a time is one op's share there too.
//!
//! `cargo bench -p futensor-benches --bench await_cost`

use futensor::{CpuOptions, Device, TensorFuture};
use ledger::assert_ran;
use std::time::{Duration, Instant};

const OPS: usize = 1_000;

#[derive(Clone, Copy)]
enum Case {
    Value,
    Read,
    Ready,
}

async fn awaited(device: &Device, iterations: u64, case: Case) -> Duration {
    let x: TensorFuture = device.ones([1, 2]).await.expect("ones").into();
    let before = device.stats();
    let mut read = 0.0f64;
    let from = Instant::now();
    for _ in 0..iterations {
        for i in 0..OPS {
            match case {
                Case::Value => drop((&x + i as f32).await.expect("a value")),
                Case::Read => {
                    read += (&x + i as f32).to_vec::<f32>().await.expect("a value")[1] as f64
                }
                Case::Ready => drop((&x).await.expect("a value")),
            }
        }
    }
    let time = from.elapsed();
    // An op is done a moment before it is counted; what `waitall` has waited for is counted.
    device.waitall().await.expect("no errors");
    match case {
        Case::Value => assert_ran(device, before, OPS * iterations as usize),
        Case::Read => {
            let each = (0..OPS).map(|i| 1.0 + i as f64).sum::<f64>();
            assert_eq!(read, each * iterations as f64);
        }
        Case::Ready => assert_ran(device, before, 0),
    }
    time
}

/// A graph of tiny ops, and of how many.
type Graph = (&'static str, usize, fn(&TensorFuture) -> TensorFuture);

/// A chain of so many.
fn chain(x: &TensorFuture, length: usize) -> TensorFuture {
    (1..length).fold(x * x, |y, i| y + i as f32)
}

fn tree(x: &TensorFuture, depth: u32) -> TensorFuture {
    if depth == 0 { x + 1.0 } else { tree(x, depth - 1) * tree(x, depth - 1) }
}

/// What an LSTM cell does with its gates' sums (Hochreiter and Schmidhuber 1997).
fn lstm(x: &TensorFuture) -> TensorFuture {
    let cell = x.sigmoid() * x + x.sigmoid() * x.tanh();
    x.sigmoid() * cell.tanh()
}

const GRAPHS: [Graph; 5] = [
    ("chain of 2 awaited", 2, |x| chain(x, 2)),
    ("chain of 8 awaited", 8, |x| chain(x, 8)),
    ("chain of 64 awaited", 64, |x| chain(x, 64)),
    ("tree of 31 awaited", 31, |x| tree(x, 4)),
    ("LSTM cell awaited", 9, lstm),
];

async fn graphs(
    device: &Device,
    iterations: u64,
    ops: usize,
    graph: fn(&TensorFuture) -> TensorFuture,
) -> Duration {
    let x: TensorFuture = device.ones([1, 2]).await.expect("ones").into();
    let before = device.stats();
    let from = Instant::now();
    for _ in 0..iterations {
        drop(graph(&x).await.expect("a value"));
    }
    let time = from.elapsed();
    device.waitall().await.expect("no errors");
    assert_ran(device, before, ops * iterations as usize);
    time
}

async fn tasks(iterations: u64, blocking: bool) -> Duration {
    let from = Instant::now();
    for _ in 0..iterations * OPS as u64 {
        let task =
            if blocking { tokio::task::spawn_blocking(|| ()) } else { tokio::spawn(async {}) };
        task.await.expect("an empty task");
    }
    from.elapsed()
}

fn main() {
    ledger::run("await_cost", |group, ledger| {
        let runtime = ledger::runtime();
        let inline = Device::cpu_with(CpuOptions::default());
        let hop = Device::cpu_with(CpuOptions::default().inline(false));
        let rows = [
            ("x + i awaited", &inline, Case::Value),
            ("x + i read", &inline, Case::Read),
            ("x + i awaited without inline", &hop, Case::Value),
            ("a ready value awaited", &inline, Case::Ready),
        ];
        for (name, device, case) in rows {
            ledger.bench(group, name, OPS as u64, |n| runtime.block_on(awaited(device, n, case)));
        }
        for (name, ops, graph) in GRAPHS {
            ledger.bench(group, name, ops as u64, |n| {
                runtime.block_on(graphs(&inline, n, ops, graph))
            });
        }
        for (name, blocking) in [("tokio spawn + await", false), ("spawn_blocking + await", true)] {
            ledger.bench(group, name, OPS as u64, |n| runtime.block_on(tasks(n, blocking)));
        }
        for (name, ..) in rows {
            ledger.ratio(name, "tokio spawn + await");
        }
        for (name, ..) in GRAPHS {
            ledger.ratio(name, "x + i awaited");
        }
        ledger.ratio("x + i awaited", "spawn_blocking + await");
        ledger.ratio("x + i awaited without inline", "spawn_blocking + await");
    });
}
