//! A batcher's queue: its requests, when a batch is due, and the results of batches.
//!
//! The thread that submits the request that makes a batch due runs the function immediately: the
//! function only queues work, which takes microseconds. A batch is due when it is full, when its
//! oldest request has waited long enough, or (if eager) when no batch is running. The number of
//! running batches is limited, so that requests gather while the device is busy. Wakers on the rows
//! detect the end of a batch without observing the rows: all of them have been woken or dropped
//! once every row is complete, failed, or unobserved, even if no answer is polled. Locks here are
//! short, and never held around the function, a waker or the drop of a tensor.
//!
//! Requests that failed together are rerun (`again`): in about sqrt(n) groups, then one by one for
//! the groups that fail again. That takes two rounds, with n more rows for the groups and sqrt(n)
//! for each bad request; halving would take log2(n) rounds and twice as many rows. If every group
//! fails, the function is at fault, and there is no further rerun.

use super::again::{self, Group, Trial};
use super::answer::{Answer, AnswerQueue, End};
use super::options::{BatchOptions, BatchStats};
use super::slot::{Granted, Slot};
use super::timer::{Clock, ManualTimer, ThreadTimer};
use super::waiting::Waiting;
use crate::engine::events;
use crate::engine::pressure::{Pressure, QueueLimits};
use crate::error::{Error, ErrorKind, Result, number_of};
use crate::graph::asker::asker;
use crate::guard::{caught, contained};
use crate::sync::lock_plain as lock;
use crate::tensor::future::TensorFuture;
use std::collections::VecDeque;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

struct Item<R> {
    request: R,
    slot: Arc<Slot<R>>,
    came: Duration,
}

struct State<R> {
    waiting: Waiting<u64, Item<R>>,
    /// Reruns, which go before waiting requests.
    again: VecDeque<Group<R>>,
    /// Why no more requests are accepted.
    closed: Option<&'static str>,
    /// The last alarm that was set, until it rings.
    armed: Option<Duration>,
    stats: BatchStats,
}

/// The shared state of a batcher's clones.
pub struct Queue<R> {
    options: BatchOptions,
    clock: Clock,
    own: Weak<Queue<R>>,
    key: Box<dyn Fn(&R) -> u64 + Send + Sync>,
    forward: Box<dyn Fn(&[R]) -> Vec<TensorFuture> + Send + Sync>,
    /// The line of the function, for errors of the function itself.
    pub at: &'static Location<'static>,
    /// Places in the queue, first come, first served.
    pub places: Pressure,
    state: Mutex<State<R>>,
    /// Batches that have ended with failures.
    failed: Mutex<Vec<Group<R>>>,
    /// The number of requests that wait for a batch or a rerun, for code that may not take the
    /// lock.
    waiting: AtomicUsize,
    in_flight: AtomicUsize,
}

const FULL: &str = "the queue is full";
const CLOSED: &str = "the batcher is closed";
const UNTIMED: &str = "cannot start the timer thread: set a timer in the options";

impl<R> Queue<R> {
    /// The number of requests that wait for a batch.
    pub fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }
}

