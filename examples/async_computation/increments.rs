//! Part 5: 10,000 increments, awaited each time, or detached with one `waitall`; and the model of it.
//!
//! The model is that of "Dive into Deep Learning", chapter "Asynchronous Computation": an op costs t1
//! to enqueue, t2 to execute and t3 until its result is back with the caller. Awaited each time, n of
//! them take n (t1 + t2 + t3); fired and forgotten t1 + n t2 + t3, where t2 is longer than t1. Each is
//! measured on its own, so the model may be wrong, and one can see by how much.

use crate::report::{Report, seconds};
use crate::setup::{Outcome, Setup, check, check_ran, median};
use futensor::{CpuOptions, Device, Meta, Result, TensorFuture, custom_fn};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub async fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let n = setup.count(10_000, 10_000);
    let device = setup.own(CpuOptions::default());
    let hop = setup.own(CpuOptions::default().inline(false));

    let awaited = awaited_each(&device, n).await?;
    let without_inline = awaited_each(&hop, n).await?;
    let forgotten = fire_and_forget(&device, n).await?;

    let (t1, t2) = match setup.is_cpu() {
        true => enqueue_and_execute(setup, n).await?,
        false => enqueue_and_execute_on_gpu(&device, n).await?,
    };
    let times = setup.count(500, 100);
    let t3 = match setup.is_cpu() {
        true => result_back(&hop, times).await?,
        false => result_back_from_gpu(&hop, times, t1 + t2).await?,
    };
    let [one, two, three] = [t1, t2, t3].map(|t| t.as_secs_f64());
    let model_awaited = n as f64 * (one + two + three);
    let model_forgotten = one + n as f64 * two + three;

    report.part("increments y = x + i of a [1, 2], values checked");
    report.row("how many", n.to_string());
    report.time_of("awaited each, the poll may run it", awaited, n);
    report.time_of("awaited each, run by another thread", without_inline, n);
    report.time_of("detached, one waitall", forgotten, n);
    report.row("t1 enqueue / t2 execute / t3 result back", [one, two, three].map(seconds).join(" / "));
    let measured = |t: Duration| seconds(t.as_secs_f64());
    report.row(
        "n (t1 + t2 + t3)",
        format!("{}, measured {} (by another thread)", seconds(model_awaited), measured(without_inline)),
    );
    report.row("t1 + n t2 + t3", format!("{}, measured {}", seconds(model_forgotten), measured(forgotten)));
    report.row(
        "detached against awaited by another thread",
        format!("{:.1} times as fast", without_inline.as_secs_f64() / forgotten.as_secs_f64()),
    );
    report.json(
        "increments",
        json!({
            "n": n,
            "awaited_s": awaited.as_secs_f64(),
            "awaited_without_inline_s": without_inline.as_secs_f64(),
            "fire_and_forget_s": forgotten.as_secs_f64(),
            "t1_s": one,
            "t2_s": two,
            "t3_s": three,
            "model_awaited_s": model_awaited,
            "model_fire_and_forget_s": model_forgotten,
        }),
    );
    Ok(())
}

async fn check_values(held: &[TensorFuture], n: usize) -> Outcome<()> {
    check(held.len() == n, "each has its handle")?;
    for (i, y) in held.iter().enumerate() {
        let expected = 1.0 + i as f32;
        check(y.to_vec::<f32>().await? == [expected; 2], format!("value {i} is {expected}"))?;
    }
    Ok(())
}

async fn ones(device: &Device) -> Result<TensorFuture> {
    Ok(device.ones([1, 2]).await?.into())
}

async fn awaited_each(device: &Device, n: usize) -> Outcome<Duration> {
    let x = ones(device).await?;
    let before = device.stats();
    let mut held = Vec::with_capacity(n);
    let from = Instant::now();
    for i in 0..n {
        held.push((&x + i as f32).await?.into());
    }
    let time = from.elapsed();
    // An op is done a moment before it is counted; what `waitall` has waited for is counted.
    device.waitall().await?;
    check_ran(device, before, n)?;
    check_values(&held, n).await?;
    Ok(time)
}

