//! Question: does a call take longer the more there is?
//!
//! Method: one request is submitted to a batcher, and withdrawn, among so many others that wait,
//! two of a key; and an epoch of so many examples is begun, shuffled, and dropped before its first
//! batch. Each is set beside the same among few.
//!
//! `cargo bench -p futensor-benches --bench waiting`

use futensor::Device;
use futensor::data::Loader;
use futensor::serve::{BatchOptions, Batcher, ManualTimer};
use std::time::{Duration, Instant};

const WAITING: [u64; 3] = [10, 1_000, 100_000];
const EXAMPLES: [usize; 3] = [1_000, 30_000, 1_000_000];

fn main() {
    ledger::run("waiting", |group, ledger| {
        for n in WAITING {
            let options = BatchOptions::default().queue(1 << 20).timer(ManualTimer::new());
            let batcher = Batcher::grouped(options, |key: &u64| key / 2, |_| Vec::new());
            let others: Vec<_> = (0..n).map(|key| batcher.submit(key)).collect();
            ledger.bench(group, &format!("a request among {n}"), 1, |times| {
                let from = Instant::now();
                for _ in 0..times {
                    drop(batcher.submit(u64::MAX));
                }
                from.elapsed()
            });
            assert_eq!(batcher.stats().waiting, n as usize);
            drop(others);
        }
        for n in EXAMPLES {
            let loader = Loader::new(n, |at, _| Ok(at[0])).shuffle(1);
            ledger.bench(group, &format!("an epoch of {n}"), 1, |times| {
                let mut time = Duration::ZERO;
                for epoch in 0..times {
                    let from = Instant::now();
                    drop(loader.epoch(epoch, &Device::cpu()));
                    time += from.elapsed();
                }
                time
            });
        }
        for pair in WAITING.windows(2) {
            ledger.ratio(
                &format!("a request among {}", pair[1]),
                &format!("a request among {}", pair[0]),
            );
        }
        for pair in EXAMPLES.windows(2) {
            ledger.ratio(&format!("an epoch of {}", pair[1]), &format!("an epoch of {}", pair[0]));
        }
    });
}
