//! How a [`Batcher`](super::Batcher) gathers, and what it says of itself. Written by its user, read by `batcher`.

use super::timer::Timer;
use std::sync::Arc;
use std::time::Duration;

/// How a [`Batcher`](super::Batcher) gathers. Start from the default and change what matters.
#[derive(Clone)]
pub struct BatchOptions {
    pub(super) batch_max: usize,
    pub(super) delay: Duration,
    pub(super) eager: bool,
    pub(super) in_flight: usize,
    pub(super) queue: usize,
    pub(super) timer: Option<Arc<dyn Timer>>,
}

impl Default for BatchOptions {
    fn default() -> BatchOptions {
        BatchOptions {
            batch_max: 32,
            delay: Duration::from_millis(2),
            eager: true,
            in_flight: 2,
            queue: 256,
            timer: None,
        }
    }
}

impl BatchOptions {
    /// Requests in a batch at most; 32 by default.
    ///
    /// ```
    /// use futensor::serve::{BatchOptions, Batcher, ManualTimer, rows};
    /// use futensor::Device;
    /// let timer = ManualTimer::new();
    /// let options = BatchOptions::default().batch_max(2).eager(false).timer(timer.clone());
    /// let batcher = Batcher::new(options, |x: Vec<f32>| {
    ///     let n = x.len();
    ///     rows(&Device::cpu().from_vec(x, [n, 1]))
    /// });
    /// let answers = [1.0, 2.0, 3.0].map(|x| batcher.submit(x));
    /// assert_eq!((batcher.stats().batches, batcher.stats().waiting), (1, 1));
    /// # drop(answers);
    /// ```
    pub fn batch_max(mut self, batch_max: usize) -> BatchOptions {
        self.batch_max = batch_max.max(1);
        self
    }
    /// How long a request waits for company at most, while fewer than `in_flight` batches are under way;
    /// 2 ms by default.
    ///
    /// ```
    /// use futensor::serve::{BatchOptions, Batcher, ManualTimer, rows};
    /// use futensor::Device;
    /// use std::time::Duration;
    /// let timer = ManualTimer::new();
    /// let options = BatchOptions::default().delay(Duration::from_millis(5)).eager(false).timer(timer.clone());
    /// let batcher = Batcher::new(options, |x: Vec<f32>| {
    ///     let n = x.len();
    ///     rows(&Device::cpu().from_vec(x, [n, 1]))
    /// });
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
    /// Whether a request that finds no batch under way goes out at once (the default), or waits for company
    /// even then.
    ///
    /// ```
    /// use futensor::serve::{BatchOptions, Batcher, ManualTimer, rows};
    /// use futensor::Device;
    /// let timer = ManualTimer::new();
    /// let options = BatchOptions::default().eager(true).timer(timer.clone());
    /// let batcher = Batcher::new(options, |x: Vec<f32>| {
    ///     let n = x.len();
    ///     rows(&Device::cpu().from_vec(x, [n, 1]))
    /// });
    /// let answer = batcher.submit(1.0);
    /// assert_eq!(batcher.stats().batches, 1);
    /// # drop(answer);
    /// ```
    pub fn eager(mut self, eager: bool) -> BatchOptions {
        self.eager = eager;
        self
    }
    /// Batches under way at once; 2 by default: one that runs, and one that is queued behind it.
    ///
    /// ```
    /// use futensor::serve::{BatchOptions, Batcher};
    /// use futensor::{SimOptions, Device};
    /// let (device, simulation) = Device::simulated(SimOptions::new(1));    // does nothing by itself
    /// let options = BatchOptions::default().batch_max(1).in_flight(2);
    /// let batcher = Batcher::new(options, move |x: Vec<f32>| vec![device.zeros([4]) + x[0]]);
    /// let answers = [1.0, 2.0, 3.0].map(|x| batcher.submit(x));
    /// assert_eq!((batcher.stats().in_flight, batcher.stats().waiting), (2, 1));
    /// # drop((answers, simulation));
    /// ```
    pub fn in_flight(mut self, in_flight: usize) -> BatchOptions {
        self.in_flight = in_flight.max(1);
        self
    }
    /// Requests that may wait; 256 by default. With that many `poll_ready` is pending and
    /// [`try_submit`](super::Batcher::try_submit) refuses.
    ///
    /// ```
    /// use futensor::serve::{BatchOptions, Batcher, ManualTimer, rows};
    /// use futensor::Device;
    /// let timer = ManualTimer::new();
    /// let options = BatchOptions::default().queue(2).eager(false).timer(timer.clone());
    /// let batcher = Batcher::new(options, |x: Vec<f32>| {
    ///     let n = x.len();
    ///     rows(&Device::cpu().from_vec(x, [n, 1]))
    /// });
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
    /// Another timer than the process's timer thread.
    pub fn timer(mut self, timer: impl Timer) -> BatchOptions {
        self.timer = Some(Arc::new(timer));
        self
    }
}

impl std::fmt::Debug for BatchOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BatchOptions { batch_max, delay, eager, in_flight, queue, timer: _ } = self;
        let mut s = f.debug_struct("BatchOptions");
        s.field("batch_max", batch_max).field("delay", delay).field("eager", eager);
        s.field("in_flight", in_flight).field("queue", queue).finish_non_exhaustive()
    }
}

/// What a batcher has done, and has in hand. `requests` is the sum of `waiting`, `running` and of those that
/// have ended: `answered + failed + left_waiting + left_running`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchStats {
    /// Requests that were taken in.
    pub requests: u64,
    /// Requests that were not: the queue was full, or closed.
    pub refused: u64,
    /// Requests that have their value.
    pub answered: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Requests whose answer was dropped while they waited: no batch has seen them.
    pub left_waiting: u64,
    /// Requests whose answer was dropped later: what only they wanted is skipped where it had not begun.
    pub left_running: u64,
    /// Batches that were handed to the function.
    pub batches: u64,
    /// How many batches had one request, two, and so on.
    pub sizes: Vec<u64>,
    /// Requests that wait for a batch.
    pub waiting: usize,
    /// Requests whose batch is under way, or whose answer nobody has looked at yet.
    pub running: usize,
    /// Batches under way.
    pub in_flight: usize,
    /// Time from coming to being handed to the function, of all requests together.
    pub queued_total: Duration,
    /// The longest.
    pub queued_worst: Duration,
    /// Time from coming to the answer, of all that were answered.
    pub answer_total: Duration,
    /// The longest.
    pub answer_worst: Duration,
}