async fn fire_and_forget(device: &Device, n: usize) -> Outcome<Duration> {
    let x = ones(device).await?;
    let before = device.stats();
    let mut held = Vec::with_capacity(n);
    let from = Instant::now();
    for i in 0..n {
        let y = &x + i as f32;
        y.detach();
        held.push(y);
    }
    device.waitall().await?;
    let time = from.elapsed();
    check_ran(device, before, n)?;
    check_values(&held, n).await?;
    Ok(time)
}

/// t1 and t2, each alone: the device's only thread is kept busy while n ops are enqueued, then let go.
async fn enqueue_and_execute(setup: &Setup, n: usize) -> Outcome<(Duration, Duration)> {
    let device = setup.own(CpuOptions::default().threads(1));
    let x = ones(&device).await?;
    let (let_go, busy) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let gate = {
        let (let_go, busy) = (let_go.clone(), busy.clone());
        custom_fn(
            "busy",
            &[&x],
            |inputs| Ok(Meta::clone(inputs[0])),
            move |run| {
                busy.store(true, Ordering::SeqCst);
                while !let_go.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                run.output().fill_from([0.0f32; 2]);
                Ok(())
            },
        )
    };
    while !busy.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    let before = device.stats();
    let mut held = Vec::with_capacity(n);
    let from = Instant::now();
    for i in 0..n {
        held.push(&x + i as f32);
    }
    let enqueued = from.elapsed();
    let_go.store(true, Ordering::SeqCst);
    let from = Instant::now();
    device.waitall().await?;
    let executed = from.elapsed();
    gate.await?;
    check_ran(&device, before, n)?;
    check_values(&held, n).await?;
    Ok((enqueued / n as u32, executed / n as u32))
}

/// The same on a GPU, where no op can be made to wait for the host: all of them need what a source has yet to bring.
async fn enqueue_and_execute_on_gpu(device: &Device, n: usize) -> Outcome<(Duration, Duration)> {
    let (bring, brought) = futures::channel::oneshot::channel::<Vec<f32>>();
    device.waitall().await?;
    let before = device.stats();
    let x = device.from_future([1, 2], brought);
    let mut held = Vec::with_capacity(n);
    let from = Instant::now();
    for i in 0..n {
        held.push(&x + i as f32);
    }
    let enqueued = from.elapsed();
    let from = Instant::now();
    bring.send(vec![1.0; 2]).map_err(|_| "the source was dropped")?;
    device.waitall().await?;
    let executed = from.elapsed();
    // The source is one.
    check_ran(device, before, n + 1)?;
    check_values(&held, n).await?;
    Ok((enqueued / n as u32, executed / n as u32))
}

/// t3 on a GPU: what is left of one op, awaited, without its enqueueing and execution.
async fn result_back_from_gpu(device: &Device, times: usize, less: Duration) -> Outcome<Duration> {
    let x = ones(device).await?;
    let mut back = Vec::with_capacity(times);
    for i in 0..times {
        let from = Instant::now();
        (&x + i as f32).await?;
        back.push(from.elapsed().saturating_sub(less));
    }
    Ok(median(&mut back))
}

/// t3: from the end of an op on a thread of the device until the task that awaits it goes on.
async fn result_back(device: &Device, times: usize) -> Outcome<Duration> {
    let x = ones(device).await?;
    let mut back = Vec::with_capacity(times);
    for _ in 0..times {
        let end = Arc::new(Mutex::new(None));
        let noted = end.clone();
        let y = custom_fn(
            "noted",
            &[&x],
            |inputs| Ok(Meta::clone(inputs[0])),
            move |run| {
                run.output().fill_from([0.0f32; 2]);
                *noted.lock().unwrap_or_else(|p| p.into_inner()) = Some(Instant::now());
                Ok(())
            },
        );
        y.await?;
        let now = Instant::now();
        let end: Option<Instant> = *end.lock().unwrap_or_else(|p| p.into_inner());
        back.push(now - end.ok_or("the op has run")?);
    }
    Ok(median(&mut back))
}
