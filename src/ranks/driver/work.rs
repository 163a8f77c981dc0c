//! The work of the driving thread: it takes orders in sequence, waits for operands by wakers,
//! starts the calls that the protocol releases, and polls the engine while calls are in progress.
//!
//! An idle thread sleeps, but lingers for a moment before that, since calls often follow each
//! other. The engine has at most [`AT_ONCE`] calls of a lane (the calls of all members, or those
//! between two ranks), and gets the next one only when one of them completes: each call that it has
//! is polled, and holds the memory of its result.

use super::{Asks, Driver, Engine, Gives, Job, Order};
use crate::engine::exchange::{Call, Key, Through, What, Words};
use crate::error::{Error, ErrorKind, bytes_of};
use crate::graph::value::{Buffer, Storage, Value, owners};
use crate::ranks::slot::Slot;
use crate::sync::lock_plain as lock;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// The most calls of a lane that the engine has at once.
const AT_ONCE: usize = 32;
/// The most orders that are taken before the engine is polled.
const ORDERS: usize = 256;
/// How long the thread stays awake with nothing to do.
const LINGER: Duration = Duration::from_micros(100);
/// How long it polls without a pause for an empty call, and per byte.
const EAGER: Duration = Duration::from_millis(2);
const EAGER_PER_BYTE: Duration = Duration::from_nanos(4);
/// The pause between two polls after that: another rank is late, and other threads may need the
/// core.
const PAUSE: Duration = Duration::from_micros(50);
/// The pause between two polls while nothing is in progress, and for how long polls go on.
const IDLE_PAUSE: Duration = Duration::from_millis(1);
const RESTLESS: Duration = Duration::from_secs(1);
/// How long calls in progress are awaited once all ranks have left in order: they have made the
/// same calls.
const LAST: Duration = Duration::from_secs(1);

pub(super) struct Work {
    driver: &'static Driver,
    engine: Box<dyn Engine>,
    jobs: HashMap<Key, Held>,
    started: HashMap<Key, Under>,
    /// By group, and within it by kind: calls of all, sends to a rank, receives from a rank.
    lanes: HashMap<(Key, u8, usize), Lane>,
    ended: Vec<(Call, Through)>,
    finishes: bool,
    /// When all ranks had left.
    over: Option<Instant>,
    /// The time of the last event, and how long after that the engine is polled without a pause.
    since: Instant,
    eager: Duration,
}

/// A job whose call has not been started, and its operand so far.
struct Held {
    job: Job,
    waker: Waker,
    from: Option<Box<Value>>,
}

/// A call that the engine has.
struct Under {
    world: Arc<dyn Asks>,
    slot: Arc<Slot>,
    gives: Gives,
    group: Key,
}

#[derive(Default)]
struct Lane {
    under_way: usize,
    /// Calls that may start, in order.
    waiting: VecDeque<Key>,
}

/// The outcome of a turn.
pub(super) enum Next {
    Turn,
    /// Sleep, at most this long.
    Sleep(Option<Duration>),
    /// The last turn; and whether the engine has finished in order.
    Over(bool),
}

/// A report for a world. Reporting may run wakers, which are user code.
pub(super) enum Tell {
    Ready(Arc<dyn Asks>, Key, Key, Result<(), String>),
    Done(Arc<dyn Asks>, Key, Key, Through),
    Say(Arc<dyn Asks>, u64, Words),
}

impl Tell {
    pub fn tell(self) {
        match self {
            Tell::Ready(world, group, ticket, operand) => world.ready(group.1, ticket.1, operand),
            Tell::Done(world, group, ticket, through) => world.done(group.1, ticket.1, through),
            Tell::Say(world, group, words) => world.say(group, words),
        }
    }
}

