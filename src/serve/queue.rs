//! A batcher's queue: what is in it, when a batch is due, and what becomes of it.
//!
//! Whoever brings the request that makes a batch due runs the batch's function on the spot: it only
//! queues work, so that takes microseconds. A batch is due when it is full, when its oldest request
//! has waited long enough, or when nothing is under way; and at most so many are under way at once,
//! so that requests gather while the device is busy. The end of a batch is noticed by wakers on its
//! rows that observe nothing: all have been woken or dropped when every row is there, has failed,
//! or is wanted no more, whether or not anybody polls an answer. Locks here are short, and never
//! held around the function, a waker or a drop of a tensor.
//!
//! Requests that failed together are run again (`again`): in about sqrt(n) groups, then those of
//! the groups that fail again one by one. That takes two rounds, n rows more for the groups and
//! sqrt(n) for each bad request, where halving would take log2(n) rounds and twice as many rows.
//! Where every group fails, the function is at fault: it is left at that.

use super::again::{self, Group, Trial};
use super::answer::{Answer, AnswerQueue, End};
use super::options::{BatchOptions, BatchStats};
use super::slot::{Granted, Slot};
use super::timer::{Clock, ManualTimer, ThreadTimer};
use super::waiting::Waiting;
use crate::engine::pressure::{Pressure, QueueLimits};
use crate::error::{Error, ErrorKind, Result, number_of};
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
    /// They go before those that wait.
    again: VecDeque<Group<R>>,
    /// Why nothing is taken in any more.
    closed: Option<&'static str>,
    /// The alarm that was asked for last, while it has not rung.
    armed: Option<Duration>,
    stats: BatchStats,
}

/// What the clones of a batcher share.
pub struct Queue<R> {
    options: BatchOptions,
    clock: Clock,
    own: Weak<Queue<R>>,
    key: Box<dyn Fn(&R) -> u64 + Send + Sync>,
    forward: Box<dyn Fn(&[R]) -> Vec<TensorFuture> + Send + Sync>,
    /// Where the function came from: its own mistakes are named by it.
    pub at: &'static Location<'static>,
    /// Places in the queue, first come, first served.
    pub places: Pressure,
    state: Mutex<State<R>>,
    /// Batches that have ended and of which some failed.
    failed: Mutex<Vec<Group<R>>>,
    /// How many wait for a batch, in the queue or to be run again, for those who may not take the
    /// lock.
    waiting: AtomicUsize,
    in_flight: AtomicUsize,
}

const FULL: &str = "the queue is full";
const CLOSED: &str = "the batcher is closed";
const UNTIMED: &str =
    "no thread can be started that tells the time: bring a timer with the options";

impl<R> Queue<R> {
    /// How many wait for a batch.
    pub fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }
}