impl<R: Send + 'static> Queue<R> {
    /// An empty queue. The requests of a batch have one key; `at` is the line for the function's
    /// errors.
    pub fn new(
        options: BatchOptions,
        key: Box<dyn Fn(&R) -> u64 + Send + Sync>,
        forward: Box<dyn Fn(&[R]) -> Vec<TensorFuture> + Send + Sync>,
        at: &'static Location<'static>,
    ) -> Arc<Queue<R>> {
        let limits =
            QueueLimits { ops_max: usize::MAX, bytes_max: usize::MAX, permits_max: options.queue };
        let timer = options.timer.clone().or_else(|| Some(ThreadTimer::of_the_process()?));
        let closed = if timer.is_none() { Some(UNTIMED) } else { None };
        Arc::new_cyclic(|own| Queue {
            // A queue that accepts nothing needs no clock.
            clock: Clock::new(timer.unwrap_or_else(|| Arc::new(ManualTimer::new()))),
            own: own.clone(),
            key,
            forward,
            at,
            places: Pressure::new(limits),
            state: Mutex::new(State {
                waiting: Waiting::new(options.batch_max),
                again: VecDeque::new(),
                closed,
                armed: None,
                stats: BatchStats::default(),
            }),
            failed: Mutex::default(),
            waiting: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            options,
        })
    }

    /// Acquires a place and accepts a request, or returns the reason of the refusal.
    pub fn submit(
        self: &Arc<Self>,
        request: R,
        place: bool,
        at: &'static Location<'static>,
    ) -> Answer {
        match self.enter(request, place, at) {
            Ok(answer) => answer,
            Err((_, reason)) => Answer::refused(reason, self.clone(), self.now(), at),
        }
    }

    /// Refuses new requests from now on.
    pub fn close(self: &Arc<Self>) {
        lock(&self.state).closed.get_or_insert(CLOSED);
        self.places.open_gate();
        self.flush();
    }

    /// Why no more requests are accepted; `None` if they are.
    pub fn closed(&self) -> Option<&'static str> {
        lock(&self.state).closed
    }

    /// The time. A timer may call back in: no lock is held here.
    fn now(&self) -> Duration {
        let (now, has_broken) = self.clock.now();
        if has_broken {
            self.ring_anew(now);
        }
        now
    }

    /// Sets an alarm at this time.
    fn ring_at(&self, at: Duration) {
        if self.clock.wake_at(at, Waker::from(Arc::new(TimerWaker(self.own.clone())))) {
            self.ring_anew(self.clock.now().0);
        }
    }

    /// Handles an alarm that may be lost: the next look sets another one.
    fn ring_anew(&self, now: Duration) {
        lock(&self.state).armed = None;
        self.ring_at(now);
    }

    /// What it has done and has in hand.
    pub fn stats(&self) -> BatchStats {
        let mut stats = lock(&self.state).stats.clone();
        stats.in_flight = self.in_flight.load(SeqCst);
        stats
    }

    /// Accepts a request that has a `place` in the queue.
    pub fn enter(
        self: &Arc<Self>,
        request: R,
        place: bool,
        at: &'static Location<'static>,
    ) -> Result<Answer, (R, &'static str)> {
        let came = self.now();
        // The function may panic: the place is then returned.
        let mut place = place.then(|| Granted(&self.places));
        let key = (self.key)(&request);
        let slot = Arc::new(Slot::new(asker()));
        let entered = {
            let mut state = lock(&self.state);
            if place.is_some() && state.closed.is_none() {
                std::mem::forget(place.take());
                let id = state.waiting.push(key, Item { request, slot: slot.clone(), came });
                state.stats.requests += 1;
                self.count(&mut state);
                Ok(id)
            } else {
                state.stats.refused += 1;
                Err((request, state.closed.unwrap_or(FULL)))
            }
        };
        let answer = Answer::waiting(entered?, slot, self.clone(), came, at);
        self.flush();
        Ok(answer)
    }

    /// Stores the number of waiting requests.
    fn count(&self, state: &mut State<R>) {
        state.stats.waiting = state.waiting.len();
        self.waiting.store(state.waiting.len() + state.again.len(), SeqCst);
    }

    /// Runs every batch that is due.
    fn flush(self: &Arc<Self>) {
        loop {
            let failed = std::mem::take(&mut *lock(&self.failed));
            failed.into_iter().for_each(|group| self.judge(group));
            if let Some(group) = self.take_again() {
                let batch = group
                    .slots
                    .into_iter()
                    .filter_map(|slot| slot.take().map(|r| (r, slot)))
                    .unzip();
                self.run(batch, group.trial);
            } else if let Some(batch) = self.take_due() {
                for _ in 0..batch.len() {
                    self.places.release();
                }
                self.run(batch.into_iter().map(|item| (item.request, item.slot)).unzip(), None);
            } else {
                return;
            }
        }
    }

    /// Decides on reruns of a batch with failures.
    fn judge(&self, group: Group<R>) {
        let groups = again::groups(group);
        if !groups.is_empty() {
            let mut state = lock(&self.state);
            state.again.extend(groups);
            self.count(&mut state);
        }
    }

    /// Failed requests that may be rerun.
    fn take_again(&self) -> Option<Group<R>> {
        let mut state = lock(&self.state);
        if self.in_flight.load(SeqCst) >= self.options.in_flight {
            return None;
        }
        let group = state.again.pop_front()?;
        self.count(&mut state);
        state.stats.again += 1;
        self.begin(&mut state, group.slots.len());
        Some(group)
    }

    /// Counts a batch.
    fn begin(&self, state: &mut State<R>, len: usize) {
        self.in_flight.fetch_add(1, SeqCst);
        let stats = &mut state.stats;
        stats.batches += 1;
        if stats.sizes.len() < len {
            stats.sizes.resize(len, 0);
        }
        stats.sizes[len - 1] += 1;
    }

    /// A batch that is due.
    fn take_due(self: &Arc<Self>) -> Option<Vec<Item<R>>> {
        if self.waiting() == 0 {
            return None;
        }
        let now = self.now();
        let mut state = lock(&self.state);
        let under_way = self.in_flight.load(SeqCst);
        let (oldest, key) = state.waiting.oldest()?;
        if under_way >= self.options.in_flight {
            // The end of a running batch wakes the queue.
            return None;
        }
        let due = oldest.came.saturating_add(self.options.delay);
        let is_due = state.closed.is_some() || now >= due || self.options.eager && under_way == 0;
        let key = if is_due { Some(key) } else { state.waiting.full() };
        if state.armed.is_some_and(|at| at <= now) {
            state.armed = None;
        }
        let Some(key) = key else {
            if state.armed.is_none_or(|at| at > due) {
                state.armed = Some(due);
                drop(state);
                self.ring_at(due);
            }
            return None;
        };
        let batch = state.waiting.take(key);
        self.count(&mut state);
        self.begin(&mut state, batch.len());
        let waited = batch.iter().map(|item| now.saturating_sub(item.came));
        let (total, worst) = waited
            .fold((Duration::ZERO, Duration::ZERO), |(t, w), d| (t.saturating_add(d), w.max(d)));
        let stats = &mut state.stats;
        stats.running += batch.len();
        stats.queued_total = stats.queued_total.saturating_add(total);
        stats.queued_worst = stats.queued_worst.max(worst);
        Some(batch)
    }

    /// Runs the function and gives each request its value. The batch has been counted as running.
    fn run(
        self: &Arc<Self>,
        (requests, slots): (Vec<R>, Vec<Arc<Slot<R>>>),
        trial: Option<Trial<R>>,
    ) {
        // The error of a single request is its own.
        let stands = !self.options.isolate || slots.len() < 2;
        let group = Group { slots: slots.clone(), trial };
        let token = Arc::new(Token { queue: self.clone(), group: Mutex::new(Some(group)), stands });
        if requests.is_empty() {
            return;
        }
        let rows = {
            let _batch = events::batch(requests.len(), slots.iter().map(|slot| &slot.asker));
            self.rows(&requests).unwrap_or_else(|error| vec![Err(error); requests.len()])
        };
        let waker = Waker::from(token);
        for ((request, row), slot) in requests.into_iter().zip(rows).zip(slots) {
            if let Ok(row) = &row {
                // The waker is on the value's list but does not observe it: woken or dropped at its
                // end.
                row.node.completion.register(&mut None, &waker);
            }
            slot.give(request, row, stands);
        }
    }

    /// Calls the function on these requests; one value for each.
    fn rows(&self, requests: &[R]) -> Result<Vec<Result<TensorFuture>>> {
        match caught(|| (self.forward)(requests)) {
            Ok(rows) if rows.len() == requests.len() => Ok(rows.into_iter().map(Ok).collect()),
            Ok(rows) => {
                // A failed value may have any shape, and so any number of rows: its own error says
                // more.
                if let Some(error) = rows.iter().find_map(TensorFuture::error) {
                    return Err(error);
                }
                let n = number_of(requests.len(), "request", "requests");
                let got = number_of(rows.len(), "value", "values");
                let text = format!("the function returned {got} for a batch of {n}");
                Err(Error::new(ErrorKind::Argument, "batcher", text, self.at))
            }
            Err(words) => {
                let text = format!("the batch's function panicked: {words}");
                Err(Error::new(ErrorKind::Kernel, "batcher", text, self.at))
            }
        }
    }
}

