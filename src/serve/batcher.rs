//! `Batcher`: many requests, few batches. Its doors; what is behind them is `queue`.

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
/// The function gets the requests of a batch, in the order of their coming, and returns a value for
/// each. It queues work, like any code on tensors, and waits for nothing; [`rows`](fn@super::rows)
/// cuts a batch's result into its rows. Dropping an [`Answer`] withdraws its request.
///
/// One bad request does not fail its batch: requests that failed together (their values have one
/// root error, the function panicked, or came back with too few values) are run again in smaller
/// batches, until the error is that of a request alone. Of n requests about sqrt(n) groups are
/// made; those of a group that fails are run one by one. So none is computed more than three times,
/// and where all groups fail, the function or the device is at fault, and it is left at that. The
/// function may see a request more than once; [`isolate(false)`](BatchOptions::isolate) has it see
/// each once. A panic or a wrong number of values is named by the line of [`new`](Batcher::new).
///
/// Clones share the queue. Nothing here needs a runtime; deadlines are kept by a thread of the
/// process, unless [`BatchOptions::timer`] brings another clock.
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

/// A place in the queue, as `poll_ready` gets one for the next `call`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    None,
    Asked(u64),
    Held,
}

impl<R: Send + 'static> Batcher<R> {
    /// A batcher whose batches take requests as they come.
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
    /// assert!(bad.await.unwrap_err().is_index());  // and its error is its own
    /// for (answer, want) in [(a, 3.0), (b, 1.0), (c, 4.0)] {
    ///     assert_eq!(answer.await?.to_vec::<f32>().await?, [want]);
    /// }
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Where no thread can be started that tells the time, and the options have no
    /// [`timer`](BatchOptions::timer), every request is refused and says so.
    #[track_caller]
    pub fn new(
        options: BatchOptions,
        forward: impl Fn(&[R]) -> Vec<TensorFuture> + Send + Sync + 'static,
    ) -> Batcher<R> {
        Batcher::grouped(options, |_| 0, forward)
    }

    /// A batcher whose batches are of requests with the same key: sentences of about the same
    /// length, say. The oldest request decides which key is next.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::serve::{BatchOptions, Batcher, rows};
    /// use futensor::{Device, stack};
    /// let device = Device::cpu();
    /// // Sentences of one length, so that none is padded.
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
    /// Where no thread can be started that tells the time, and the options have no
    /// [`timer`](BatchOptions::timer), every request is refused and says so.
    #[track_caller]
    pub fn grouped(
        options: BatchOptions,
        key: impl Fn(&R) -> u64 + Send + Sync + 'static,
        forward: impl Fn(&[R]) -> Vec<TensorFuture> + Send + Sync + 'static,
    ) -> Batcher<R> {
        let queue = Queue::new(options, Box::new(key), Box::new(forward), Location::caller());
        Batcher { queue, place: Place::None }
    }

    /// Takes a request in, or says in its answer that the queue is full or closed.
    ///
    /// # Errors
    /// Those of the answer: [`is_refused`](Error::is_refused) where it was not taken in, else what
    /// its batch or its row failed with.
    #[track_caller]
    pub fn submit(&self, request: R) -> Answer {
        self.queue.submit(request, self.queue.places.try_admit(), Location::caller())
    }

    /// Takes a request in, or gives it back at once where the queue is full or closed: a server
    /// answers 503.
    ///
    /// # Errors
    /// The request.
    #[track_caller]
    pub fn try_submit(&self, request: R) -> Result<Answer, R> {
        let place = self.queue.places.try_admit();
        self.queue.enter(request, place, Location::caller()).map_err(|(request, _)| request)
    }

    /// Refuses new requests from now on; those that wait go out as soon as they may.
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

    /// What it has done and has in hand.
    pub fn stats(&self) -> BatchStats {
        self.queue.stats()
    }
}

impl<R: Send + 'static> tower_service::Service<R> for Batcher<R> {
    type Response = Tensor;
    type Error = Error;
    type Future = Answer;

    /// Ready once a place in the queue is this clone's; places go first come, first served.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let queue = self.queue.clone();
        if let Some(reason) = queue.closed() {
            // Nobody's line is known here: `poll_ready` is called by layers and executors.
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
        // The gate opens for all when the batcher is closed.
        if queue.closed().is_some() { self.poll_ready(cx) } else { Poll::Ready(Ok(())) }
    }

    #[track_caller]
    fn call(&mut self, request: R) -> Answer {
        // Under tower's layers the caller is tower.
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

/// A panic of the function, a key or a drop of a request leaves nothing half done.
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
