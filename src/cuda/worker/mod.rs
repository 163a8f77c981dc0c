//! The CUDA device's driver: it owns the device's threads and calls the machine.
//!
//! One thread attends to the intake (`visit`), runs the machine and does all launching, loading and
//! allocating (`thread`). It never waits for the GPU: its queued steps are submissions
//! (`submissions`), one a step, in the order of their lanes. Beside it sleeps a reaper a lane
//! (`reaper`), which waits for events, publishes the values that the lane has reached, and wakes
//! those who await it. A watchdog, where the options ask for one, ends a device that makes no
//! progress. Any fault ends the device for the life of the process, and with it every wait.

mod reaper;
mod region;
mod submissions;
mod thread;
mod visit;

use crate::cuda::device::Trouble;
use crate::cuda::device::context::{device, here};
use crate::cuda::device::driver_context;
use crate::cuda::device::graph::replay;
use crate::cuda::device::index_check::Known;
use crate::cuda::device::libraries::nvidia::Events;
use crate::cuda::device::memory::heap::Heap;
use crate::cuda::device::memory::lazy_upload::{LazyUpload, Residency};
use crate::cuda::device::memory::page_locked;
use crate::cuda::device::memory::pinned::Pinned;
use crate::cuda::device::modules::store::SEEN_BEFORE_COMPILED;
use crate::cuda::device::report::{DeclinedConvolutions, report};
#[cfg(all(feature = "ranks", unix))]
use crate::cuda::exchange::Exchange;
use crate::cuda::kernels::halves::HalfProducts;
use crate::cuda::ops;
use crate::dtype::DType;
use crate::engine::exchange::Engine;
use crate::engine::port::{Port, Runner, TableSize};
use crate::engine::scheduler::Scheduler;
use crate::engine::step::Step;
#[cfg(all(feature = "ranks", unix))]
use crate::engine::trims::Trims;
use crate::error::ErrorKind;
use crate::graph::operation::{Operation, Refusal};
use crate::graph::plan::Plan;
use crate::graph::value::{Buffer, Storage, Value};
use crate::guard::{
    self, DeferredDrops, DeferredWakes, Leftovers, Wakers, caught, discard, wake_all,
};
use crate::memory::{DeviceMemory, Memory, PoolMemory};
use crate::shape::Shape;
use crate::sync::{Mutex, lock};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::Waker;
use std::thread::Thread;
use std::time::{Duration, Instant};
use submissions::Lane;

/// How the device behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub ordinal: usize,
    /// How long the idle thread stays awake.
    pub linger: Duration,
    /// How long a reaper asks before it sleeps.
    pub spin: Duration,
    /// A step that takes longer ends the device.
    pub watchdog: Option<Duration>,
    /// Each step runs to its end before the next is launched.
    pub sync: bool,
    /// While somebody records, every so many steps are timed by the GPU; 0 for none.
    pub timed: u32,
    /// Blocks that run again become graphs.
    pub graphs: bool,
    /// Each step has a range for a profiler.
    pub nvtx: bool,
    /// Products of float32 may round to TF32.
    pub tf32: bool,
    /// Convolutions go through cuDNN, where it is there.
    pub cudnn: bool,
    /// How half weights are multiplied.
    pub half_products: HalfProducts,
    /// Handles are made as the device opens.
    pub warm: bool,
    /// The stream of the one lane for steps, which is somebody else's.
    pub stream: Option<usize>,
    /// Bytes of page-locked memory.
    pub pinned_bytes: usize,
    /// Bytes of freed memory that lanes keep at most.
    pub kept_bytes: usize,
}

/// The state that the device's threads share, for one life of the device's thread.
struct Shared {
    port: &'static Port,
    settings: Settings,
    /// Never held while CUDA is called.
    scheduler: Mutex<Scheduler>,
    /// Steps have results before they have run: the result of each entry of the machine's task
    /// table.
    table: Mutex<Vec<Option<Known>>>,
    lanes: Vec<Lane>,
    /// How far the host has seen each lane come.
    reached: Arc<[AtomicU64]>,
    /// Steps that have been published; the machine is to hear of them.
    done: Mutex<Vec<Step>>,
    /// Counts the reapers' looks.
    progress: AtomicU64,
    events: Arc<Events>,
    /// Those that tell the GPU's time.
    timed: Arc<Events>,
    heap: Arc<Heap>,
    pinned: Arc<Pinned>,
    declined: DeclinedConvolutions,
    trims: Arc<Trims>,
    epoch: Instant,
    /// The thread ends: so do the others.
    over: AtomicBool,
    abandoned: Arc<AtomicBool>,
}

