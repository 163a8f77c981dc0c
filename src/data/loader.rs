//! `Loader` and `Epoch`: batches prefetched in order by threads that end with the stream.

use super::order::shuffled;
use crate::error::{Error, ErrorKind, Result, number_of};
use crate::guard::caught;
use crate::guard::wake_all;
use crate::tensor::device::Device;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

type Make<B> = dyn Fn(&[usize], &Device) -> Result<B> + Send + Sync;

/// A data set split into batches. Cheap to clone; [`epoch`](Loader::epoch) is one pass over it.
///
/// Its closure makes a batch from the indices of its examples. The closure may read files, decode
/// and block, since it runs on the stream's own threads.
#[doc(alias = "DataLoader")]
pub struct Loader<B> {
    make: Arc<Make<B>>,
    len: usize,
    batch_size: usize,
    seed: Option<u64>,
    drop_last: bool,
    /// The part of each batch, and the number of parts.
    part: (usize, usize),
    prefetch: usize,
    workers: usize,
}

impl<B> Clone for Loader<B> {
    fn clone(&self) -> Loader<B> {
        Loader { make: self.make.clone(), ..*self }
    }
}

impl<B> std::fmt::Debug for Loader<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("len", &self.len)
            .field("batch_size", &self.batch_size)
            .finish_non_exhaustive()
    }
}

