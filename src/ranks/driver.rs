//! The one thread of a process that owns an engine.
//!
//! It is told of calls in their order, waits for their operands as any task does (by a waker),
//! starts what the protocol lets go, and polls the engine while anything is under way. Idle, it
//! sleeps; and it lingers a moment before that, since a call as a rule follows another.

use super::mpi::Mpi;
use super::protocol::Ticket;
use super::slot::Slot;
use crate::DType;
use crate::engine::exchange::{Call, Engine, Key, Through, What, Words};
use crate::engine::port::Port;
use crate::error::{Error, ErrorKind};
use crate::graph::value::{Buffer, Storage, Value, owners};
use crate::host::threads::lower_priority;
use crate::sync::lock_plain as lock;
use crate::tensor::creation::Arrival;
use crate::tensor::device::Device;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long it stays awake with nothing to do.
const LINGER: Duration = Duration::from_micros(100);
/// How long it polls without a pause while a call of no size is under way, and for each byte.
const EAGER: Duration = Duration::from_millis(2);
const EAGER_PER_BYTE: Duration = Duration::from_nanos(4);
/// Between two polls after that: whoever is waited for is late, and others may want the core.
const PAUSE: Duration = Duration::from_micros(50);
/// Between two polls while nothing is under way, and for how long there are any.
const IDLE_PAUSE: Duration = Duration::from_millis(1);
const RESTLESS: Duration = Duration::from_secs(1);
/// How long the engine's own end may take once everybody has left.
const LAST: Duration = Duration::from_secs(10);

/// Who asks for calls and is told of them: the world of a process. Told by the driver's thread.
pub(crate) trait Asks: Send + Sync {
    /// A call's operand is there, or has failed.
    fn ready(&self, group: u64, ticket: Ticket, operand: Result<(), String>);
    /// The engine is through with a call.
    fn done(&self, group: u64, ticket: Ticket, result: Through);
    /// The engine has this to say to the other members of a group.
    fn say(&self, group: u64, words: Words);
    /// Part of its groups' keys.
    fn serial(&self) -> u64;
    /// The process ends: this is the last that is heard of it.
    fn leave(&self);
    /// True once it has left, and so has everybody else, or is lost; and whether any is lost.
    fn is_over(&self) -> (bool, bool);
}

/// A call before it is started.
pub(crate) struct Job {
    pub world: Arc<dyn Asks>,
    pub group: Key,
    pub slot: Arc<Slot>,
    pub what: What,
    pub dtype: DType,
    pub operand: Option<Arrival>,
    /// Elements that the engine reads.
    pub reads: usize,
    /// Elements of the result, in memory of this device, where the engine writes one.
    pub result: Option<(usize, &'static Port)>,
    /// What the call gives, where it is no result of the engine's.
    pub gives: Gives,
    pub op: &'static str,
    pub at: &'static Location<'static>,
}

impl Job {
    /// This rank's own error, and what the others are told of it.
    fn fails(&self, error: Error) -> Result<(), String> {
        let text = error.to_string();
        self.slot.fail(error);
        Err(text)
    }
}

/// The memory of an operand that nobody else has, for what it is reduced to.
fn in_place(engine: &dyn Engine, what: &What, from: &mut Option<Box<Value>>) -> Option<Arc<dyn Buffer>> {
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

/// What the value of a call is.
#[derive(Clone, Debug)]
pub(crate) enum Gives {
    /// What the engine has written, or nothing.
    Result,
    /// Its own operand, once all is through.
    Operand,
    /// This.
    Known(Value),
}

enum Order {
    Add(Key, Box<Job>),
    Woken(Key),
    Go(Key),
    Hear(Key, Words),
    Abort(Key),
    Free(Key),
    Finish,
}

#[derive(Default)]
struct Inbox {
    orders: VecDeque<Order>,
    /// Nothing more happens; and whether all went in order.
    finished: Option<bool>,
}

pub(crate) struct Driver {
    /// Types that its engine adds up.
    combines: Vec<DType>,
    inbox: Mutex<Inbox>,
    has_orders: AtomicBool,
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
    done: Condvar,
    worlds: Mutex<Vec<Weak<dyn Asks>>>,
    /// Whether a world that is gone had lost a rank.
    has_lost: AtomicBool,
}

/// All that there are: MPI's, without a device, and one a device that has a library of its own.
static DRIVERS: Mutex<Vec<(Option<usize>, Result<&'static Driver, String>)>> = Mutex::new(Vec::new());

/// The driver of this process that a group goes by, with its engine.
///
/// # Errors
/// There is no library: where it was looked for, and how to have one.
pub(crate) fn driver(home: Option<&Device>) -> Result<&'static Driver, String> {
    let mut drivers = lock(&DRIVERS);
    // A port lives as long as the process.
    let of = home.map(|device| &raw const *device.port as usize);
    if let Some((_, driver)) = drivers.iter().find(|(other, _)| *other == of) {
        return driver.clone();
    }
    let exchange = home.and_then(|device| device.port.runner.exchange(device.port));
    let driver = exchange.unwrap_or_else(|| Mpi::find().map(|mpi| Box::new(mpi) as _)).and_then(start);
    drivers.push((of, driver.clone()));
    driver
}

fn start(engine: Box<dyn Engine>) -> Result<&'static Driver, String> {
    let driver: &'static Driver = Box::leak(Box::new(Driver {
        combines: DType::ALL.into_iter().filter(|&dtype| engine.combines(dtype)).collect(),
        inbox: Mutex::default(),
        has_orders: AtomicBool::new(false),
        asleep: AtomicBool::new(false),
        thread: OnceLock::new(),
        done: Condvar::new(),
        worlds: Mutex::default(),
        has_lost: AtomicBool::new(false),
    }));
    let live = move || Living { driver, engine, jobs: HashMap::new(), started: HashMap::new() }.live();
    let thread = std::thread::Builder::new().name("futensor-exchange".into()).spawn(live);
    let handle = thread.map_err(|error| format!("no thread for what ranks exchange: {error}"))?;
    let _ = driver.thread.set(handle.thread().clone());
    end_in_order(driver);
    Ok(driver)
}

