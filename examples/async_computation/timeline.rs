//! `--trace FILE`: the job's shape as a picture. Two chains that overlap and meet, a task that
//! awaits each step beside one that only queues, and the gaps that the awaits leave.
//!
//! Runs after the measured parts, on a device of its own, so that the recording disturbs none of
//! them. FILE is the page; beside it, with `.json`, lies the same for Perfetto, and with `.svg` the
//! picture alone.

use crate::output;
use crate::report::Report;
use crate::setup::{Outcome, Setup, check};
use futensor::CpuOptions;
use futensor::recording::named;
use std::path::{Path, PathBuf};

/// The files that are written: the page, the picture and the events.
pub fn files(page: &Path) -> [PathBuf; 3] {
    [page.into(), page.with_extension("svg"), page.with_extension("json")]
}

pub async fn run(setup: &Setup, report: &mut Report, file: &Path) -> Outcome<()> {
    let device = setup.own(CpuOptions::default().streams(4));
    let n = setup.count(384, 256);
    let (a, b) = (device.randn([n, n]), device.randn([n, n]));
    device.waitall().await?;
    let recording = device.record();
    let barriers = device.barriers();

    // Queued without a single barrier: two chains, which overlap, and their sum.
    let chains = async {
        let (mut x, mut y) = (a.clone(), b.clone());
        for _ in 0..4 {
            x = x.matmul(&a) * 0.01;
            y = y.matmul(&b) * 0.01;
        }
        (x + y).sum_all().item::<f32>().await
    };
    let sum = named("queues all, awaits once", chains).await?;
    check(sum.is_finite(), "the sum is a number")?;

    // The same products with a barrier after each: the device runs dry every time.
    let steps = async {
        let mut x = a.clone();
        for _ in 0..4 {
            x = x.matmul(&a) * 0.01;
            x.wait_to_read().await?;
        }
        Ok::<_, futensor::Error>(x)
    };
    let awaited = named("awaits each step", steps).await?;

    // Two tasks share the device: one awaits, and the other keeps it busy meanwhile.
    let busy = async move {
        let mut y = b.clone();
        for _ in 0..8 {
            y = y.matmul(&b) * 0.01;
        }
        y.sum_all().item::<f32>().await
    };
    let looks = async move {
        let mut x = awaited;
        for _ in 0..3 {
            x = (x.matmul(&a) * 0.01).tanh();
            x.mean_all().item::<f32>().await?;
        }
        Ok::<_, futensor::Error>(())
    };
    let (busy, looks) = (named("keeps it busy", busy), named("looks at each step", looks));
    let (one, other) = tokio::join!(tokio::spawn(busy), tokio::spawn(looks));
    check(one??.is_finite(), "the second sum is a number")?;
    other??;

    let (recording, barriers) = (recording.finish(), barriers.report());
    check(recording.awaits.iter().any(|a| a.ran_dry), "somebody's await let the device run dry")?;
    let texts = [recording.to_html(), recording.to_svg(1500), recording.to_chrome_json()];
    for (file, text) in files(file).iter().zip(texts) {
        output::write(file, text)?;
    }
    report.part("where this last part waited");
    report.note(barriers.to_string());
    report.note(format!("The picture: {}", file.display()));
    Ok(())
}
