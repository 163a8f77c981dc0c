//! The common part of the programs: their exploration, a source that is told when, and what may not
//! stay behind.

use futensor::custom::{CpuRun, Meta, Operation, Refusal, custom};
use futensor::schedule;
use futensor::{CpuOptions, Device, TensorFuture, block_on};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
use shuttle::sync::Mutex;
use shuttle::thread;
use shuttle::{Config, MaxSteps, Runner};
use std::future::Future;
use std::io::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Changes of priority in an order by priority: most faults need two or three.
const DEPTH: usize = 3;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a program under as many orders as `FUTENSOR_SCHEDULES` says, half of them by priority (PCT:
/// Burckhardt et al., ASPLOS 2010); or under the one of `FUTENSOR_SCHEDULE`.
pub fn explore(name: &str, program: fn()) {
    let run = move || {
        schedule::begin();
        program();
        schedule::end();
    };
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    // A program takes some thousands: one that takes so many goes round in a circle.
    config.max_steps = MaxSteps::FailAfter(200_000);
    if let Ok(order) = std::env::var("FUTENSOR_SCHEDULE") {
        Runner::new(ReplayScheduler::new_from_encoded(&order), config).run(run);
        return;
    }
    let orders = number("FUTENSOR_SCHEDULES").unwrap_or(2000) as usize;
    let seed = number("FUTENSOR_SEED").unwrap_or(0);
    println!(
        "{name}: {orders} orders of FUTENSOR_SEED={seed}; one that fails is printed, for \
            FUTENSOR_SCHEDULE"
    );
    // For as long as there is time, where that is said.
    config.max_time = number("FUTENSOR_SECONDS").map(|seconds| Duration::from_secs(seconds) / 2);
    let by_priority = orders / 2;
    let pct =
        Runner::new(PctScheduler::new_from_seed(seed, DEPTH, by_priority), config.clone()).run(run);
    let random =
        Runner::new(RandomScheduler::new_from_seed(seed, orders - by_priority), config).run(run);
    println!("{name}: {pct} and {random} were run");
}

/// A device of two threads.
pub fn device(change: impl FnOnce(CpuOptions) -> CpuOptions) -> Device {
    let options =
        CpuOptions::default().threads(2).nice(0).spread(false).linger(Duration::from_micros(1));
    Device::cpu_with(change(options))
}

/// Every handle has been dropped: soon nothing is queued, runs or lives. (What waits, and what is
/// in the task table, is looked for at the end of the order, when every thread of the engine has
/// ended.)
pub fn nothing_stays(device: Device) {
    block_on(device.waitall()).unwrap();
    soon(&device);
}

/// The same of a device that may have ended.
pub fn soon(device: &Device) {
    for _ in 0..2000 {
        let stats = device.stats();
        if (stats.queued, stats.in_flight, stats.bytes_live) == (0, 0, 0) {
            return;
        }
        thread::yield_now();
    }
    panic!("stays behind: {:?}", device.stats());
}

/// A source that brings a value when it is told to.
#[derive(Clone, Default)]
pub struct Letter(Arc<Mutex<(Option<Vec<f32>>, Option<Waker>)>>);

impl Letter {
    pub fn send(&self, values: Vec<f32>) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.0 = Some(values);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Letter {
    type Output = Result<Vec<f32>, Error>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock().unwrap();
        match state.0.take() {
            Some(values) => Poll::Ready(Ok(values)),
            None => {
                state.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// An identity that is no small step: a thread of the device's takes it up.
struct Large;

impl Operation for Large {
    fn name(&self) -> &str {
        "large"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(Meta::clone(inputs[0]))
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let values =
            run.inputs()[0].to_vec::<f32>().ok_or_else(|| Refusal::dtype("float32 only"))?;
        // Others come in between.
        thread::yield_now();
        run.output().fill_from(values);
        Ok(())
    }
    fn estimate_ns(&self, _: &[&Meta], _: &Meta) -> u64 {
        100_000
    }
}

pub fn large(x: &TensorFuture) -> TensorFuture {
    custom(Large, &[x])
}

/// Polls once, and gives up.
pub fn poll_once<F: Future + Unpin>(mut future: F) {
    let _ = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
}

pub fn values(x: &TensorFuture) -> Vec<f32> {
    block_on(x.to_vec::<f32>()).unwrap()
}
