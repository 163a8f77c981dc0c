//! The task that awaits losses and accuracies, and the table at the end.

use crate::model::Model;
use futensor::TensorFuture;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

/// What the training loop has queued. Nothing of it is there yet.
pub enum Event {
    /// The loss of a step.
    Step(TensorFuture),
    /// How many of so many held-out images were right after an epoch.
    Epoch(TensorFuture, usize),
}

/// What came out.
#[derive(Default)]
pub struct Reported {
    pub losses: Vec<f32>,
    pub accuracies: Vec<f64>,
}

/// Awaits each loss and accuracy as it comes, and shows it. Runs beside the loop, which waits for
/// none of it.
pub async fn reporter(
    model: Model,
    mut inbox: UnboundedReceiver<Event>,
    steps: usize,
    show: bool,
) -> futensor::Result<Reported> {
    let bar = if show { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar.set_prefix(model.name());
    let mut reported = Reported::default();
    while let Some(event) = inbox.recv().await {
        match event {
            Event::Step(loss) => {
                reported.losses.push(loss.item::<f32>().await?);
                bar.inc(1);
            }
            Event::Epoch(right, of) => {
                let right = right.item::<i64>().await?;
                reported.accuracies.push(right as f64 / of as f64);
            }
        }
        let loss = reported.losses.last().copied().unwrap_or(f32::NAN);
        let accuracy = reported.accuracies.last().copied().unwrap_or(0.0);
        bar.set_message(format!("loss {loss:.4}, held out {:.2} %", accuracy * 100.0));
    }
    bar.finish_and_clear();
    Ok(reported)
}

/// One training.
pub struct Figures {
    pub accuracy: f64,
    pub steps: usize,
    pub seconds: f64,
    pub barriers: usize,
    pub barrier_s: f64,
    pub losses: Vec<f32>,
    pub accuracies: Vec<f64>,
}

impl Figures {
    pub fn json(&self) -> Value {
        json!({
            "accuracy": self.accuracy,
            "steps": self.steps,
            "seconds": self.seconds,
            "barriers": self.barriers,
            "barrier_s": self.barrier_s,
        })
    }

    pub fn row(&self, model: Model, way: &str) -> String {
        format!(
            "{:<4} {way:<13} {:>8.2} % {:>6} {:>8.2} s {:>9} {:>9.3} s {:>11.0} us {:>8.0} us",
            model.name(),
            self.accuracy * 100.0,
            self.steps,
            self.seconds,
            self.barriers,
            self.barrier_s,
            self.step_us(),
            self.queueing_us(),
        )
    }

    fn step_us(&self) -> f64 {
        self.seconds / self.steps as f64 * 1e6
    }

    /// What the loop itself takes for a step: all but its waits.
    fn queueing_us(&self) -> f64 {
        (self.seconds - self.barrier_s) / self.steps as f64 * 1e6
    }
}

pub const HEAD: &str =
    "     loop          held out  steps      time  barriers  waited in them    a step  queueing";

/// What the two rows say, in words.
pub fn explained(queued: &Figures, awaited: &Figures) -> String {
    let (all, own) = (awaited.step_us(), awaited.queueing_us());
    format!(
        "     Of a step's {all:.0} us the loop takes {own:.0} to queue it and the device the rest. \
            Awaiting each loss, the device \n     \
         stands still while the next step is queued; that, and a wake-up, is all that queueing \
         ahead can save: {:.0} us here.\n     \
         The wait itself blocks nobody: the loop's thread is free for other tasks in both.\n\n",
        all - queued.step_us(),
    )
}