impl<B: Send + 'static> Loader<B> {
    /// A loader for a data set of `len` examples; a closure makes a batch from their indices. By
    /// default: one example per batch, in order, two batches ahead, one thread.
    pub fn new(
        len: usize,
        make: impl Fn(&[usize], &Device) -> Result<B> + Send + Sync + 'static,
    ) -> Loader<B> {
        let make = Arc::new(make);
        Loader {
            make,
            len,
            batch_size: 1,
            seed: None,
            drop_last: false,
            part: (0, 1),
            prefetch: 2,
            workers: 1,
        }
    }

    /// The number of examples per batch; at least one.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, data::Loader};
    /// let loader = Loader::new(5, |at, _| Ok(at.to_vec())).batch_size(2);
    /// let mut batches = loader.epoch(0, &Device::cpu());
    /// assert_eq!(batches.next().await.unwrap()?, [0, 1]);
    /// assert_eq!((loader.batches(), batches.len()), (3, 2));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn batch_size(mut self, size: usize) -> Loader<B> {
        self.batch_size = size.max(1);
        self
    }

    /// Shuffles each epoch. The order depends only on seed and epoch, and is the same on every
    /// machine.
    ///
    /// ```
    /// use futensor::data::Loader;
    /// let loader = Loader::new(5, |at, _| Ok(at.to_vec())).shuffle(7);
    /// assert_eq!(loader.order(3), loader.order(3));
    /// assert_ne!(loader.order(3), loader.order(4));
    /// ```
    pub fn shuffle(mut self, seed: u64) -> Loader<B> {
        self.seed = Some(seed);
        self
    }

    /// Leaves out the last batch if it is smaller than the others.
    ///
    /// ```
    /// use futensor::data::Loader;
    /// let loader = Loader::new(5, |at, _| Ok(at.to_vec())).batch_size(2);
    /// assert_eq!((loader.batches(), loader.drop_last(true).batches()), (3, 2));
    /// ```
    pub fn drop_last(mut self, drop: bool) -> Loader<B> {
        self.drop_last = drop;
        self
    }

    /// Loads only one part of each batch, for one of several ranks; parts are as equal as possible.
    /// All ranks load parts of the same batches, in the same order. A last batch with fewer
    /// examples than parts is left out; if that leaves no batch, an epoch gives only an error.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, data::Loader};
    /// let all = Loader::new(9, |at, _| Ok(at.to_vec())).batch_size(4);
    /// let (first, second) = (all.clone().part(0, 2), all.part(1, 2));
    /// assert_eq!(first.batches(), 2);
    /// assert_eq!(first.epoch(0, &Device::cpu()).next().await.unwrap()?, [0, 1]);
    /// assert_eq!(second.epoch(0, &Device::cpu()).next().await.unwrap()?, [2, 3]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "DistributedSampler")]
    pub fn part(mut self, part: usize, of: usize) -> Loader<B> {
        let of = of.max(1);
        self.part = (part.min(of - 1), of);
        self
    }

    /// The number of batches that are made ahead of the last received one; at least one. The stream
    /// keeps them in memory.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, data::Loader};
    /// use std::sync::{Arc, atomic::{AtomicUsize, Ordering::SeqCst}};
    /// let made = Arc::new(AtomicUsize::new(0));
    /// let counter = made.clone();
    /// let loader = Loader::new(100, move |_, _| Ok(counter.fetch_add(1, SeqCst))).prefetch(3);
    /// let mut batches = loader.epoch(0, &Device::cpu());
    /// batches.next().await.unwrap()?;
    /// assert!(made.load(SeqCst) <= 4);  // one is received, three wait
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "prefetch_factor")]
    pub fn prefetch(mut self, batches: usize) -> Loader<B> {
        self.prefetch = batches.max(1);
        self
    }

    /// The number of threads that make batches; at least one. The order of batches does not change.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, data::Loader};
    /// let loader = Loader::new(5, |at, _| Ok(at.to_vec())).workers(3).prefetch(3);
    /// let mut batches = loader.epoch(0, &Device::cpu());
    /// for i in 0..5 {
    ///     assert_eq!(batches.next().await.unwrap()?, [i]);
    /// }
    /// assert!(batches.next().await.is_none() && batches.is_empty());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "num_workers")]
    pub fn workers(mut self, workers: usize) -> Loader<B> {
        self.workers = workers.max(1);
        self
    }

    /// The number of batches in an epoch.
    pub fn batches(&self) -> usize {
        let rest = self.len % self.batch_size;
        let last = !self.drop_last && rest >= self.part.1;
        self.len / self.batch_size + last as usize
    }

    /// The indices of the examples in the order of an epoch.
    ///
    /// ```
    /// use futensor::data::Loader;
    /// let loader = Loader::new(5, |at, _| Ok(at.to_vec())).shuffle(3);
    /// let mut order = loader.order(0);
    /// assert_eq!(order, loader.order(0));
    /// order.sort();
    /// assert_eq!(order, [0, 1, 2, 3, 4]);
    /// ```
    ///
    /// # Panics
    /// If there is no memory for the indices, as when any `Vec` is collected. (An epoch returns an
    /// error instead.)
    pub fn order(&self, epoch: u64) -> Vec<usize> {
        match self.seed {
            None => (0..self.len).collect(),
            Some(seed) => {
                let order = shuffled(self.len, seed, epoch, || true);
                order.unwrap_or_else(|| panic!("{}", no_memory_for(self.len)))
            }
        }
    }

    /// One pass over the data set. Its threads start now, and shuffle. Errors in the threads, such
    /// as no memory for the indices, have the line of this call.
    #[track_caller]
    pub fn epoch(&self, epoch: u64, device: &Device) -> Epoch<B> {
        let at = Location::caller();
        let shared = Arc::new(Shared {
            at,
            make: self.make.clone(),
            len: self.len,
            seed: self.seed.map(|seed| (seed, epoch)),
            batch_size: self.batch_size,
            part: self.part,
            total: self.batches(),
            prefetch: self.prefetch,
            device: device.clone(),
            unwanted: AtomicBool::new(false),
            state: Mutex::new(State {
                next: 0,
                given: 0,
                made: BTreeMap::new(),
                waker: None,
                order: None,
                workers: 0,
            }),
            changed: Condvar::new(),
        });
        let parts = self.part.1;
        if shared.total > 0 && self.batch_size < parts {
            let examples = number_of(self.batch_size, "example", "examples");
            let text = format!("a batch of {examples} cannot be split into {parts} parts");
            shared.fail(0, Error::new(ErrorKind::Argument, "Loader::epoch", text, at));
        } else if let Err(error) = shared.start(self.workers.min(self.prefetch).min(shared.total)) {
            let text = format!("cannot start a thread for batches: {error}");
            shared.fail(0, Error::new(ErrorKind::Source, "Loader::epoch", text, at));
        }
        Epoch { shared, ended: false }
    }
}

