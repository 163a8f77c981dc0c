//! Part 3: `waitall` against `wait_to_read` with other work in flight.

use crate::report::Report;
use crate::setup::{Outcome, Setup, check, timed_await};
use futensor::{CpuOptions, TensorFuture};
use serde_json::json;

/// One product that is wanted now, and others that are not.
fn work(x: &TensorFuture, n: usize) -> (TensorFuture, Vec<TensorFuture>) {
    let wanted = x.matmul(x);
    let others = (0..n).map(|i| (x + i as f32).matmul(x)).collect();
    (wanted, others)
}

pub async fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let n = setup.count(40, 20);
    let size = setup.count(512, 256);
    let device = setup.own(CpuOptions::default());
    let x = device.randn([size, size]).await?.into_future_value();
    let warm = work(&x, n);
    device.waitall().await?;
    drop(warm);

    let (wanted, others) = work(&x, n);
    let (done, one) = timed_await(wanted.wait_to_read()).await;
    done?;
    let running = others.iter().filter(|other| !other.is_ready()).count();
    check(wanted.is_ready(), "wait_to_read waits for its value")?;
    device.waitall().await?;
    check(others.iter().all(TensorFuture::is_ready), "the rest went on by itself")?;
    drop((wanted, others));

    let (wanted, others) = work(&x, n);
    let (done, all) = timed_await(device.waitall()).await;
    done?;
    let left = others.iter().filter(|other| !other.is_ready()).count();
    check(wanted.is_ready() && left == 0, "waitall waits for everything")?;

    report.part("barriers, with other products in flight");
    report.row("products queued behind the one awaited", n.to_string());
    report.time("wait_to_read on the one", one);
    report.row("of the rest, not done after it", running.to_string());
    report.time("waitall", all);
    report.row("of the rest, not done after it", left.to_string());
    report.json(
        "barriers",
        json!({
            "waitall_s": all.as_secs_f64(),
            "wait_to_read_s": one.as_secs_f64(),
            "still_running_after_wait_to_read": running,
        }),
    );
    Ok(())
}
