//! The options and counters of a [`Batcher`](super::Batcher).

use super::timer::Timer;
use std::sync::Arc;
use std::time::Duration;

/// Options of a [`Batcher`](super::Batcher). Start from the default and change what you need.
///
/// A batch goes out when it is full ([`batch_max`](Self::batch_max)), or when its oldest request
/// has waited for [`delay`](Self::delay), if fewer than [`in_flight`](Self::in_flight) batches are
/// running. So 20 simultaneous requests go out as batches of 8, 8 and, 2 ms later, 4:
///
/// ```
/// use futensor::serve::{BatchOptions, Batcher, ManualTimer, rows};
/// use futensor::Device;
/// use std::time::Duration;
/// let timer = ManualTimer::new();
/// let options = BatchOptions::default().batch_max(8).delay(Duration::from_millis(2)).in_flight(8)
///     .timer(timer.clone());
/// let batcher =
///     Batcher::new(options, |x: &[f32]| rows(&Device::cpu().from_slice(x, [x.len(), 1])));
/// let answers: Vec<_> = (0..20).map(|i| batcher.submit(i as f32)).collect();
/// assert_eq!(batcher.stats().batches, 2);
/// timer.advance(Duration::from_millis(2));
/// assert_eq!(batcher.stats().sizes, [0, 0, 0, 1, 0, 0, 0, 2]);
/// # drop(answers);
/// ```
///
/// With [`eager(true)`](Self::eager) a single request does not wait if no batch is running.
#[derive(Clone)]
pub struct BatchOptions {
    pub(super) batch_max: usize,
    pub(super) delay: Duration,
    pub(super) eager: bool,
    pub(super) isolate: bool,
    pub(super) in_flight: usize,
    pub(super) queue: usize,
    pub(super) timer: Option<Arc<dyn Timer>>,
}

impl Default for BatchOptions {
    fn default() -> BatchOptions {
        BatchOptions {
            batch_max: 32,
            delay: Duration::from_millis(2),
            eager: false,
            isolate: true,
            in_flight: 2,
            queue: 256,
            timer: None,
        }
    }
}