struct State<B> {
    /// The next batch for a worker.
    next: usize,
    /// The number of batches that the stream has returned.
    given: usize,
    made: BTreeMap<usize, Result<B>>,
    waker: Option<Waker>,
    /// The indices of all examples, once they are shuffled. The threads free them: freeing much
    /// memory takes time, which the caller should not pay.
    order: Option<Arc<Vec<usize>>>,
    /// The number of threads that have not ended.
    workers: usize,
}

/// The shared state of workers and stream.
struct Shared<B> {
    at: &'static Location<'static>,
    make: Arc<Make<B>>,
    len: usize,
    /// Seed and epoch of the shuffle; `None` without one.
    seed: Option<(u64, u64)>,
    batch_size: usize,
    part: (usize, usize),
    total: usize,
    prefetch: usize,
    device: Device,
    /// The stream was dropped.
    unwanted: AtomicBool,
    state: Mutex<State<B>>,
    /// Signals room for a batch, a finished shuffle, or the end of the stream.
    changed: Condvar,
}

impl<B: Send + 'static> Shared<B> {
    /// Starts the threads: the first one here, and each thread the next, so that the caller's cost
    /// is constant. If the system has no more threads, fewer run.
    fn start(self: &Arc<Self>, workers: usize) -> std::io::Result<()> {
        if workers == 0 {
            return Ok(());
        }
        let own = self.clone();
        self.lock().workers += 1;
        let thread = std::thread::Builder::new().name(format!("futensor-data-{workers}"));
        let started = thread.spawn(move || {
            let _ = own.start(workers - 1);
            own.work();
            own.end();
        });
        if started.is_err() {
            self.end();
        }
        started.map(drop)
    }

    /// Ends a thread. The last one frees the order.
    fn end(&self) {
        let mut state = self.lock();
        state.workers -= 1;
        let order = if state.workers == 0 { state.order.take() } else { None };
        drop(state);
        drop(order);
    }
}

impl<B> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_wanted(&self) -> bool {
        !self.unwanted.load(Ordering::Relaxed)
    }

    /// Waits until something has changed.
    fn wait<'a>(&self, state: MutexGuard<'a, State<B>>) -> MutexGuard<'a, State<B>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The indices of the examples, and the range of a batch. The thread that takes the first batch
    /// shuffles, and the others wait for it. `None` if the stream was dropped, or without memory
    /// for them.
    fn numbers(&self, batch: usize) -> Option<(Arc<Vec<usize>>, Range<usize>)> {
        // Below `len`, since `batch` is below `batches`.
        let start = batch * self.batch_size;
        let end = self.len.min(start.saturating_add(self.batch_size));
        let (part, of) = self.part;
        let cut =
            |part: usize| start + ((end - start) as u128 * part as u128 / of as u128) as usize;
        let own = cut(part)..cut(part + 1);
        let no_memory = |examples: usize| {
            let text = no_memory_for(examples);
            self.fail(batch, Error::new(ErrorKind::OutOfMemory, "Loader::epoch", text, self.at));
        };
        let Some((seed, epoch)) = self.seed else {
            let mut numbers = Vec::new();
            if numbers.try_reserve_exact(own.len()).is_err() {
                no_memory(own.len());
                return None;
            }
            numbers.extend(own.clone());
            return Some((Arc::new(numbers), 0..own.len()));
        };
        if batch == 0 {
            let Some(order) = shuffled(self.len, seed, epoch, || self.is_wanted()) else {
                no_memory(self.len);
                return None;
            };
            self.lock().order = Some(Arc::new(order));
            self.changed.notify_all();
        }
        let mut state = self.lock();
        loop {
            match &state.order {
                Some(order) => return Some((order.clone(), own)),
                None if !self.is_wanted() => return None,
                None => state = self.wait(state),
            }
        }
    }

    /// The loop of a worker: makes the next batch unless it is too far ahead, until the stream
    /// ends.
    fn work(&self) {
        loop {
            let batch = {
                let mut state = self.lock();
                let is_far =
                    |s: &State<B>| s.next < self.total && s.next - s.given >= self.prefetch;
                while self.is_wanted() && is_far(&state) {
                    state = self.wait(state);
                }
                if !self.is_wanted() || state.next >= self.total {
                    return;
                }
                state.next += 1;
                state.next - 1
            };
            let Some((numbers, own)) = self.numbers(batch) else { return };
            let made = caught(|| (self.make)(&numbers[own], &self.device));
            let made = made.unwrap_or_else(|words| {
                let text = format!("batch {batch} panicked: {words}");
                Err(Error::new(ErrorKind::Source, "Loader::epoch", text, self.at))
            });
            match made {
                Ok(made) => self.put(batch, Ok(made)),
                Err(error) => return self.fail(batch, error),
            }
        }
    }

    fn put(&self, batch: usize, made: Result<B>) {
        let mut state = self.lock();
        let unused = match self.is_wanted() {
            false => Some(made),
            true => state.made.insert(batch, made),
        };
        let waker = state.waker.take();
        drop(state);
        // An unwanted batch is dropped outside the lock.
        drop(unused);
        wake_all(waker);
    }

    /// Ends the stream after this error.
    fn fail(&self, batch: usize, error: Error) {
        self.lock().next = self.total;
        self.put(batch, Err(error));
        self.changed.notify_all();
    }
}

