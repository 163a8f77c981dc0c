//! The state of the simulated machine, and its lock.
//!
//! Everything sits behind one lock. The scheduler's thread takes items of work from the streams and
//! runs them without the lock; entry points only change the state, or wait for the scheduler to
//! change it.

use crate::checks::race::Race;
use crate::checks::report::{Reports, Stats};
use crate::ffi::{Handle, Kind, id};
use crate::machine::faults::Faults;
use crate::machine::objects::{Context, Device, Event, Function, Graphs, Module, Pool, Stream};
use crate::machine::thread::{CURRENT, MUST_NOT_BLOCK};
use crate::memory::Memory;
use crate::random::Random;
use crate::status::{INVALID_CONTEXT, INVALID_DEVICE, Outcome};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard};

/// Who lets the scheduler run an item.
#[derive(Default)]
pub struct Pace {
    /// Nothing runs but by `futsim_step`.
    pub paused: bool,
    /// Work runs only while somebody waits for some, and one item for each query.
    pub lazy: bool,
    /// Items that may run although paused or lazy.
    pub credits: u64,
    /// Threads inside a blocking call.
    pub waiters: usize,
    /// The stream whose item is running.
    pub in_flight: Option<u64>,
}

/// The machine.
#[allow(missing_docs)]
pub struct Sim {
    pub seed: u64,
    pub random: Random,
    pub started: bool,
    pub next_id: u64,
    pub devices: Vec<Device>,
    pub contexts: BTreeMap<u64, Context>,
    pub streams: BTreeMap<u64, Stream>,
    pub events: BTreeMap<u64, Event>,
    pub modules: BTreeMap<u64, Module>,
    pub functions: BTreeMap<u64, Arc<Function>>,
    pub graphs: Graphs,
    pub memory: Memory,
    pub pools: BTreeMap<u64, Pool>,
    /// Pools that keep what is freed give it out again.
    pub reuse: bool,
    pub race: Race,
    pub faults: Faults,
    pub stats: Stats,
    pub reports: Reports,
    /// What the profiler saw.
    pub ranges: Vec<String>,
    pub pace: Pace,
    /// Simulated nanoseconds: what the work done so far would roughly have taken, one item after
    /// the other.
    pub now: u64,
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(otherwise)
}

impl Sim {
    fn new() -> Sim {
        let seed = number("FUTENSOR_SIM_SEED", 0);
        let memory = number("FUTENSOR_SIM_MEMORY", 8 << 30) as usize;
        let devices = number("FUTENSOR_SIM_DEVICES", 1) as usize;
        Sim {
            seed,
            random: Random::new(seed),
            started: false,
            next_id: 1,
            devices: (0..devices).map(|_| Device::new(memory)).collect(),
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            ranges: Vec::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            graphs: Graphs::default(),
            memory: Memory::default(),
            pools: BTreeMap::new(),
            reuse: number("FUTENSOR_SIM_REUSE", 0) != 0,
            race: Race::default(),
            faults: Faults::default(),
            stats: Stats::default(),
            reports: Reports::default(),
            pace: Pace::default(),
            now: 0,
        }
    }

    /// Starts the machine anew from a seed. Numbers go on, so that old handles stay stale.
    pub fn reset(&mut self, seed: u64, devices: usize) {
        let next_id = self.next_id;
        let memory = std::mem::take(&mut self.memory);
        let waiters = self.pace.waiters;
        *self = Sim { seed, random: Random::new(seed), next_id, ..Sim::new() };
        self.memory = memory.emptied();
        self.pace.waiters = waiters;
        let bytes = number("FUTENSOR_SIM_MEMORY", 8 << 30) as usize;
        self.devices = (0..devices).map(|_| Device::new(bytes)).collect();
    }

    /// A number that no object of this process has had.
    pub fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// The context that is current on the calling thread.
    pub fn current(&self) -> Outcome<u64> {
        let context = CURRENT.get();
        if self.contexts.contains_key(&context) { Ok(context) } else { Err(INVALID_CONTEXT) }
    }

    /// The current context, if no fault has ended it.
    pub fn healthy_current(&self) -> Outcome<u64> {
        let context = self.current()?;
        self.healthy(context)?;
        Ok(context)
    }

    /// The error that ended a context, if any.
    pub fn healthy(&self, context: u64) -> Outcome {
        match self.contexts.get(&context) {
            None => Err(INVALID_CONTEXT),
            Some(Context { error: Some(error), .. }) => Err(*error),
            Some(_) => Ok(()),
        }
    }

    /// The context behind a handle.
    pub fn context(&self, raw: Handle) -> Outcome<u64> {
        let context = id(Kind::Context, raw).map_err(|_| INVALID_CONTEXT)?;
        if self.contexts.contains_key(&context) { Ok(context) } else { Err(INVALID_CONTEXT) }
    }

    /// The device with this ordinal.
    pub fn device(&mut self, ordinal: i32) -> Outcome<&mut Device> {
        usize::try_from(ordinal).ok().and_then(|i| self.devices.get_mut(i)).ok_or(INVALID_DEVICE)
    }

    /// The ordinal of a context's device.
    pub fn device_of(&self, context: u64) -> usize {
        self.contexts.get(&context).map_or(0, |context| context.device)
    }

    /// Notes a mistake of the client.
    pub fn report(&mut self, kind: &'static str, text: String) {
        self.reports.add(kind, text);
    }
}

struct Shared {
    sim: Mutex<Sim>,
    /// Signalled when there may be something to run.
    work: Condvar,
    /// Signalled when something has run.
    moved: Condvar,
}

static SHARED: LazyLock<Shared> = LazyLock::new(|| Shared {
    sim: Mutex::new(Sim::new()),
    work: Condvar::new(),
    moved: Condvar::new(),
});

/// Exclusive access to the machine.
pub type Guard = MutexGuard<'static, Sim>;

/// Locks the machine. A panic elsewhere leaves it usable: each change is complete in itself.
pub fn lock() -> Guard {
    SHARED.sim.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Tells the scheduler that there may be something to run.
pub fn wake_scheduler() {
    SHARED.work.notify_all();
}

/// Tells blocked callers that something has run.
pub fn wake_waiters() {
    SHARED.moved.notify_all();
}

/// The scheduler's sleep.
pub fn sleep_for_work(guard: Guard) -> Guard {
    SHARED.work.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Blocks the caller until `ready` answers, without being a waiter that lets lazy work run.
pub fn sleep_until<T>(mut sim: Guard, mut ready: impl FnMut(&mut Sim) -> Option<T>) -> (Guard, T) {
    wake_scheduler();
    loop {
        if let Some(answer) = ready(&mut sim) {
            return (sim, answer);
        }
        sim = SHARED.moved.wait(sim).unwrap_or_else(|poisoned| poisoned.into_inner());
    }
}

/// Blocks the caller of an entry point until `ready` answers. `call` names it for the reports.
pub fn wait<T>(mut sim: Guard, call: &str, ready: impl FnMut(&mut Sim) -> Option<T>) -> (Guard, T) {
    if MUST_NOT_BLOCK.get() {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        sim.report(
            "blocking",
            format!("{call} may block, on thread {name:?}, where that is forbidden"),
        );
    }
    sim.stats.blocking_calls += 1;
    sim.pace.waiters += 1;
    let (mut sim, answer) = sleep_until(sim, ready);
    sim.pace.waiters -= 1;
    (sim, answer)
}
