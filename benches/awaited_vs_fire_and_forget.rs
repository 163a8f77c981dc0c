//! Question: what does a barrier an op cost, against one barrier at the end?
//!
//! Method: 10,000 ops `y = x + i` on a `[1, 2]` are one iteration; a time is one op's share.
//! Awaited each, where the poll may run the op; awaited each with inline polling off, so that every
//! await is a hop to a thread of the device and back; and detached with one `waitall`. All handles
//! are held and dropped after the clock has stopped. The counters have to say that every op ran,
//! and all values are checked once per sample. Peer: the hop.
//!
//! `cargo bench -p futensor-benches --bench awaited_vs_fire_and_forget`

use futensor::{CpuOptions, Device, TensorFuture};
use ledger::{Ledger, assert_increments, assert_ran};
use std::time::{Duration, Instant};

const OPS: usize = 10_000;

async fn batches(device: &Device, iterations: u64, detached: bool) -> Duration {
    let x: TensorFuture = device.ones([1, 2]).await.expect("ones").into();
    let mut time = Duration::ZERO;
    for iteration in 0..iterations {
        let before = device.stats();
        let mut held: Vec<TensorFuture> = Vec::with_capacity(OPS);
        let from = Instant::now();
        for i in 0..OPS {
            let y = &x + i as f32;
            if detached {
                y.detach();
                held.push(y);
            } else {
                held.push(y.await.expect("a value").into());
            }
        }
        if detached {
            device.waitall().await.expect("no errors");
        }
        time += from.elapsed();
        // An op is done a moment before it is counted; what `waitall` has waited for is counted.
        device.waitall().await.expect("no errors");
        assert_ran(device, before, OPS);
        if iteration == 0 {
            assert_increments(&held).await;
        }
    }
    time
}

fn main() {
    ledger::run("awaited_vs_fire_and_forget", |group, ledger: &mut Ledger| {
        let runtime = ledger::runtime();
        let inline = Device::cpu_with(CpuOptions::default());
        let hop = Device::cpu_with(CpuOptions::default().inline(false));
        let mut row = |name, device: &Device, detached| {
            ledger
                .bench(group, name, OPS as u64, |n| runtime.block_on(batches(device, n, detached)));
        };
        row("awaited each", &inline, false);
        row("awaited each without inline", &hop, false);
        row("detached, one waitall", &inline, true);
        ledger.ratio("awaited each without inline", "detached, one waitall");
        ledger.ratio("awaited each", "detached, one waitall");
        ledger.ratio("awaited each", "awaited each without inline");
    });
}