/// One pass over a data set: a `Stream` of batches in order. Dropping it ends its threads after
/// their current batches, without waiting for them.
#[must_use = "batches that are not received are wasted"]
pub struct Epoch<B> {
    shared: Arc<Shared<B>>,
    ended: bool,
}

impl<B> std::fmt::Debug for Epoch<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoch").field("left", &self.len()).finish_non_exhaustive()
    }
}

impl<B> Epoch<B> {
    /// The number of remaining batches.
    pub fn len(&self) -> usize {
        if self.ended { 0 } else { self.shared.total - self.shared.lock().given }
    }

    /// True if no batch remains.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next batch; `None` at the end.
    ///
    /// # Errors
    /// The error that the closure returned, or its panic; then the stream ends.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    #[allow(clippy::should_implement_trait)] // A stream has no iterator.
    pub fn next(&mut self) -> NextBatch<'_, B> {
        NextBatch(self)
    }

    fn poll_one(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<B>>> {
        let fresh = cx.waker().clone();
        let mut state = self.shared.lock();
        if self.ended || state.given == self.shared.total {
            return Poll::Ready(None);
        }
        let given = state.given;
        match state.made.remove(&given) {
            Some(made) => {
                state.given += 1;
                self.ended = made.is_err();
                if self.ended {
                    self.shared.unwanted.store(true, Ordering::Relaxed);
                }
                drop(state);
                self.shared.changed.notify_all();
                Poll::Ready(Some(made))
            }
            None => {
                let before = state.waker.replace(fresh);
                drop(state);
                drop(before);
                Poll::Pending
            }
        }
    }
}

impl<B> futures_core::Stream for Epoch<B> {
    type Item = Result<B>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_one(cx)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.len()))
    }
}

impl<B> Drop for Epoch<B> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        self.shared.unwanted.store(true, Ordering::Relaxed);
        let made = std::mem::take(&mut state.made);
        drop(state);
        self.shared.changed.notify_all();
        drop(made);
    }
}

/// The future of [`Epoch::next`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct NextBatch<'a, B>(&'a mut Epoch<B>);

impl<B> Future for NextBatch<'_, B> {
    type Output = Option<Result<B>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_one(cx)
    }
}

/// The message for a lack of memory for the indices.
fn no_memory_for(examples: usize) -> String {
    format!("no memory for the indices of {}", number_of(examples, "example", "examples"))
}
