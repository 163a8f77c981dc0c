//! Part 5: 10,000 increments, awaited each time, or detached with one `waitall`; and the model of
//! it.
//!
//! The model is that of "Dive into Deep Learning", chapter "Asynchronous Computation": an op costs
//! t1 to enqueue, t2 to execute, and t3 to hand it to the device and its result back to the caller.
//! Awaited each time, n of them take n (t1 + t2 + t3); fired and forgotten t1 + n t2 + t3, where t2
//! is longer than t1. An increment of two numbers is not: the poll runs it, or a thread that is
//! awake anyway. So the model is held against ops of 50 us, each of its terms measured on its own,
//! and one can see how far it is right.

use crate::report::{Report, seconds};
use crate::setup::{Outcome, Setup, check, check_ran, median};
use futensor::custom::{Meta, custom_fn};
use futensor::{CpuOptions, Device, Result, TensorFuture};
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub async fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let n = setup.count(10_000, 10_000);
    let device = setup.own(CpuOptions::default());
    let hop = setup.own(CpuOptions::default().inline(false));

    let awaited = awaited_each(&device, n).await?;
    let without_inline = awaited_each(&hop, n).await?;
    let forgotten = fire_and_forget(&device, n).await?;

    let times = setup.count(400, 200);
    let model = match setup.is_cpu() {
        true => Model::of_long_ops(setup, times).await?,
        false => Model::on_gpu(&device, times).await?,
    };

    report.part("increments y = x + i of a [1, 2], values checked; and ops that are longer");
    report.row("how many", n.to_string());
    report.time_of("awaited each, the poll may run it", awaited, n);
    report.time_of("awaited each, run by another thread", without_inline, n);
    report.time_of("detached, one waitall", forgotten, n);
    report.row(format!("{} {}", model.n, model.what), "");
    report.row(
        "t1 enqueue / t2 execute / t3 there and back",
        [model.t1, model.t2, model.t3].map(seconds).join(" / "),
    );
    let compared = |model: f64, measured: f64| {
        format!(
            "{}, measured {} ({:.2} of it)",
            seconds(model),
            seconds(measured),
            measured / model
        )
    };
    report.row("awaited each, n (t1 + t2 + t3)", compared(model.awaited(), model.measured_awaited));
    report.row("detached, t1 + n t2 + t3", compared(model.forgotten(), model.measured_forgotten));
    let saved = (model.t1 + model.t3) * 1e6;
    report.note(format!(
        "Awaiting costs an op t1 + t3, {saved:.1} us here, during which the device has nothing to \
            do; detached, the queue hides it.\n\
         That is {:.0} % of what these ops take awaited, and most of what an increment does, \
         unless the poll runs it itself.",
        100.0 * (model.t1 + model.t3) / (model.t1 + model.t2 + model.t3),
    ));
    report.json(
        "increments",
        json!({
            "n": n,
            "awaited_s": awaited.as_secs_f64(),
            "awaited_without_inline_s": without_inline.as_secs_f64(),
            "fire_and_forget_s": forgotten.as_secs_f64(),
            "model_n": model.n,
            "t1_s": model.t1,
            "t2_s": model.t2,
            "t3_s": model.t3,
            "model_awaited_s": model.awaited(),
            "model_fire_and_forget_s": model.forgotten(),
            "measured_awaited_s": model.measured_awaited,
            "measured_fire_and_forget_s": model.measured_forgotten,
        }),
    );
    Ok(())
}

/// The model's terms, in seconds, and what it is held against.
struct Model {
    what: &'static str,
    n: usize,
    t1: f64,
    t2: f64,
    t3: f64,
    measured_awaited: f64,
    measured_forgotten: f64,
}

impl Model {
    fn awaited(&self) -> f64 {
        self.n as f64 * (self.t1 + self.t2 + self.t3)
    }

    fn forgotten(&self) -> f64 {
        self.t1 + self.n as f64 * self.t2 + self.t3
    }

    /// Ops of 50 us on a device of one thread.
    async fn of_long_ops(setup: &Setup, n: usize) -> Outcome<Model> {
        let device = setup.own(CpuOptions::default().threads(1));
        let x = ones(&device).await?;
        // The awaited way, in which each op notes when it began and when it had ended.
        let mut away = Vec::with_capacity(n);
        for _ in 0..n {
            let noted = Arc::new(Mutex::new(None));
            let called = Instant::now();
            let y = spin(&x, noted.clone());
            let queued = Instant::now();
            y.await?;
            let back = Instant::now();
            let span: Option<(Instant, Instant)> = *noted.lock().unwrap_or_else(|p| p.into_inner());
            let (began, ended) = span.ok_or("the op has run")?;
            // It may begin before its call has returned.
            let there_and_back = began.saturating_duration_since(queued) + (back - ended);
            away.push([queued - called, ended - began, there_and_back, back - called]);
        }
        // The middle of each, so that what else the machine does is left out of all of them.
        let middle =
            |k: usize| median(&mut away.iter().map(|t| t[k]).collect::<Vec<_>>()).as_secs_f64();
        let [t1, t2, t3, whole] = [0, 1, 2, 3].map(middle);
        let measured_awaited = n as f64 * whole;
        // An op is done a moment before it is counted; what `waitall` has waited for is counted.
        device.waitall().await?;
        let before = device.stats();
        let from = Instant::now();
        for _ in 0..n {
            spin(&x, Arc::default()).detach();
        }
        device.waitall().await?;
        let measured_forgotten = from.elapsed().as_secs_f64();
        check_ran(&device, before, n)?;
        let what = "ops of 50 us, on one thread of the device";
        Ok(Model { what, n, t1, t2, t3, measured_awaited, measured_forgotten })
    }

    /// The increments themselves: no op of a GPU can note when it began.
    async fn on_gpu(device: &Device, n: usize) -> Outcome<Model> {
        let (t1, t2) = enqueue_and_execute_on_gpu(device, n).await?;
        let t3 = result_back_from_gpu(device, n, t1 + t2).await?;
        let measured_awaited = awaited_each(device, n).await?.as_secs_f64();
        let measured_forgotten = fire_and_forget(device, n).await?.as_secs_f64();
        let [t1, t2, t3] = [t1, t2, t3].map(|t| t.as_secs_f64());
        Ok(Model { what: "increments", n, t1, t2, t3, measured_awaited, measured_forgotten })
    }
}

/// An op of 50 us, which notes when it began and when it ended.
fn spin(x: &TensorFuture, noted: Arc<Mutex<Option<(Instant, Instant)>>>) -> TensorFuture {
    custom_fn(
        "spin",
        &[x],
        |inputs| Ok(Meta::clone(inputs[0])),
        move |run| {
            let began = Instant::now();
            while began.elapsed() < Duration::from_micros(50) {
                std::hint::spin_loop();
            }
            run.output().fill_from([0.0f32; 2]);
            *noted.lock().unwrap_or_else(|p| p.into_inner()) = Some((began, Instant::now()));
            Ok(())
        },
    )
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

/// t1 and t2, each alone, on a GPU, where no op can be made to wait for the host: all of them need
/// what a source has yet to bring.
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
