//! Setup for every part: the device, the arguments, and a check.

use crate::{output, timeline};
use futensor::{CpuOptions, Device, Stats};
use std::fmt::Display;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

pub struct Arguments {
    device: Option<String>,
    quick: bool,
    pub json: Option<PathBuf>,
    pub trace: Option<PathBuf>,
}

pub const USAGE: &str = "\
usage: async_computation [--device cpu|cuda:N] [--quick] [--json FILE] [--trace FILE.html]

  --device cpu|cuda:N  where it runs: by default the first GPU, and the CPU where there is none
  --quick              smaller matrices and counts: some 10 s instead of 20
  --json FILE          writes the figures down
  --trace FILE.html    draws what ran, who waited and where the device idled: a page, and beside \
  it the
                       picture as .svg and the events for Perfetto as .json
  --help               this page";

impl Arguments {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut arguments = Arguments { device: None, quick: false, json: None, trace: None };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
            match word.as_str() {
                "--device" => arguments.device = Some(value()?),
                "--quick" => arguments.quick = true,
                "--json" => arguments.json = Some(value()?.into()),
                "--trace" => arguments.trace = Some(value()?.into()),
                _ => return Err(format!("{word} is not known\n{USAGE}")),
            }
        }
        let traces = arguments.trace.iter().flat_map(|file| timeline::files(file));
        for file in arguments.json.iter().cloned().chain(traces) {
            output::check(&file)?;
        }
        Ok(arguments)
    }
}

pub struct Setup {
    pub device: Device,
    pub quick: bool,
    is_cpu: bool,
}

impl Setup {
    pub fn new(arguments: &Arguments) -> Outcome<Setup> {
        let device = match arguments.device.as_deref() {
            None => Device::try_gpu(0),
            Some(name) => name.parse()?,
        };
        let is_cpu = device == Device::cpu();
        Ok(Setup { device, quick: arguments.quick, is_cpu })
    }

    /// A device whose counters, memory and queue are this part's alone. There is one of each GPU,
    /// so there it is the same device.
    pub fn own(&self, options: CpuOptions) -> Device {
        if self.is_cpu { Device::cpu_with(options) } else { self.device.clone() }
    }

    /// True on the CPU, where an op may be a closure.
    pub fn is_cpu(&self) -> bool {
        self.is_cpu
    }

    /// The larger count, or with `--quick` the smaller one.
    pub fn count(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

/// Cores, which is also how many threads the CPU device has.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// An error where a claim does not hold.
pub fn check(holds: bool, claim: impl Display) -> Outcome<()> {
    if holds { Ok(()) } else { Err(format!("not so: {claim}").into()) }
}

/// `n` ops, and not one fewer, have run since `before`.
pub fn check_ran(device: &Device, before: Stats, n: usize) -> Outcome<()> {
    let now = device.stats();
    let ran = (now.started + now.fused) - (before.started + before.fused);
    check(ran == n as u64, format!("{n} ops were queued and {ran} have run"))
}

/// What a closure returns, and the time until it does.
pub fn timed<R>(scope: impl FnOnce() -> R) -> (R, Duration) {
    let from = Instant::now();
    (scope(), from.elapsed())
}

/// What a future gives, and the time from its first poll to its end.
pub async fn timed_await<R>(future: impl Future<Output = R>) -> (R, Duration) {
    let from = Instant::now();
    (future.await, from.elapsed())
}

/// The middle one. Sorts.
pub fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}