/// Those that the end of the process waits for.
static ENDS: Mutex<Vec<&'static Driver>> = Mutex::new(Vec::new());

/// Has the process say goodbye as it ends, as MPI wants it: the others wait for that. Once for all drivers.
#[allow(unsafe_code)]
fn end_in_order(driver: &'static Driver) {
    extern "C" fn end(status: c_int, _: *mut c_void) {
        let drivers = std::mem::take(&mut *lock(&ENDS));
        if drivers.into_iter().filter(|driver| !driver.finish()).count() > 0 {
            // SAFETY: it ends this process. What else would be called now are the libraries' own
            // ends, which may wait for the thread that hangs inside one.
            unsafe {
                libc::fflush(null_mut());
                libc::_exit(status)
            }
        }
    }
    let mut ends = lock(&ENDS);
    ends.push(driver);
    if ends.len() > 1 {
        return;
    }
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn on_exit(end: extern "C" fn(c_int, *mut c_void), of: *mut c_void) -> c_int;
        }
        // SAFETY: a function of this program's, without state of its own. It does not unwind.
        unsafe { on_exit(end, null_mut()) };
    }
    #[cfg(not(target_env = "gnu"))]
    {
        // Without the status, which is told to nobody else.
        extern "C" fn end_badly() {
            end(libc::EXIT_FAILURE, null_mut());
        }
        // SAFETY: as above.
        unsafe { libc::atexit(end_badly) };
    }
}

impl Driver {
    fn order(&self, order: Order) {
        lock(&self.inbox).orders.push_back(order);
        // SeqCst: either the thread sees the order before it sleeps, or this sees it asleep.
        self.has_orders.store(true, SeqCst);
        if self.asleep.load(SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    pub fn add(&self, ticket: Key, job: Job) {
        self.order(Order::Add(ticket, Box::new(job)));
    }

    pub fn go(&self, ticket: Key) {
        self.order(Order::Go(ticket));
    }

    pub fn combines(&self, dtype: DType) -> bool {
        self.combines.contains(&dtype)
    }

    pub fn hear(&self, group: Key, words: Words) {
        self.order(Order::Hear(group, words));
    }

    pub fn abort(&self, group: Key) {
        self.order(Order::Abort(group));
    }

    pub fn free(&self, group: Key) {
        self.order(Order::Free(group));
    }

    /// A world whose end the end of the process waits for.
    pub fn serves(&self, world: Weak<dyn Asks>) {
        let mut worlds = lock(&self.worlds);
        worlds.retain(|world| world.strong_count() > 0);
        worlds.push(world);
    }

    /// A world that goes has lost a rank: the engine cannot end in order any more.
    pub fn loses(&self) {
        self.has_lost.store(true, SeqCst);
    }

    /// The process ends: waits until the others are through as well, or lost. False where a thread
    /// hangs in the engine.
    fn finish(&self) -> bool {
        let worlds = self.worlds();
        worlds.iter().for_each(|world| world.leave());
        self.order(Order::Finish);
        let mut over: Option<Instant> = None;
        loop {
            // Not under the inbox's lock: whoever has a world's lock takes that.
            if worlds.iter().all(|world| world.is_over().0)
                && over.get_or_insert_with(Instant::now).elapsed() > LAST
            {
                return false;
            }
            let waited = self.done.wait_timeout_while(lock(&self.inbox), Duration::from_millis(100), |inbox| {
                inbox.finished.is_none()
            });
            if let Some(in_order) = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0.finished {
                return in_order;
            }
        }
    }

    fn worlds(&self) -> Vec<Arc<dyn Asks>> {
        lock(&self.worlds).iter().filter_map(Weak::upgrade).collect()
    }
}

/// What the waker of an operand does.
struct Bell(&'static Driver, Key);

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.0.order(Order::Woken(self.1));
    }
}

/// The thread's own.
struct Living {
    driver: &'static Driver,
    engine: Box<dyn Engine>,
    jobs: HashMap<Key, Held>,
    started: HashMap<Key, Under>,
}

/// A job whose call has not been started, and what of it is there.
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
}

