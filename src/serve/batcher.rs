//! `Batcher`: gathers many requests into few batches. The public methods; `queue` has the state.

use super::answer::Answer;
use super::options::{BatchOptions, BatchStats};
use super::queue::Queue;
use crate::engine::pressure::Turn;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::future::{Tensor, TensorFuture};
use crate::tensor::watch;
use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Gathers requests into batches: a tower `Service` from a request to its own value.
///
/// The function gets the requests of a batch, in the order of arrival, and returns a value for
/// each. It queues work, like any code on tensors, and must not wait; [`rows`](fn@super::rows)
/// splits a batch's result into rows. Dropping an [`Answer`] withdraws its request.
///
/// One bad request does not fail its batch. Requests that failed together (their values have the
/// same root error, or the function panicked or returned too few values) are rerun in smaller
/// batches, until the error belongs to a single request. n requests form about sqrt(n) groups, and
/// the requests of a group that fails are run one by one, so no request is computed more than three
/// times. If all groups fail, the function or the device is at fault, and there is no further
/// rerun. The function may thus see a request more than once; with
/// [`isolate(false)`](BatchOptions::isolate) it sees each request once. The error of a panic or of
/// a wrong number of values has the line of [`new`](Batcher::new).
///
/// Clones share the queue. A batcher needs no runtime: a thread of the process keeps its deadlines,
/// unless [`BatchOptions::timer`] sets another clock.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::serve::{BatchOptions, Batcher, rows};
/// use futensor::{Device, stack};
/// let device = Device::cpu();
/// let weight = device.arange(0.0, 6.0, 1.0).reshape([2, 3]);
/// let own = device.clone();
/// let batcher = Batcher::new(BatchOptions::default(), move |requests: &[[f32; 2]]| {
///     let inputs: Vec<_> = requests.iter().map(|r| own.from_slice(r, [2])).collect();
///     rows(&stack(&inputs, 0).matmul(&weight))
/// });
/// let (a, b) = (batcher.submit([1.0, 0.0]), batcher.submit([0.0, 1.0]));
/// assert_eq!(b.await?.to_vec::<f32>().await?, [3.0, 4.0, 5.0]);
/// assert_eq!(a.await?.to_vec::<f32>().await?, [0.0, 1.0, 2.0]);
/// assert_eq!(batcher.stats().answered, 2);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
pub struct Batcher<R> {
    queue: Arc<Queue<R>>,
    place: Place,
}

/// A place in the queue that `poll_ready` acquires for the next `call`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    None,
    Asked(u64),
    Held,
}

