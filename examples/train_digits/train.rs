//! One training, in either of two ways.
//!
//! *Asynchronous*: the loop queues forward pass, gradients and update of a minibatch and goes on to
//! the next; `ready()`, room in the queue, is all it ever awaits. Losses and accuracies are values
//! to come, and a task of its own awaits them and reports. *Naive*: the loop reads the loss of each
//! step before it goes on.

use crate::data::{Digits, Images};
use crate::model::Model;
use crate::report::{Event, Figures, reporter};
use futensor::nn::{Module, Sequential};
use futensor::optim::{AdamW, Cosine, Optimizer, Schedule, Warmup, clip_grad_norm};
use futensor::train::Monitor;
use futensor::{DType, Device, TensorFuture, grad, no_grad};
use std::future::Future;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const BATCH: usize = 64;
const RATE: f64 = 4e-3;

/// How the loop learns what the loss was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Asynchronous,
    Naive,
}

/// What the loop awaited, and what that took.
#[derive(Default)]
pub struct Barriers {
    pub count: usize,
    pub time: Duration,
}

impl Barriers {
    async fn wait<F: Future>(&mut self, future: F) -> F::Output {
        let since = Instant::now();
        let out = future.await;
        self.count += 1;
        self.time += since.elapsed();
        out
    }
}

/// How many of these images the model gets right: a value to come.
fn right(net: &impl Module, images: &Images) -> TensorFuture {
    no_grad(|| net.forward(&images.x).argmax(1).eq(&images.y).sum_all())
}

/// The figures of a training, and the network that came out.
pub async fn train(
    model: Model,
    way: Way,
    device: &Device,
    seed: u64,
    show: bool,
    monitor: Option<&Monitor>,
) -> Outcome<(Figures, Sequential)> {
    device.seed(seed);
    let digits = Digits::on(device);
    let net = model.made(device);
    let mut optimizer = AdamW::new(net.parameters(), RATE).weight_decay(0.02);
    let steps_an_epoch = digits.train.len().div_ceil(BATCH);
    let steps = model.epochs() * steps_an_epoch;
    let schedule = Warmup::new(20, Cosine::new(RATE, steps as u64 - 20));
    device.waitall().await?;

    let (events, inbox) = mpsc::unbounded_channel();
    let reports = tokio::spawn(reporter(model, inbox, steps, show));
    let (began, mut barriers, mut step) = (Instant::now(), Barriers::default(), 0);
    for epoch in 0..model.epochs() {
        for batch in digits.train.batches(BATCH, seed + epoch as u64) {
            barriers.wait(device.ready()).await;
            let loss = net.forward(&batch.x).cross_entropy(&batch.y, ());
            optimizer.set_lr(schedule.lr(step));
            match monitor {
                None => optimizer.minimize(&loss).detach(),
                Some(monitor) => {
                    let gradients = grad(&loss, optimizer.parameters());
                    optimizer.step(&gradients).detach();
                    monitor.step(&loss.stop_gradient());
                    // What it would clip is not computed: nobody looks at it.
                    let (_, norm) = clip_grad_norm(&gradients, f64::INFINITY);
                    monitor.value("gradient norm", &norm);
                    monitor.number("rate", schedule.lr(step));
                }
            }
            step += 1;
            let loss = loss.stop_gradient();
            if way == Way::Naive {
                let value = barriers.wait(loss.item::<f32>()).await?;
                assert!(value.is_finite());
            }
            events.send(Event::Step(loss))?;
        }
        net.eval();
        let right = right(&net, &digits.held_out);
        net.train();
        if way == Way::Naive {
            barriers.wait(right.item::<i64>()).await?;
        }
        if let Some(monitor) = monitor {
            let share = right.to_dtype(DType::F32) / digits.held_out.len() as f32;
            monitor.value("held out, right", &share);
        }
        events.send(Event::Epoch(right, digits.held_out.len()))?;
    }
    drop(events);
    let reported = reports.await?.map_err(|error| format!("{}: {error}", model.name()))?;
    let figures = Figures {
        accuracy: reported.accuracies.last().copied().unwrap_or(0.0),
        steps,
        seconds: began.elapsed().as_secs_f64(),
        barriers: barriers.count,
        barrier_s: barriers.time.as_secs_f64(),
        losses: reported.losses,
        accuracies: reported.accuracies,
    };
    Ok((figures, net))
}
