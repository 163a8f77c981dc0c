//! The state of the simulated machine, its lock, and how an entry point gets at it.
//!
//! Everything sits behind one lock. The scheduler's thread takes items of work from the streams and
//! runs them without the lock; entry points only change the state, or wait for the scheduler to
//! change it.

use crate::checks::race::Race;
use crate::checks::report::{Reports, Stats};
use crate::driver::contexts::Context;
use crate::driver::devices::Device;
use crate::driver::events::Event;
use crate::driver::graph::Graphs;
use crate::driver::module::{Function, Module};
use crate::driver::pools::Pool;
use crate::driver::streams::Stream;
use crate::ffi::{Handle, Kind, handle, id};
use crate::machine::faults::Faults;
use crate::machine::scheduler;
use crate::memory::Memory;
use crate::random::Random;
use crate::status::{
    DEINITIALIZED, INVALID_CONTEXT, INVALID_DEVICE, NOT_INITIALIZED, NOT_PERMITTED, Outcome,
    Status, UNKNOWN, code,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
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

thread_local! {
    /// The context current on this thread; 0 for none.
    pub static CURRENT: Cell<u64> = const { Cell::new(0) };
    /// True while this thread runs a `cuLaunchHostFunc` function.
    pub static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    /// True of a thread that has launched something.
    pub static LAUNCHES: Cell<bool> = const { Cell::new(false) };
    /// True where a blocking call is a mistake (`futsim_forbid_blocking`).
    pub static MUST_NOT_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// The handle of the context current on this thread; 0 for none.
pub fn current_handle() -> Handle {
    match CURRENT.get() {
        0 => 0,
        context => handle(Kind::Context, context),
    }
}

struct Shared {
    sim: Mutex<Sim>,
    /// Signalled when there may be something to run.
    work: Condvar,
    /// Signalled when something has run.
    moved: Condvar,
}

static SHARED: LazyLock<Shared> = LazyLock::new(|| {
    std::thread::Builder::new()
        .name("simulated device".into())
        .spawn(scheduler::run)
        .expect("a thread for the simulated device");
    Shared { sim: Mutex::new(Sim::new()), work: Condvar::new(), moved: Condvar::new() }
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

/// What a driver may make wait for all of a context's work, and may take long over: loading a
/// module, page-locking memory, making a library's handle, trimming a pool. Here it waits, unless
/// work stands still on demand; a thread that launches is not to do it while anything is under way
/// (kind `stall`).
pub fn may_wait(mut sim: Guard, call: &str) -> Outcome {
    let context = sim.healthy_current()?;
    sim.is_safe()?;
    let under_way = |sim: &Sim| {
        let mut streams = sim.streams.values().filter(|stream| stream.context == context);
        streams.any(|stream| {
            let waits = stream.queue.iter().any(|item| !item.work.is_mark());
            stream.capture.is_none() && (waits || stream.running && !stream.passing)
        })
    };
    if !under_way(&sim) {
        return Ok(());
    }
    if LAUNCHES.get() {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        sim.report(
            "stall",
            format!("{call} on thread {name:?}, which launches, while work is under way"),
        );
    }
    sim.pace.waiters += 1;
    let (mut sim, outcome) = sleep_until(sim, |sim| match sim.healthy(context) {
        Err(error) => Some(Err(error)),
        Ok(()) => (!under_way(sim) || sim.stands_still()).then_some(Ok(())),
    });
    sim.pace.waiters -= 1;
    outcome
}

/// The frame of an entry point that may be called before `cuInit`, or that a control function uses.
pub fn call_any(body: impl FnOnce(Guard) -> Outcome) -> Status {
    match catch_unwind(AssertUnwindSafe(|| body(lock()))) {
        Ok(outcome) => code(outcome),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            lock()
                .report("internal", text.unwrap_or_else(|| "a panic inside the simulator".into()));
            UNKNOWN
        }
    }
}

/// The process's exit handlers run: the driver has shut down, and answers so to the threads that go
/// on.
static OVER: AtomicBool = AtomicBool::new(false);

/// To be called at exit.
pub extern "C" fn exit() {
    OVER.store(true, SeqCst);
}

/// The frame of an entry point that may wait: it is handed the lock.
pub fn call_holding(body: impl FnOnce(Guard) -> Outcome) -> Status {
    call_any(|mut sim| {
        if IN_HOST_FUNCTION.get() {
            sim.report("misuse", "a host function called the driver".into());
            return Err(NOT_PERMITTED);
        }
        if !sim.started {
            return Err(NOT_INITIALIZED);
        }
        if OVER.load(SeqCst) {
            return Err(DEINITIALIZED);
        }
        sim.stats.calls += 1;
        body(sim)
    })
}

/// The frame of an entry point that does not wait.
pub fn call(body: impl FnOnce(&mut Sim) -> Outcome) -> Status {
    call_holding(|mut sim| body(&mut sim))
}
