//! The driver of an engine, as the rest of the process sees it: it is told of calls, of calls that
//! may start, and of the end.
//!
//! One thread at a time drives an engine. `work` does the work; `post` decides which thread drives.
//! If a user's waker holds up the driving thread, another thread takes over, so that other calls go
//! on.

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

/// How long the engine may take to finish once all ranks have left.
const LAST: Duration = Duration::from_secs(10);

/// The receiver of the driver's reports: the world of a process. Called by the driver's thread.
pub(crate) trait Asks: Send + Sync {
    /// A call's operand is complete, or has failed.
    fn ready(&self, group: u64, ticket: Ticket, operand: Result<(), String>);
    /// The engine has completed a call.
    fn done(&self, group: u64, ticket: Ticket, result: Through);
    /// The engine sends words to the other members of a group.
    fn say(&self, group: u64, words: Words);
    /// A part of its groups' keys.
    fn serial(&self) -> u64;
    /// The process ends: says goodbye.
    fn leave(&self);
    /// Whether this rank has left and every other has left or is lost; and whether any is lost.
    fn is_over(&self) -> (bool, bool);
    /// A thread that its groups need has panicked.
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
    /// The number of elements that the engine reads.
    pub reads: usize,
    /// The number of elements of the result and the device for it, if the engine writes one.
    pub result: Option<(usize, &'static Port)>,
    /// The value of the call, if it is not a result of the engine.
    pub gives: Gives,
    pub op: &'static str,
    pub at: &'static Location<'static>,
}

impl Job {
    /// Stores this rank's own error; returns the text for the other ranks.
    fn fails(&self, error: Error) -> Result<(), String> {
        let text = error.to_string();
        self.slot.fail(error);
        Err(text)
    }
}

/// The value of a call.
#[derive(Clone, Debug)]
pub(crate) enum Gives {
    /// The result that the engine has written, or nothing.
    Result,
    /// The call's own operand, once the call has completed.
    Operand,
    /// A known value.
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
    /// Set when the driver has finished: whether it finished in order.
    finished: Option<bool>,
}

pub(crate) struct Driver {
    /// The types that its engine can reduce.
    combines: Vec<DType>,
    inbox: Mutex<Inbox>,
    has_orders: AtomicBool,
    post: Post,
    done: Condvar,
    worlds: Mutex<Vec<Weak<dyn Asks>>>,
    /// Whether a world that was dropped had lost a rank.
    has_lost: AtomicBool,
    /// Why the driver no longer works.
    broken: Mutex<Option<String>>,
}

/// All drivers: MPI's, without a device, and one for each device with its own library.
static DRIVERS: Mutex<Vec<(Option<usize>, Result<&'static Driver, String>)>> =
    Mutex::new(Vec::new());

/// The driver of this process for a group, with its engine.
///
/// # Errors
/// No library was found: where it was searched for, and how to install one.
pub(crate) fn driver(home: Option<&Device>) -> Result<&'static Driver, String> {
    let mut drivers = lock(&DRIVERS);
    // Ports live as long as the process, so the address identifies the device.
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

/// The drivers that the end of the process waits for.
static ENDS: Mutex<Vec<&'static Driver>> = Mutex::new(Vec::new());

/// Registers a goodbye at the end of the process, which MPI requires and the other ranks wait for.
/// Registered once for all drivers.
#[allow(unsafe_code)]
fn end_in_order(driver: &'static Driver) {
    extern "C" fn end(status: c_int, _: *mut c_void) {
        let drivers = std::mem::take(&mut *lock(&ENDS));
        if drivers.into_iter().filter(|driver| !driver.finish()).count() > 0 {
            // SAFETY: the call ends this process. Otherwise the libraries' exit handlers would run,
            // and could wait for the thread that hangs inside one of them.
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
            // Its contents may be large, so it is dropped outside the lock.
            drop(inbox);
            return drop(order);
        }
        inbox.orders.push_back(order);
        drop(inbox);
        // SeqCst: either the thread sees the order before it sleeps, or this thread sees it asleep.
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

    /// Registers a world; the end of the process waits for the world's end.
    pub fn serves(&self, world: Weak<dyn Asks>) {
        let mut worlds = lock(&self.worlds);
        worlds.retain(|world| world.strong_count() > 0);
        worlds.push(world);
    }

    /// Notes that a dropped world had lost a rank: the engine can no longer finish in order.
    pub fn loses(&self) {
        self.has_lost.store(true, SeqCst);
    }

    /// At the end of the process: waits until the other ranks have ended or are lost. False if a
    /// thread hangs in the engine.
    fn finish(&self) -> bool {
        let worlds = self.worlds();
        worlds.iter().for_each(|world| world.leave());
        self.order(Order::Finish);
        let mut over: Option<Instant> = None;
        loop {
            // Not under the inbox's lock: a thread with a world's lock takes the inbox's lock.
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