impl BatchOptions {
    /// The most requests in a batch; 32 by default.
    ///
    /// ```
    /// use futensor::serve::{BatchOptions, Batcher, ManualTimer, rows};
    /// use futensor::Device;
    /// let timer = ManualTimer::new();
    /// let options = BatchOptions::default().batch_max(2).timer(timer.clone());
    /// let batcher =
    ///     Batcher::new(options, |x: &[f32]| rows(&Device::cpu().from_slice(x, [x.len(), 1])));
    /// let answers = [1.0, 2.0, 3.0].map(|x| batcher.submit(x));
    /// assert_eq!((batcher.stats().batches, batcher.stats().waiting), (1, 1));
    /// # drop(answers);
    /// ```
    pub fn batch_max(mut self, batch_max: usize) -> BatchOptions {
        self.batch_max = batch_max.max(1);
        self
    }
    /// The longest time that a request waits for other requests to batch with, while fewer than
    /// `in_flight` batches are running; 2 ms by default. With 0 a batch takes the requests that are
    /// waiting at that moment.
    ///
    /// ```
    /// use futensor::serve::{BatchOptions, Batcher, ManualTimer, rows};
    /// use futensor::Device;
    /// use std::time::Duration;
    /// let timer = ManualTimer::new();
    /// let options = BatchOptions::default().delay(Duration::from_millis(5)).timer(timer.clone());
    /// let batcher =
    ///     Batcher::new(options, |x: &[f32]| rows(&Device::cpu().from_slice(x, [x.len(), 1])));
    /// let answer = batcher.submit(1.0);
    /// timer.advance(Duration::from_millis(4));
    /// assert_eq!(batcher.stats().batches, 0);
    /// timer.advance(Duration::from_millis(1));
    /// assert_eq!(batcher.stats().batches, 1);
    /// # drop(answer);
    /// ```
    pub fn delay(mut self, delay: Duration) -> BatchOptions {
        self.delay = delay;
        self
    }
    /// Whether a request goes out immediately if no batch is running. By default it waits for other
    /// requests even then. With `eager`, requests gather only while the device is busy: a single
    /// request has no delay, but the first of many simultaneous requests goes alone, and if each
    /// completes before the next arrives, all do.
    ///
    /// ```
    /// use futensor::serve::{BatchOptions, Batcher, ManualTimer, rows};
    /// use futensor::Device;
    /// let timer = ManualTimer::new();
    /// let options = BatchOptions::default().eager(true).timer(timer.clone());
    /// let batcher =
    ///     Batcher::new(options, |x: &[f32]| rows(&Device::cpu().from_slice(x, [x.len(), 1])));
    /// let answer = batcher.submit(1.0);
    /// assert_eq!(batcher.stats().batches, 1);
    /// # drop(answer);
    /// ```
    pub fn eager(mut self, eager: bool) -> BatchOptions {
        self.eager = eager;
        self
    }
    /// The most batches in flight; 2 by default: one that runs, and one that is queued behind it.
    ///
    /// ```
    /// use futensor::serve::{BatchOptions, Batcher};
    /// use futensor::{Device, sim::SimOptions};
    /// let (device, simulation) = Device::simulated(SimOptions::new(1));  // runs nothing by itself
    /// let options = BatchOptions::default().batch_max(1).in_flight(2);
    /// let batcher = Batcher::new(options, move |x: &[f32]| vec![device.zeros([4]) + x[0]]);
    /// let answers = [1.0, 2.0, 3.0].map(|x| batcher.submit(x));
    /// assert_eq!((batcher.stats().in_flight, batcher.stats().waiting), (2, 1));
    /// # drop((answers, simulation));
    /// ```
    pub fn in_flight(mut self, in_flight: usize) -> BatchOptions {
        self.in_flight = in_flight.max(1);
        self
    }
    /// The most waiting requests; 256 by default. At the limit, `poll_ready` is pending and
    /// [`try_submit`](super::Batcher::try_submit) refuses.
    ///
    /// ```
    /// use futensor::serve::{BatchOptions, Batcher, ManualTimer, rows};
    /// use futensor::Device;
    /// let timer = ManualTimer::new();
    /// let options = BatchOptions::default().queue(2).timer(timer.clone());
    /// let batcher =
    ///     Batcher::new(options, |x: &[f32]| rows(&Device::cpu().from_slice(x, [x.len(), 1])));
    /// let answers = [batcher.submit(1.0), batcher.submit(2.0)];
    /// assert_eq!(batcher.try_submit(3.0).unwrap_err(), 3.0);
    /// assert!(futures::executor::block_on(batcher.submit(4.0)).unwrap_err().is_refused());
    /// assert_eq!(batcher.stats().refused, 2);
    /// # drop(answers);
    /// ```
    pub fn queue(mut self, queue: usize) -> BatchOptions {
        self.queue = queue.max(1);
        self
    }
    /// Whether requests that failed together are rerun in smaller batches, so that only the bad
    /// request gets the error; true by default. With false, the function sees each request once,
    /// and a batch fails as a whole.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::serve::{BatchOptions, Batcher, rows};
    /// use futensor::Device;
    /// let options = BatchOptions::default().batch_max(2).isolate(false);
    /// let batcher = Batcher::new(options, |x: &[f32]| {
    ///     assert!(x.iter().all(|x| *x > 0.0), "positive numbers only");
    ///     rows(&Device::cpu().from_slice(x, [x.len(), 1]))
    /// });
    /// let (good, bad) = (batcher.submit(1.0), batcher.submit(-1.0));
    /// assert!(bad.await.is_err() && good.await.is_err());
    /// # });
    /// ```
    pub fn isolate(mut self, isolate: bool) -> BatchOptions {
        self.isolate = isolate;
        self
    }
    /// Sets a timer instead of the timer thread of the process.
    pub fn timer(mut self, timer: impl Timer) -> BatchOptions {
        self.timer = Some(Arc::new(timer));
        self
    }
}

// All but the timer, which is a part of the program.
#[cfg(feature = "serde")]
crate::configuration::configured! { BatchOptions;
    batch_max: usize;
    delay: Duration;
    eager: bool;
    isolate: bool;
    in_flight: usize;
    queue: usize;
}

impl std::fmt::Debug for BatchOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BatchOptions { batch_max, delay, eager, isolate, in_flight, queue, timer: _ } = self;
        let mut s = f.debug_struct("BatchOptions");
        s.field("batch_max", batch_max)
            .field("delay", delay)
            .field("eager", eager)
            .field("isolate", isolate);
        s.field("in_flight", in_flight).field("queue", queue).finish_non_exhaustive()
    }
}

/// The counters of a batcher. `requests` is the sum of `waiting`, `running` and the ended requests,
/// `answered + failed + left_waiting + left_running`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchStats {
    /// Requests that were accepted.
    pub requests: u64,
    /// Requests that were refused, because the queue was full or closed.
    pub refused: u64,
    /// Requests that got their value.
    pub answered: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Requests whose answer was dropped while they waited: they were in no batch.
    pub left_waiting: u64,
    /// Requests whose answer was dropped later: work that only they needed is skipped if it had not
    /// begun.
    pub left_running: u64,
    /// Batches that were passed to the function.
    pub batches: u64,
    /// Batches that were reruns of requests that had failed together.
    pub again: u64,
    /// The number of batches with one request, with two, and so on.
    pub sizes: Vec<u64>,
    /// Requests that wait for a batch.
    pub waiting: usize,
    /// Requests whose batch is running, or whose answer has not been polled to its end.
    pub running: usize,
    /// Batches that are running.
    pub in_flight: usize,
    /// The total time of all requests from arrival to the call of the function.
    pub queued_total: Duration,
    /// The longest of these times.
    pub queued_worst: Duration,
    /// The total time from arrival to the answer, of the answered requests.
    pub answer_total: Duration,
    /// The longest of these times.
    pub answer_worst: Duration,
}