/// Owner of a CUDA device's threads.
pub(crate) struct CudaRunner {
    settings: Settings,
    memory: Arc<Memory>,
    running: Arc<AtomicBool>,
    abandoned: Arc<AtomicBool>,
    trims: Arc<Trims>,
    declined: DeclinedConvolutions,
    thread: Mutex<Option<Thread>>,
    shared: Mutex<Option<Arc<Shared>>>,
}

impl CudaRunner {
    pub fn new(settings: Settings, memory: Arc<Memory>) -> CudaRunner {
        CudaRunner {
            settings,
            memory,
            running: Arc::default(),
            abandoned: Arc::default(),
            trims: Arc::default(),
            declined: DeclinedConvolutions::default(),
            thread: Mutex::new(None),
            shared: Mutex::new(None),
        }
    }

    /// Which GPU it is.
    pub fn ordinal(&self) -> usize {
        self.settings.ordinal
    }

    /// The report of the GPU and its libraries.
    pub fn report(&self) -> String {
        report(self.settings.ordinal, self.settings.cudnn, &self.declined)
    }
}

impl Shared {
    fn new(driver: &CudaRunner, port: &'static Port) -> Arc<Shared> {
        let lanes = port.profile.limits.all_streams() as usize + 1;
        let heap = Heap::new(driver.settings.ordinal, driver.memory.clone());
        heap.on_return(move || port.attend());
        Arc::new(Shared {
            port,
            settings: driver.settings,
            scheduler: Mutex::new(Scheduler::new(port)),
            table: Mutex::new(Vec::new()),
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            reached: (0..lanes).map(|_| AtomicU64::new(0)).collect(),
            done: Mutex::new(Vec::new()),
            progress: AtomicU64::new(0),
            events: Arc::new(Events::untimed()),
            timed: Arc::new(Events::timed()),
            heap,
            pinned: Arc::new(Pinned::of(driver.settings.pinned_bytes)),
            declined: driver.declined.clone(),
            trims: driver.trims.clone(),
            epoch: Instant::now(),
            over: AtomicBool::new(false),
            abandoned: driver.abandoned.clone(),
        })
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// The device is lost: everything that is pending fails, and everything that is asked for
    /// later.
    fn lose(&self, what: impl std::fmt::Display) {
        let running = self.running_ops();
        let text = if running.is_empty() {
            format!("the device is lost: {what}")
        } else {
            format!("the device is lost: {what}; it was running {running}")
        };
        self.port.life.end(ErrorKind::DeviceLost, text);
        let (later, woken) = (DeferredDrops::begin(), DeferredWakes::begin());
        // The others hear of the end even if this panics.
        let _ = caught(|| guard::lock(&self.scheduler).end());
        self.over.store(true, SeqCst);
        self.ring_all();
        self.port.attend();
        self.trims.wake();
        self.see_to(woken.end(), later.end());
    }

    /// Has wakers called and leftovers dropped by a thread that nobody waits for: they are a
    /// user's, and may ask for work that only the caller of this can do. Before the device is open,
    /// and after its end, this thread does it.
    fn see_to(&self, wakers: Wakers, leftovers: Leftovers) {
        match self.heap.open() {
            _ if wakers.is_empty() && leftovers.is_empty() => {}
            Some(open) => open.background.see_to(wakers, leftovers),
            None => {
                wake_all(wakers);
                leftovers.into_iter().for_each(discard);
            }
        }
    }

    /// Something has come further that the device's thread may wait for.
    fn look_again(&self) {
        self.progress.fetch_add(1, SeqCst);
        self.port.attend();
    }

    fn ring_all(&self) {
        self.lanes.iter().for_each(Lane::ring);
    }

    /// The watchdog's life: a step that takes too long ends the device, and nobody is waited for.
    fn watch(&self, limit: Duration) {
        while !self.over.load(SeqCst) {
            // Not so long that it would outlive the device for long.
            std::thread::sleep((limit / 8).clamp(Duration::from_millis(1), Duration::from_secs(1)));
            if !self.over.load(SeqCst) && self.lanes.iter().any(|lane| lane.is_late(limit)) {
                self.lose(format_args!("a step took longer than the watchdog's {limit:?}"));
            }
        }
        // The device's thread may be stuck in the driver: then this one refuses new nodes.
        while self.port.life.is_ended() && !self.abandoned.load(SeqCst) {
            self.refuse_all();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// After the end: fails all nodes in the intake.
    fn refuse_all(&self) {
        let mut is_more = true;
        while is_more {
            let (later, woken) = (DeferredDrops::begin(), DeferredWakes::begin());
            is_more = self.visit_queued(&mut guard::lock(&self.scheduler));
            self.see_to(woken.end(), later.end());
        }
    }
}

impl Runner for CudaRunner {
    fn wake(&self, _: usize) {
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }

    fn start(&self, port: &'static Port) {
        if self.running.load(SeqCst) {
            // It is at work, and looks at the intake when it is through.
            return;
        }
        let mut slot = lock(&self.thread);
        if self.running.swap(true, SeqCst) {
            return;
        }
        port.life.note_abandoned(&self.abandoned);
        let shared = Shared::new(self, port);
        *lock(&self.shared) = Some(shared.clone());
        let running = self.running.clone();
        let life = {
            let shared = shared.clone();
            move || thread::live(shared, running)
        };
        match std::thread::Builder::new()
            .name(format!("futensor-{}", port.profile.name))
            .spawn(life)
        {
            Ok(handle) => *slot = Some(handle.thread().clone()),
            Err(_) => {
                port.life.end(ErrorKind::DeviceLost, "the device's thread could not be started");
                shared.refuse_all();
            }
        }
        if let Some(limit) = self.settings.watchdog {
            let name = format!("futensor-{}-watchdog", port.profile.name);
            // Without the thread there is no watchdog, and nothing else changes.
            let _ = std::thread::Builder::new().name(name).spawn(move || shared.watch(limit));
        }
    }

    fn abandon(&self) {
        self.abandoned.store(true, SeqCst);
        self.wake(0);
        // The device may have been shut down.
        self.trims.wake();
    }

    fn table_size(&self) -> TableSize {
        let shared = lock(&self.shared).clone();
        shared
            .map_or_else(TableSize::default, |shared| lock(&shared.scheduler).machine.table_size())
    }

    fn trim(&self) -> usize {
        // The device's thread does it; how many bytes that will be, only the driver knows.
        self.ask_trim();
        0
    }

    fn ask_trim(&self) -> u64 {
        let number = self.trims.ask();
        // Not under the lock: where the thread has ended, another is started. A device that has
        // ended has nothing to give back.
        let shared = lock(&self.shared).clone();
        if let Some(shared) = shared.filter(|shared| !shared.port.life.is_ended()) {
            shared.look_again();
        }
        number
    }

    fn is_trimmed(&self, number: u64, key: &mut Option<u64>, waker: &Waker) -> bool {
        let is_over = || {
            let shared = lock(&self.shared);
            shared.as_ref().is_none_or(|shared| shared.port.life.is_ended())
        };
        self.trims.is_ended(number, is_over, key, waker)
    }

    fn forget_trim(&self, key: u64) {
        self.trims.forget(key);
    }

    fn memory(&self) -> DeviceMemory {
        let shared = lock(&self.shared).clone();
        match shared.and_then(|shared| shared.heap.free_memory()) {
            Some((free, total)) => DeviceMemory { free: Some(free), total },
            None => DeviceMemory {
                free: None,
                total: driver_context::memory(self.ordinal()).unwrap_or(0),
            },
        }
    }

    fn pools(&self) -> Vec<PoolMemory> {
        let shared = lock(&self.shared).clone();
        let of = |shared: Arc<Shared>| Some([shared.heap.pool()?, shared.pinned.bytes()]);
        shared.and_then(of).into_iter().flatten().collect()
    }

    fn is_warm(&self, plan: &Plan, runs: u32) -> bool {
        let shared = lock(&self.shared).clone();
        let Some(open) = shared.as_ref().and_then(|shared| shared.heap.open()) else { return true };
        let settled = self.settings.graphs && replay::is_settled(plan);
        shared.is_none_or(|shared| shared.port.life.is_ended())
            || settled
            // Fused kernels are asked for when their programs have been seen often enough, at the
            // end of a run.
            || !self.settings.graphs && runs > SEEN_BEFORE_COMPILED && open.background.is_idle()
    }

    fn has_kernel(&self, op: &dyn Operation) -> bool {
        ops::has_plan(op)
    }

    #[cfg(all(feature = "ranks", unix))]
    fn exchange(&self, port: &'static Port) -> Option<Result<Box<dyn Engine>, String>> {
        let heap = |port: &'static Port| {
            port.runner.start(port);
            let runner: &CudaRunner = port.runner.as_any().downcast_ref()?;
            lock(&runner.shared).as_ref().map(|shared| shared.heap.clone())
        };
        Some(Exchange::new(port, heap).map(|exchange| Box::new(exchange) as Box<dyn Engine>))
    }

    fn receive(&self, value: Value, shape: &Shape, dtype: DType) -> Value {
        // A value that a group has exchanged is this device's already.
        let own = |heap: &Arc<Heap>| {
            lock(&self.shared).as_ref().is_some_and(|s| Arc::ptr_eq(&s.heap, heap))
        };
        let is_own = |buffer: &dyn Buffer| match device(buffer) {
            Some(buffer) => own(&buffer.heap),
            None => buffer.as_any().is::<LazyUpload>(),
        };
        if value.buffer().is_some_and(is_own) {
            return value;
        }
        LazyUpload::value(value, shape, dtype)
    }

    fn address(&self, value: &Value) -> Option<(usize, u64)> {
        here(value).map(|span| (self.ordinal(), span.ptr()))
    }

    fn lent(
        &self,
        port: &'static Port,
        gpu: usize,
        address: u64,
        bytes: usize,
        owner: &dyn Fn() -> Box<dyn Any + Send>,
    ) -> Result<Arc<dyn Buffer>, String> {
        if gpu != self.ordinal() {
            return Err(format!("memory of GPU {gpu}, not {}", self.ordinal()));
        }
        self.start(port);
        let shared = lock(&self.shared).clone();
        let shared = shared.ok_or("the device's thread could not be started")?;
        Ok(shared.heap.lent(address, bytes, owner()))
    }

    fn page_locked(&self, bytes: usize) -> Option<Result<(Arc<dyn Buffer>, bool), Refusal>> {
        let refused = |trouble: Trouble| match trouble {
            Trouble::OutOfMemory { .. } => Refusal::no_host_memory(bytes),
            trouble => Refusal { kind: ErrorKind::Device, message: trouble.to_string() },
        };
        let locked = page_locked::take(self.ordinal(), bytes);
        Some(
            locked
                .map(|(block, is_new)| (Arc::new(block) as Arc<dyn Buffer>, is_new))
                .map_err(refused),
        )
    }

    /// Constants, values that still lie on the host, and elements that the other GPU can copy
    /// itself.
    fn lend(&self, value: &Value, shape: &Shape, to: &dyn Runner) -> Option<Value> {
        let Storage::Shared(buffer) = &value.storage else { return Some(value.clone()) };
        let mut here = buffer.clone();
        if let Some(lazy) = buffer.as_any().downcast_ref::<LazyUpload>() {
            match &*lazy.residency() {
                Residency::Elsewhere(from) => {
                    return value.placed.is_none().then(|| from.clone());
                }
                Residency::InTransit => return None,
                Residency::Resident(buffer) => here = buffer.clone(),
            }
        }
        let to: &CudaRunner = to.as_any().downcast_ref()?;
        let heap =
            |runner: &CudaRunner| lock(&runner.shared).as_ref().map(|shared| shared.heap.clone());
        let (from, to) = (heap(self)?, heap(to)?);
        let near = from.ordinal == to.ordinal || from.peers.reach(from.open()?, to.open()?);
        let value = Value { storage: Storage::Shared(here), placed: value.placed.clone() };
        (near && value.layout(shape).is_contiguous()).then_some(value)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