/// The waker for the timer's alarm and the end of a batch. It holds a weak reference: otherwise a
/// timer that never advances would keep the queue alive, which keeps the timer.
struct TimerWaker<R>(Weak<Queue<R>>);

impl<R: Send + 'static> Wake for TimerWaker<R> {
    fn wake(self: Arc<Self>) {
        let Some(queue) = self.0.upgrade() else { return };
        // The drop of a request may panic; the timer's thread is shared.
        contained(|| queue.flush());
    }
}

impl<R: Send + 'static> AnswerQueue for Queue<R> {
    fn leave(&self, id: u64) -> bool {
        let item = {
            let mut state = lock(&self.state);
            let item = state.waiting.remove(id);
            self.count(&mut state);
            // In one update, so that a reader sees the request either waiting or gone.
            state.stats.left_waiting += item.is_some() as u64;
            item
        };
        let was_waiting = item.is_some();
        if was_waiting {
            self.places.release();
            contained(|| drop(item));
        }
        was_waiting
    }

    fn ended(&self, end: End, came: Duration) {
        let took = self.now().saturating_sub(came);
        let stats = &mut lock(&self.state).stats;
        match end {
            End::LeftRunning => {
                stats.running -= 1;
                stats.left_running += 1;
            }
            End::Failed => {
                stats.running -= 1;
                stats.failed += 1;
            }
            End::Answered => {
                stats.running -= 1;
                stats.answered += 1;
                stats.answer_total = stats.answer_total.saturating_add(took);
                stats.answer_worst = stats.answer_worst.max(took);
            }
        }
    }
}

/// Represents a running batch: the waiter lists of its rows hold it, and the last one drops it.
struct Token<R: Send + 'static> {
    queue: Arc<Queue<R>>,
    group: Mutex<Option<Group<R>>>,
    /// Whether the results are final.
    stands: bool,
}

impl<R: Send + 'static> Wake for Token<R> {
    fn wake(self: Arc<Self>) {}
}

impl<R: Send + 'static> Drop for Token<R> {
    /// Runs wherever a value completes, also on the engine's threads, so it only counts and wakes.
    fn drop(&mut self) {
        let queue = &self.queue;
        let group = lock(&self.group).take();
        let looked_at = |g: &Group<R>| {
            g.trial.is_some() || !self.stands && g.slots.iter().any(|slot| slot.error().is_some())
        };
        let group = group.filter(looked_at);
        let to_judge = group.is_some();
        if let Some(group) = group {
            lock(&queue.failed).push(group);
        }
        // SeqCst orders this with the push of a request and its check of the running batches.
        queue.in_flight.fetch_sub(1, SeqCst);
        if to_judge || queue.waiting.load(SeqCst) > 0 {
            queue.ring_at(queue.now());
        }
    }
}
