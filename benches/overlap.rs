//! Question: do two independent chains overlap, whatever the order in which they are queued?
//!
//! Method: each chain is 500 products of `[64, 64]`, too small to be split over threads. Alone: one
//! chain queued and awaited, then the other; that is the peer. Together: the second queued after
//! the first, one `waitall`. Interleaved: queued alternately. The same with chains of 10 products
//! of `[512, 512]`, which use every core each, so that together can hardly be less. A factor of the
//! identity keeps values exact, and they are checked. On two cores the first ratios should be near
//! a half.
//!
//! `cargo bench -p futensor-benches --bench overlap`

use futensor::{CpuOptions, Device, TensorFuture};
use ledger::assert_ran;
use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
enum Order {
    Alone,
    Together,
    Interleaved,
}

async fn chains(device: &Device, n: usize, len: usize, order: Order, iterations: u64) -> Duration {
    let one: TensorFuture = device.eye(n).await.expect("eye").into();
    let starts = [device.full([n, n], 2.0), device.full([n, n], 3.0)];
    device.waitall().await.expect("no errors");
    let mut time = Duration::ZERO;
    for _ in 0..iterations {
        let before = device.stats();
        let mut ends = starts.clone();
        let from = Instant::now();
        match order {
            Order::Alone => {
                for end in &mut ends {
                    (0..len).for_each(|_| *end = end.matmul(&one));
                    end.wait_to_read().await.expect("a product");
                }
            }
            Order::Together => {
                for end in &mut ends {
                    (0..len).for_each(|_| *end = end.matmul(&one));
                }
                device.waitall().await.expect("no errors");
            }
            Order::Interleaved => {
                for _ in 0..len {
                    ends.iter_mut().for_each(|end| *end = end.matmul(&one));
                }
                device.waitall().await.expect("no errors");
            }
        }
        time += from.elapsed();
        assert_ran(device, before, 2 * len);
        for (end, value) in ends.iter().zip([2.0f32, 3.0]) {
            let values = end.to_vec::<f32>().await.expect("a product");
            assert!(values.iter().all(|&v| v == value), "the chain of {value}");
        }
    }
    time
}

fn main() {
    ledger::run("overlap", |group, ledger| {
        let runtime = ledger::runtime();
        let device = Device::cpu_with(CpuOptions::default());
        for (n, len) in [(64, 500), (512, 10)] {
            let name = |what: &str| format!("{what} {n}");
            let orders = [
                ("alone", Order::Alone),
                ("together", Order::Together),
                ("interleaved", Order::Interleaved),
            ];
            for (what, order) in orders {
                ledger.bench(group, &name(what), 2 * len as u64, |iterations| {
                    runtime.block_on(chains(&device, n, len, order, iterations))
                });
            }
            ledger.ratio(&name("together"), &name("alone"));
            ledger.ratio(&name("interleaved"), &name("alone"));
        }
    });
}
