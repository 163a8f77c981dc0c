//! Part 8: cancellation. Queued work whose handles are dropped is not done.

use crate::report::Report;
use crate::setup::{Outcome, Setup, check};
use futensor::{CpuOptions, TensorFuture};
use serde_json::json;
use std::time::Instant;

pub async fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let queued = 1000;
    let n = setup.count(512, 256);
    let device = setup.own(CpuOptions::default());
    let x = device.randn([n, n]).await?;
    x.matmul(&x).await?;

    let before = device.stats();
    let from = Instant::now();
    let products: Vec<TensorFuture> = (0..queued).map(|_| x.matmul(&x)).collect();
    let issued = from.elapsed();
    drop(products);
    let dropped = from.elapsed() - issued;
    device.waitall().await?;
    let done = from.elapsed();
    let after = device.stats();
    let ran = (after.started + after.fused) - (before.started + before.fused);
    let skipped = after.skipped - before.skipped;
    check(
        ran + skipped == queued,
        format!("{queued} products have ended: {ran} ran, {skipped} skipped"),
    )?;

    report.part("cancellation: a thousand queued products, their handles dropped at once");
    report.row("queued", format!("{queued} products of [{n}, {n}]"));
    report.row("ran", format!("{ran}, {skipped} were skipped"));
    report.time("until the calls returned", issued);
    report.time("to drop the handles", dropped);
    report.time("until the device was done", done);
    report.json("cancel", json!({ "queued": queued, "ran": ran }));
    Ok(())
}
