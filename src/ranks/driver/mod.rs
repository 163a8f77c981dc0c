//! Who drives an engine, one thread at a time, as the rest of a process sees it: told of calls, of
//! what the protocol lets go, and of the end.
//!
//! The work is `work`'s; whose turn it is, `post`'s. A thread that is held up by somebody's waker
//! loses its post to another, so that the other calls go on.

mod post;
mod work;

use super::mpi::Mpi;
use super::protocol::Ticket;
use super::slot::Slot;
use crate::DType;
use crate::engine::exchange::{Engine, Key, Through, What, Words};
use crate::engine::port::Port;
use crate::error::Error;
use crate::graph::value::Value;
use crate::process_end;
use crate::sync::lock_plain as lock;
use crate::tensor::creation::Arrival;
use crate::tensor::device::Device;
use post::Post;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::panic::Location;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

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
    /// A thread without which nothing comes of its groups has panicked.
    fn fails(&self, text: String);
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
    post: Post,
    done: Condvar,
    worlds: Mutex<Vec<Weak<dyn Asks>>>,
    /// Whether a world that is gone had lost a rank.
    has_lost: AtomicBool,
    /// Why no call is driven any more.
    broken: Mutex<Option<String>>,
}

/// All that there are: MPI's, without a device, and one a device that has a library of its own.
static DRIVERS: Mutex<Vec<(Option<usize>, Result<&'static Driver, String>)>> =
    Mutex::new(Vec::new());

/// The driver of this process that a group goes by, with its engine.
///
/// # Errors
/// There is no library: where it was looked for, and how to have one.
pub(crate) fn driver(home: Option<&Device>) -> Result<&'static Driver, String> {
    let mut drivers = lock(&DRIVERS);
    // A port lives as long as the process.
    let of = home.map(|device| &raw const *device.port as usize);
    if let Some((_, driver)) = drivers.iter().find(|(other, _)| *other == of) {
        let driver = driver.clone()?;
        return lock(&driver.broken).clone().map_or(Ok(driver), Err);
    }
    let exchange = home.and_then(|device| device.port.runner.exchange(device.port));
    let driver =
        exchange.unwrap_or_else(|| Mpi::find().map(|mpi| Box::new(mpi) as _)).and_then(start);
    drivers.push((of, driver.clone()));
    driver
}

fn start(engine: Box<dyn Engine>) -> Result<&'static Driver, String> {
    let driver = begin(engine)?;
    end_in_order(driver);
    Ok(driver)
}

/// A driver of an engine, with its first thread.
pub(super) fn begin(engine: Box<dyn Engine>) -> Result<&'static Driver, String> {
    let driver: &'static Driver = Box::leak(Box::new(Driver {
        combines: DType::ALL.into_iter().filter(|&dtype| engine.combines(dtype)).collect(),
        inbox: Mutex::default(),
        has_orders: AtomicBool::new(false),
        post: Post::default(),
        done: Condvar::new(),
        worlds: Mutex::default(),
        has_lost: AtomicBool::new(false),
        broken: Mutex::default(),
    }));
    driver
        .take_up(engine)
        .map_err(|error| format!("cannot start a thread for collectives: {error}"))?;
    Ok(driver)
}

/// Those that the end of the process waits for.
static ENDS: Mutex<Vec<&'static Driver>> = Mutex::new(Vec::new());

/// Has the process say goodbye as it ends, as MPI wants it: the others wait for that. Once for all
/// drivers.
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
    lock(&ENDS).push(driver);
    process_end::first(end);
}

impl Driver {
    fn order(&self, order: Order) {
        let mut inbox = lock(&self.inbox);
        if inbox.finished.is_some() {
            // With what it holds, which may be much; and not under the lock.
            drop(inbox);
            return drop(order);
        }
        inbox.orders.push_back(order);
        drop(inbox);
        // SeqCst: either the thread sees the order before it sleeps, or this sees it asleep.
        self.has_orders.store(true, SeqCst);
        self.post.wake();
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
            let waited = self.done.wait_timeout_while(
                lock(&self.inbox),
                Duration::from_millis(100),
                |inbox| inbox.finished.is_none(),
            );
            if let Some(in_order) =
                waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0.finished
            {
                return in_order;
            }
        }
    }

    pub(super) fn worlds(&self) -> Vec<Arc<dyn Asks>> {
        lock(&self.worlds).iter().filter_map(Weak::upgrade).collect()
    }
}