impl Living {
    fn live(mut self) {
        lower_priority(8);
        let mut ended = Vec::new();
        let mut finishing = false;
        let mut since = Instant::now();
        let mut eager = LINGER;
        loop {
            let mut busy = false;
            while let Some(order) = self.next_order() {
                busy = true;
                match order {
                    Order::Add(key, job) => self.add(key, *job),
                    Order::Woken(key) => self.look(key),
                    Order::Go(key) => eager = eager.max(EAGER + self.start(key)),
                    Order::Hear(group, words) => self.engine.hear(group, words),
                    Order::Abort(group) => {
                        self.jobs.retain(|_, held| held.job.group != group);
                        self.engine.abort(group);
                    }
                    Order::Free(group) => self.engine.free(group),
                    Order::Finish => finishing = true,
                }
            }
            self.engine.poll(&mut ended);
            for (call, result) in ended.drain(..) {
                busy = true;
                self.ends(call, result);
            }
            for (group, words) in self.engine.words() {
                let worlds = self.driver.worlds();
                worlds.iter().filter(|w| w.serial() == group.0).for_each(|w| w.say(group.1, words.clone()));
            }
            if finishing && self.driver.worlds().iter().all(|world| world.is_over().0) {
                let lost = self.driver.worlds().iter().any(|world| world.is_over().1);
                let ended = self.engine.finish(!lost && !self.driver.has_lost.load(SeqCst));
                lock(&self.driver.inbox).finished = Some(ended);
                self.driver.done.notify_all();
                return;
            }
            let under_way = self.engine.in_flight() > 0;
            if busy {
                since = Instant::now();
                if !under_way {
                    eager = LINGER;
                }
            } else if since.elapsed() < eager {
                std::thread::yield_now();
            } else {
                let longest = match since.elapsed() {
                    _ if under_way || finishing => Some(PAUSE),
                    // The engine may have to send what a call that is through has left in its buffers.
                    idle if idle < RESTLESS => Some(IDLE_PAUSE),
                    _ => None,
                };
                self.sleep(longest);
            }
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

    fn sleep(&self, longest: Option<Duration>) {
        self.driver.asleep.store(true, SeqCst);
        if !self.driver.has_orders.load(SeqCst) {
            match longest {
                Some(longest) => std::thread::park_timeout(longest),
                None => std::thread::park(),
            }
        }
        self.driver.asleep.store(false, SeqCst);
    }

    fn add(&mut self, key: Key, job: Job) {
        let waker = Waker::from(Arc::new(Bell(self.driver, key)));
        self.jobs.insert(key, Held { job, waker, from: None });
        self.look(key);
    }

    /// Looks whether a job's operand is there.
    fn look(&mut self, key: Key) {
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
        let (world, group) = (held.job.world.clone(), held.job.group);
        let operand = failed.map_or(Ok(()), |error| held.job.fails(error));
        world.ready(group.1, key.1, operand);
    }

    /// Starts a call; how long it is polled eagerly for its size.
    fn start(&mut self, key: Key) -> Duration {
        let Some(Held { job, mut from, .. }) = self.jobs.remove(&key) else { return Duration::ZERO };
        let (reads, group, mut writes, mut to) = (job.reads, job.group, 0, None);
        if let Some((n, port)) = job.result {
            let bytes = n * job.dtype.size();
            writes = n;
            to =
                in_place(&*self.engine, &job.what, &mut from).or_else(|| self.engine.room(&port.memory, bytes));
            if to.is_none() {
                let text = format!("out of memory: {bytes} bytes on {}", port.name);
                let error = Error::new(ErrorKind::OutOfMemory, job.op, text, job.at);
                job.world.ready(group.1, key.1, job.fails(error));
                return Duration::ZERO;
            }
        }
        let bytes = reads.max(writes) * job.dtype.size();
        let call = Call { ticket: key, group, what: job.what, dtype: job.dtype, reads, writes, from, to };
        let under = Under { world: job.world, slot: job.slot, gives: job.gives };
        self.started.insert(key, under);
        self.engine.start(call);
        EAGER_PER_BYTE * bytes.min(1 << 30) as u32
    }

    fn ends(&mut self, call: Call, result: Through) {
        let Some(under) = self.started.remove(&call.ticket) else { return };
        let Call { ticket, group, from, to, .. } = call;
        under.slot.bring(match under.gives {
            Gives::Result => to.map(|buffer| Value::contiguous(Storage::Shared(buffer))),
            Gives::Operand => from.map(|value| *value),
            Gives::Known(value) => Some(value),
        });
        under.world.done(group.1, ticket.1, result);
    }
}
