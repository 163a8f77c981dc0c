//! Question: what does it cost to queue a small op and await it, against what tokio asks for a
//! task?
//!
//! Method: 1,000 times `(&x + i).await` on a `[1, 2]`, one after the other, on a current_thread
//! runtime, are one iteration; a time is one op's share, its drop included. With inline polling,
//! and without it, and with a read back to the host. Peers of the same run on the same runtime:
//! spawning and awaiting an empty task, and the same with `spawn_blocking`, which is how a blocking
//! library is called from a server.
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
                Case::Read => read += (&x + i as f32).to_vec::<f32>().await.expect("a value")[1] as f64,
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

async fn tasks(iterations: u64, blocking: bool) -> Duration {
    let from = Instant::now();
    for _ in 0..iterations * OPS as u64 {
        let task = if blocking { tokio::task::spawn_blocking(|| ()) } else { tokio::spawn(async {}) };
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
        for (name, blocking) in [("tokio spawn + await", false), ("spawn_blocking + await", true)] {
            ledger.bench(group, name, OPS as u64, |n| runtime.block_on(tasks(n, blocking)));
        }
        for (name, ..) in rows {
            ledger.ratio(name, "tokio spawn + await");
        }
        ledger.ratio("x + i awaited", "spawn_blocking + await");
        ledger.ratio("x + i awaited without inline", "spawn_blocking + await");
    });
}
