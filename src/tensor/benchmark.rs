//! A small timer: a name, a scope, awaited or not.

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

/// Times a scope and says so: what it took until calls returned, or until awaited work was done.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Benchmark, Device};
/// let device = Device::cpu();
/// let issue = Benchmark::new("issue").run(|| device.ones([10]) + 1.0);
/// let (y, issue) = issue;
/// let (done, wait) = Benchmark::new("complete").run_async(y.wait_to_read()).await;
/// done?;
/// assert!(issue.time + wait.time > std::time::Duration::ZERO);
/// assert!(wait.to_string().starts_with("complete: "));
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Benchmark {
    name: String,
}

/// What a [`Benchmark`] measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The benchmark's name.
    pub name: String,
    /// Wall-clock time.
    pub time: Duration,
}

impl Benchmark {
    /// A timer with a name.
    pub fn new(name: impl Into<String>) -> Benchmark {
        Benchmark { name: name.into() }
    }

    fn measured(self, from: Instant) -> Measured {
        Measured { name: self.name, time: from.elapsed() }
    }

    /// Runs a closure and times it until it returns.
    pub fn run<R>(self, scope: impl FnOnce() -> R) -> (R, Measured) {
        let from = Instant::now();
        let result = scope();
        (result, self.measured(from))
    }

    /// Awaits a future and times it from the first poll to its end.
    pub async fn run_async<R>(self, scope: impl Future<Output = R>) -> (R, Measured) {
        let from = Instant::now();
        let result = scope.await;
        (result, self.measured(from))
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.4} s", self.name, self.time.as_secs_f64())
    }
}
