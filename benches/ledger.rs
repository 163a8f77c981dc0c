//! The ledger of the benches: criterion measures, the ledger keeps the figures and prints ratios.
//!
//! Every sample goes through [`Ledger::bench`], so that all rows of a run can be set side by side
//! at its end: a ratio of two rows of one run says more than either alone on a machine that is
//! shared.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use futensor::{Device, Stats, TensorFuture};
use std::time::Duration;

pub struct Ledger {
    /// Name, and seconds an op of each sample.
    rows: Vec<(String, Vec<f64>)>,
}

/// Runs a bench under criterion's own flags, and prints what `report` has to say at its end.
pub fn run(name: &str, body: impl FnOnce(&mut BenchmarkGroup<'_, WallTime>, &mut Ledger)) {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .without_plots()
        .configure_from_args();
    let mut ledger = Ledger { rows: Vec::new() };
    let mut group = criterion.benchmark_group(name);
    group.sampling_mode(SamplingMode::Flat);
    body(&mut group, &mut ledger);
    group.finish();
    criterion.final_summary();
}

/// Each bench is to be tried, not measured.
pub fn is_quick() -> bool {
    std::env::args().any(|argument| argument == "--quick")
}

impl Ledger {
    /// Measures `sample`, which does its `ops` ops as often as it is told and gives the time it
    /// took.
    pub fn bench(
        &mut self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        name: &str,
        ops: u64,
        mut sample: impl FnMut(u64) -> Duration,
    ) {
        let mut samples = Vec::new();
        group.throughput(Throughput::Elements(ops));
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let time = sample(iterations);
                samples.push(time.as_secs_f64() / (iterations * ops) as f64);
                time
            });
        });
        if !samples.is_empty() {
            self.rows.push((name.to_owned(), samples));
        }
    }

    /// Median seconds an op; `None` where criterion's filter left the row out.
    pub fn median(&self, name: &str) -> Option<f64> {
        let mut samples = self.rows.iter().find(|(n, _)| n == name)?.1.clone();
        samples.sort_by(f64::total_cmp);
        Some(samples[samples.len() / 2])
    }

    /// Prints one row beside its peer.
    pub fn ratio(&self, what: &str, peer: &str) {
        if let (Some(a), Some(b)) = (self.median(what), self.median(peer)) {
            println!("ratio: {what} {} / {peer} {} = {:.3}", time(a), time(b), a / b);
        }
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s if s >= 1e-6 => format!("{:.3} us", s * 1e6),
        s => format!("{:.1} ns", s * 1e9),
    }
}

/// All of `n` ops have run since `before`: nothing was merged away or skipped.
pub fn assert_ran(device: &Device, before: Stats, n: usize) {
    let now = device.stats();
    let ran = (now.started + now.fused) - (before.started + before.fused);
    assert_eq!(ran, n as u64, "ops that have run");
}

/// Every `held[i]` is `1 + i`, twice.
pub async fn assert_increments(held: &[TensorFuture]) {
    for (i, y) in held.iter().enumerate() {
        let values = y.to_vec::<f32>().await.expect("the value is there");
        assert_eq!(values, [1.0 + i as f32; 2], "value {i}");
    }
}

/// A runtime on this thread, without timers.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}
