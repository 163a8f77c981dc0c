//! Part 6: over-filling the queue. A producer hands minibatches in faster than the device takes
//! them.

use crate::report::{Report, mebibytes};
use crate::setup::{Outcome, Setup, check};
use futensor::{CpuOptions, TensorFuture};
use serde_json::json;
use std::time::{Duration, Instant};

const ROWS: usize = 256;
const IN: usize = 784;
const OUT: usize = 512;

#[derive(Clone, Copy, PartialEq)]
enum Restraint {
    Barrier,
    Ready,
    None,
}

struct Peak {
    device: usize,
    host: Option<usize>,
    time: Duration,
}

pub async fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let batches = setup.count(300, 60);
    // The greediest last: what the allocator keeps then does not hide another's peak.
    let barrier = train(setup, batches, Restraint::Barrier).await?;
    let ready = train(setup, batches, Restraint::Ready).await?;
    let unlimited = train(setup, batches, Restraint::None).await?;

    report.part("over-filling the queue with minibatches handed in as host data");
    report.row(
        "minibatches",
        format!("{batches} of [{ROWS}, {IN}], {} each", mebibytes(ROWS * IN * 4)),
    );
    let rows = [
        ("a barrier per minibatch", &barrier),
        ("ready() per minibatch", &ready),
        ("no barrier", &unlimited),
    ];
    for (what, peak) in rows {
        let host = peak.host.map_or("unknown".into(), mebibytes);
        let time = crate::report::seconds(peak.time.as_secs_f64());
        report.row(
            what,
            format!("device peak {}, process grew by {host}, {time}", mebibytes(peak.device)),
        );
    }
    report.note(
        "The CPU device's bytes lie in the process's memory, and what is handed in is adopted, not \
            copied.",
    );
    report.json(
        "queue",
        json!({
            "peak_bytes_barrier": barrier.device,
            "peak_bytes_unlimited": unlimited.device,
            "peak_bytes_ready": ready.device,
        }),
    );
    Ok(())
}

async fn train(setup: &Setup, batches: usize, restraint: Restraint) -> Outcome<Peak> {
    let device = setup.own(CpuOptions::default().queue_ops(16));
    let weights = device.full([IN, OUT], 0.5).await?.into_future_value();
    device.trim();
    let grown = Growth::start();
    let from = Instant::now();
    let mut held: Vec<TensorFuture> = Vec::with_capacity(batches);
    for i in 0..batches {
        if restraint == Restraint::Ready {
            device.ready().await;
        }
        let x = device.from_vec(vec![(i % 4) as f32; ROWS * IN], [ROWS, IN]);
        let y = x.matmul(&weights).relu().mean_all();
        if restraint == Restraint::Barrier {
            device.waitall().await?;
        }
        held.push(y);
    }
    device.waitall().await?;
    let time = from.elapsed();
    let peak = Peak { device: device.stats().bytes_peak, host: grown.peak(), time };
    for (i, y) in held.iter().enumerate() {
        let expected = (i % 4) as f32 * 0.5 * IN as f32;
        let value = y.item::<f32>().await?;
        check(
            (value - expected).abs() <= expected * 1e-4,
            format!("loss {i} is {expected}, not {value}"),
        )?;
    }
    Ok(peak)
}

/// Growth of the process's resident memory, as Linux counts it.
struct Growth(Option<usize>);

fn status(key: &str) -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<usize>().ok()? << 10)
}

impl Growth {
    fn start() -> Growth {
        // Writing 5 sets the peak back to what is resident now.
        let reset = std::fs::write("/proc/self/clear_refs", "5").is_ok();
        Growth(if reset { status("VmRSS:") } else { None })
    }
    fn peak(&self) -> Option<usize> {
        Some(status("VmHWM:")?.saturating_sub(self.0?))
    }
}