/// The waker of an operand.
struct WakeCall(&'static Driver, Key);

impl Wake for WakeCall {
    fn wake(self: Arc<WakeCall>) {
        self.0.order(Order::Woken(self.1));
    }
}

/// The memory of an operand without another owner, reused for the result.
fn in_place(
    engine: &dyn Engine,
    what: &What,
    from: &mut Option<Box<Value>>,
) -> Option<Arc<dyn Buffer>> {
    let is_own = |value: &Value| match &value.storage {
        Storage::Shared(buffer) => {
            value.placed.is_none() && owners(buffer) == 1 && engine.writes_over(&**buffer)
        }
        Storage::Inline(_) => false,
    };
    let value = from.take_if(|value| matches!(what, What::AllReduce(_)) && is_own(value))?;
    match value.storage {
        Storage::Shared(buffer) => Some(buffer),
        Storage::Inline(_) => None,
    }
}

fn lane_of(group: Key, what: &What) -> (Key, u8, usize) {
    match what {
        What::Send(rank) => (group, 1, *rank),
        What::Recv(rank) => (group, 2, *rank),
        _ => (group, 0, 0),
    }
}

impl Work {
    pub fn new(driver: &'static Driver, engine: Box<dyn Engine>) -> Work {
        Work {
            driver,
            engine,
            jobs: HashMap::new(),
            started: HashMap::new(),
            lanes: HashMap::new(),
            ended: Vec::new(),
            finishes: false,
            over: None,
            since: Instant::now(),
            eager: LINGER,
        }
    }

    /// Announces that another thread drives the engine from now on.
    pub fn moves(&mut self) {
        self.engine.moves();
    }

    /// Does all that can be done now.
    pub fn turn(&mut self, tells: &mut Vec<Tell>) -> Next {
        let mut busy = false;
        for _ in 0..ORDERS {
            let Some(order) = self.next_order() else { break };
            busy = true;
            self.take(order, tells);
        }
        let mut ended = std::mem::take(&mut self.ended);
        self.engine.poll(&mut ended);
        for (call, through) in ended.drain(..) {
            busy = true;
            self.ends(call, through, tells);
        }
        self.ended = ended;
        for (group, words) in self.engine.words() {
            let worlds = self.driver.worlds().into_iter().filter(|world| world.serial() == group.0);
            tells.extend(worlds.map(|world| Tell::Say(world, group.1, words.clone())));
        }
        let under_way = self.engine.in_flight() > 0;
        if self.finishes && self.driver.worlds().iter().all(|world| world.is_over().0) {
            let lost = self.driver.worlds().iter().any(|world| world.is_over().1);
            let in_order = !lost && !self.driver.has_lost.load(SeqCst);
            let over = *self.over.get_or_insert_with(Instant::now);
            if !in_order || self.lanes.is_empty() || over.elapsed() > LAST {
                return Next::Over(self.engine.finish(in_order));
            }
        }
        if busy {
            self.since = Instant::now();
            if !under_way {
                self.eager = LINGER;
            }
            return Next::Turn;
        }
        match self.since.elapsed() {
            idle if idle < self.eager => {
                std::thread::yield_now();
                Next::Turn
            }
            _ if under_way || self.finishes => Next::Sleep(Some(PAUSE)),
            // The engine may still have to send data of completed calls from its buffers.
            idle if idle < RESTLESS => Next::Sleep(Some(IDLE_PAUSE)),
            _ => Next::Sleep(None),
        }
    }

    fn next_order(&self) -> Option<Order> {
        if !self.driver.has_orders.load(SeqCst) {
            return None;
        }
        let mut inbox = lock(&self.driver.inbox);
        let order = inbox.orders.pop_front();
        self.driver.has_orders.store(!inbox.orders.is_empty(), SeqCst);
        order
    }

    fn take(&mut self, order: Order, tells: &mut Vec<Tell>) {
        match order {
            Order::Add(key, job) => {
                let waker = Waker::from(Arc::new(WakeCall(self.driver, key)));
                self.jobs.insert(key, Held { job: *job, waker, from: None });
                self.look(key, tells);
            }
            Order::Woken(key) => self.look(key, tells),
            Order::Go(key) => self.go(key, tells),
            Order::Hear(group, words) => self.engine.hear(group, words),
            Order::Abort(group) => {
                self.jobs.retain(|_, held| held.job.group != group);
                self.started.retain(|_, under| under.group != group);
                self.lanes.retain(|lane, _| lane.0 != group);
                self.engine.abort(group);
            }
            Order::Free(group) => self.engine.free(group),
            Order::Finish => self.finishes = true,
        }
    }

    /// Polls a job's operand.
    fn look(&mut self, key: Key, tells: &mut Vec<Tell>) {
        let Some(held) = self.jobs.get_mut(&key) else { return };
        let mut failed = None;
        if let Some(operand) = &mut held.job.operand {
            match Pin::new(operand).poll(&mut Context::from_waker(&held.waker)) {
                Poll::Pending => return,
                Poll::Ready(Ok(value)) => held.from = Some(Box::new(value)),
                Poll::Ready(Err(error)) => failed = Some(error),
            }
            held.job.operand = None;
        }
        let operand = failed.map_or(Ok(()), |error| held.job.fails(error));
        tells.push(Tell::Ready(held.job.world.clone(), held.job.group, key, operand));
    }

    /// Starts a released call: now, or once there is room in its lane.
    fn go(&mut self, key: Key, tells: &mut Vec<Tell>) {
        let Some(held) = self.jobs.get(&key) else { return };
        let name = lane_of(held.job.group, &held.job.what);
        self.lanes.entry(name).or_default().waiting.push_back(key);
        self.advance(name, tells);
    }

    fn advance(&mut self, name: (Key, u8, usize), tells: &mut Vec<Tell>) {
        while let Some(lane) = self.lanes.get_mut(&name).filter(|lane| lane.under_way < AT_ONCE) {
            let Some(key) = lane.waiting.pop_front() else {
                if lane.under_way == 0 {
                    self.lanes.remove(&name);
                }
                return;
            };
            lane.under_way += 1;
            match self.start(key, tells) {
                Some(bytes) => {
                    self.eager = self.eager.max(EAGER + EAGER_PER_BYTE * bytes.min(1 << 30) as u32)
                }
                None => self.lanes.entry(name).or_default().under_way -= 1,
            }
        }
    }

    /// Starts a call; returns its number of bytes.
    fn start(&mut self, key: Key, tells: &mut Vec<Tell>) -> Option<usize> {
        let Held { job, mut from, .. } = self.jobs.remove(&key)?;
        let (reads, group, mut writes, mut to) = (job.reads, job.group, 0, None);
        if let Some((n, port)) = job.result {
            let bytes = n * job.dtype.size();
            writes = n;
            to = in_place(&*self.engine, &job.what, &mut from)
                .or_else(|| self.engine.room(&port.memory, bytes));
            if to.is_none() {
                let text = format!("out of memory: {} on {}", bytes_of(bytes), port.profile.name);
                let error = Error::new(ErrorKind::OutOfMemory, job.op, text, job.at);
                tells.push(Tell::Ready(job.world.clone(), group, key, job.fails(error)));
                return None;
            }
        }
        let bytes = reads.max(writes) * job.dtype.size();
        let call =
            Call { ticket: key, group, what: job.what, dtype: job.dtype, reads, writes, from, to };
        let under = Under { world: job.world, slot: job.slot, gives: job.gives, group };
        self.started.insert(key, under);
        self.engine.start(call);
        Some(bytes)
    }

    fn ends(&mut self, call: Call, through: Through, tells: &mut Vec<Tell>) {
        let Some(under) = self.started.remove(&call.ticket) else { return };
        let Call { ticket, group, what, from, to, .. } = call;
        under.slot.bring(match under.gives {
            Gives::Result => to.map(|buffer| Value::contiguous(Storage::Shared(buffer))),
            Gives::Operand => from.map(|value| *value),
            Gives::Known(value) => Some(value),
        });
        tells.push(Tell::Done(under.world, group, ticket, through));
        let name = lane_of(group, &what);
        if let Some(lane) = self.lanes.get_mut(&name) {
            lane.under_way -= 1;
            self.advance(name, tells);
        }
    }
}