impl<R: Send + 'static> Queue<R> {
    /// Of nobody yet. Batches are of one key; the function's mistakes are named by `at`.
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
            // Where nothing is taken in, nothing waits for a time.
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

    /// Takes a request in whose place in the queue is granted here, or says why not.
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

    /// Why it takes nothing in any more, where that is so.
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

    /// Has the queue looked at then.
    fn ring_at(&self, at: Duration) {
        if self.clock.wake_at(at, Waker::from(Arc::new(TimerWaker(self.own.clone())))) {
            self.ring_anew(self.clock.now().0);
        }
    }

    /// The alarm may be lost: the next look sets another one.
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

    /// Takes a request in whose `place` in the queue was granted.
    pub fn enter(
        self: &Arc<Self>,
        request: R,
        place: bool,
        at: &'static Location<'static>,
    ) -> Result<Answer, (R, &'static str)> {
        let came = self.now();
        // The function may panic: the place goes back then.
        let mut place = place.then(|| Granted(&self.places));
        let key = (self.key)(&request);
        let slot = Arc::new(Slot::default());
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

    /// Notes how many wait.
    fn count(&self, state: &mut State<R>) {
        state.stats.waiting = state.waiting.len();
        self.waiting.store(state.waiting.len() + state.again.len(), SeqCst);
    }

    /// Hands out every batch that is due.
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

    /// What comes of a batch of which some failed.
    fn judge(&self, group: Group<R>) {
        let groups = again::groups(group);
        if !groups.is_empty() {
            let mut state = lock(&self.state);
            state.again.extend(groups);
            self.count(&mut state);
        }
    }

    /// Requests that failed and may be run again.
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
            // The end of one of them rings.
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

    /// Runs the function and gives each request what is its own. The batch is counted as under way.
    fn run(
        self: &Arc<Self>,
        (requests, slots): (Vec<R>, Vec<Arc<Slot<R>>>),
        trial: Option<Trial<R>>,
    ) {
        // Alone, a request has nobody else to blame.
        let stands = !self.options.isolate || slots.len() < 2;
        let group = Group { slots: slots.clone(), trial };
        let token = Arc::new(Token { queue: self.clone(), group: Mutex::new(Some(group)), stands });
        if requests.is_empty() {
            return;
        }
        let rows = self.rows(&requests).unwrap_or_else(|error| vec![Err(error); requests.len()]);
        let waker = Waker::from(token);
        for ((request, row), slot) in requests.into_iter().zip(rows).zip(slots) {
            if let Ok(row) = &row {
                // On the list of the value, which it does not observe: woken or dropped at its end.
                row.node.completion.register(&mut None, &waker);
            }
            slot.give(request, row, stands);
        }
    }

    /// What the function makes of these requests, a value for each.
    fn rows(&self, requests: &[R]) -> Result<Vec<Result<TensorFuture>>> {
        match caught(|| (self.forward)(requests)) {
            Ok(rows) if rows.len() == requests.len() => Ok(rows.into_iter().map(Ok).collect()),
            Ok(rows) => {
                // A failed value may have any shape, so any number of rows: its own error says
                // more.
                if let Some(error) = rows.iter().find_map(TensorFuture::error) {
                    return Err(error);
                }
                let n = number_of(requests.len(), "request", "requests");
                let got = number_of(rows.len(), "value", "values");
                let text = format!("the batch of {n} came back with {got}");
                Err(Error::new(ErrorKind::Argument, "batcher", text, self.at))
            }
            Err(words) => {
                let text = format!("the batch's function panicked: {words}");
                Err(Error::new(ErrorKind::Kernel, "batcher", text, self.at))
            }
        }
    }
}

/// The timer's alarm, or the end of a batch. It keeps nothing: a timer that is never moved on would
/// keep the queue, which keeps the timer.
struct TimerWaker<R>(Weak<Queue<R>>);

impl<R: Send + 'static> Wake for TimerWaker<R> {
    fn wake(self: Arc<Self>) {
        let Some(queue) = self.0.upgrade() else { return };
        // A drop of a request may panic; the timer's thread is everybody's.
        contained(|| queue.flush());
    }
}

impl<R: Send + 'static> AnswerQueue for Queue<R> {
    fn leave(&self, id: u64) -> bool {
        let item = {
            let mut state = lock(&self.state);
            let item = state.waiting.remove(id);
            self.count(&mut state);
            // In one go: who sees that it waits no more sees where it went.
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

/// Stands for a batch under way: the rows' lists of waiters hold it, and it goes with the last of
/// them.
struct Token<R: Send + 'static> {
    queue: Arc<Queue<R>>,
    group: Mutex<Option<Group<R>>>,
    /// Whatever became of it.
    stands: bool,
}

impl<R: Send + 'static> Wake for Token<R> {
    fn wake(self: Arc<Self>) {}
}

impl<R: Send + 'static> Drop for Token<R> {
    /// Runs wherever a value ends, the engine's threads included: it counts, and rings.
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
        // In one order with the push of a request and its look at what is under way.
        queue.in_flight.fetch_sub(1, SeqCst);
        if to_judge || queue.waiting.load(SeqCst) > 0 {
            queue.ring_at(queue.now());
        }
    }
}