impl<R: Send + 'static> Batcher<R> {
    /// A batcher whose batches take requests in the order of arrival.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::serve::{BatchOptions, Batcher, rows};
    /// use futensor::{DType, Device};
    /// let device = Device::cpu();
    /// let table = device.arange(0.0, 10.0, 1.0).reshape([10, 1]);
    /// let batcher = Batcher::new(BatchOptions::default().batch_max(4), move |ids: &[i64]| {
    ///     rows(&table.index_select(0, &device.from_slice(ids, [ids.len()])))
    /// });
    /// let [a, b, bad, c] = [3, 1, 99, 4].map(|id| batcher.submit(id));     // one batch
    /// assert!(bad.await.unwrap_err().is_index());  // only its own answer fails
    /// for (answer, want) in [(a, 3.0), (b, 1.0), (c, 4.0)] {
    ///     assert_eq!(answer.await?.to_vec::<f32>().await?, [want]);
    /// }
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the timer thread cannot be started, and the options have no
    /// [`timer`](BatchOptions::timer), every request is refused with an error that says so.
    #[track_caller]
    pub fn new(
        options: BatchOptions,
        forward: impl Fn(&[R]) -> Vec<TensorFuture> + Send + Sync + 'static,
    ) -> Batcher<R> {
        Batcher::grouped(options, |_| 0, forward)
    }

    /// A batcher whose batches contain only requests with the same key, for example sentences of
    /// about the same length. The oldest request decides which key is next.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::serve::{BatchOptions, Batcher, rows};
    /// use futensor::{Device, stack};
    /// let device = Device::cpu();
    /// // Batches of sentences of equal length, so that none is padded.
    /// let options = BatchOptions::default().batch_max(2);
    /// let batcher =
    ///     Batcher::grouped(options, |words: &Vec<i64>| words.len() as u64, move |batch| {
    ///     let all: Vec<_> = batch.iter().map(|words| device.from_slice(words, [words.len()]))
    ///         .collect();
    ///     rows(&stack(&all, 0).sum(1))
    /// });
    /// let [a, b, c] = [vec![1, 2], vec![7], vec![3, 4]].map(|words| batcher.submit(words));
    /// assert_eq!((a.await?.item::<i64>().await?, c.await?.item::<i64>().await?), (3, 7));
    /// assert_eq!(b.await?.item::<i64>().await?, 7);                        // after its delay
    /// assert_eq!(batcher.stats().sizes, [1, 1]);  // a batch of one, and one of two
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the timer thread cannot be started, and the options have no
    /// [`timer`](BatchOptions::timer), every request is refused with an error that says so.
    #[track_caller]
    pub fn grouped(
        options: BatchOptions,
        key: impl Fn(&R) -> u64 + Send + Sync + 'static,
        forward: impl Fn(&[R]) -> Vec<TensorFuture> + Send + Sync + 'static,
    ) -> Batcher<R> {
        let queue = Queue::new(options, Box::new(key), Box::new(forward), Location::caller());
        Batcher { queue, place: Place::None }
    }

    /// Accepts a request; if the queue is full or closed, the answer has the error.
    ///
    /// # Errors
    /// The answer fails with [`is_refused`](Error::is_refused) if the request was not accepted,
    /// otherwise with the error of its batch or its row.
    #[track_caller]
    pub fn submit(&self, request: R) -> Answer {
        self.queue.submit(request, self.queue.places.try_admit(), Location::caller())
    }

    /// Accepts a request, or returns it immediately if the queue is full or closed: a server
    /// answers 503.
    ///
    /// # Errors
    /// The request.
    #[track_caller]
    pub fn try_submit(&self, request: R) -> Result<Answer, R> {
        let place = self.queue.places.try_admit();
        self.queue.enter(request, place, Location::caller()).map_err(|(request, _)| request)
    }

    /// Refuses new requests from now on; waiting requests go out as soon as possible.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::serve::{BatchOptions, Batcher};
    /// use futensor::Device;
    /// let batcher =
    ///     Batcher::new(BatchOptions::default(), |x: &[f32]|
    ///         vec![Device::cpu().from_slice(x, [1])]);
    /// let answer = batcher.submit(1.0);
    /// batcher.close();
    /// assert_eq!(answer.await?.item::<f32>().await?, 1.0);
    /// assert!(batcher.submit(2.0).await.unwrap_err().is_refused());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn close(&self) {
        self.queue.close()
    }

    /// The counters.
    pub fn stats(&self) -> BatchStats {
        self.queue.stats()
    }
}

impl<R: Send + 'static> tower_service::Service<R> for Batcher<R> {
    type Response = Tensor;
    type Error = Error;
    type Future = Answer;

    /// Ready once this clone has a place in the queue; places are granted first come, first served.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let queue = self.queue.clone();
        if let Some(reason) = queue.closed() {
            // The user's line is unknown here: layers and executors call `poll_ready`.
            return Poll::Ready(Err(Error::new(ErrorKind::Refused, "batcher", reason, queue.at)));
        }
        if self.place == Place::None {
            self.place = Place::Asked(queue.places.ask());
        }
        if let Place::Asked(key) = self.place {
            if queue.places.turn(key, cx.waker()) == Turn::Waiting {
                return Poll::Pending;
            }
            self.place = Place::Held;
        }
        // Closing the batcher wakes all that wait for a place.
        if queue.closed().is_some() { self.poll_ready(cx) } else { Poll::Ready(Ok(())) }
    }

    #[track_caller]
    fn call(&mut self, request: R) -> Answer {
        // Inside tower's layers the caller is tower.
        let caller = Location::caller();
        let at = if watch::is_foreign(caller) { self.queue.at } else { caller };
        let held = std::mem::replace(&mut self.place, Place::None);
        if let Place::Asked(key) = held {
            self.queue.places.withdraw(key);
        }
        let place = held == Place::Held || self.queue.places.try_admit();
        self.queue.submit(request, place, at)
    }
}

/// A panic in the function, in a key or in the drop of a request leaves the state consistent.
impl<R> std::panic::UnwindSafe for Batcher<R> {}
impl<R> std::panic::RefUnwindSafe for Batcher<R> {}

impl<R> Clone for Batcher<R> {
    fn clone(&self) -> Batcher<R> {
        Batcher { queue: self.queue.clone(), place: Place::None }
    }
}

impl<R> Drop for Batcher<R> {
    fn drop(&mut self) {
        match self.place {
            Place::None => {}
            Place::Asked(key) => self.queue.places.withdraw(key),
            Place::Held => self.queue.places.release(),
        }
    }
}

impl<R> std::fmt::Debug for Batcher<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batcher({} waiting)", self.queue.waiting())
    }
}
