//! The CPU device's runner: it owns the compute threads and calls the machine.
//!
//! Each worker takes the lock, tells the machine the news, runs small ops on the spot, and leaves
//! with a step. A worker without a step helps with another worker's large step; a worker with
//! nothing to do stays awake for a moment and then sleeps. Only workers (and the watchdog, to end
//! the device) take the lock: callers and polls never do. One worker at a time attends to the
//! intake; a worker that leaves for a long step appoints another if more is to be done. Threads
//! start with the first op and run at a lower priority than the executor's, so that a heartbeat
//! beside them is not late.

mod idle;
mod replacement;
mod user_code;

use crate::engine::port::{Port, Runner, TableSize};
use crate::engine::run;
use crate::engine::scheduler::{Scheduler, VISITS_AT_ONCE};
use crate::engine::small::SmallOps;
use crate::engine::step::Step;
use crate::engine::trims::Trims;
use crate::error::ErrorKind;
use crate::graph::node::NodeHandle;
use crate::guard::{self, DeferredDrops, DeferredWakes, caught};
use crate::host::step::Host;
use crate::host::thread_pool::{ThreadPool, Workers};
use crate::host::threads::{self, Affinity, Threads, lower_priority};
use crate::host::unoptimised;
use crate::host::wake_queue::WakeQueues;
use crate::memory::Memory;
use crate::options::nanos;
use crate::sync::clock::{self, Instant};
use crate::sync::plain::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use crate::sync::{Mutex, lock, threads as door};
use crate::view::Serial;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;
use user_code::{UserCode, is_replaced};

/// The behaviour of the workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunnerOptions {
    pub threads: usize,
    /// Added to the nice value of compute threads; 0 leaves their priority alone.
    pub nice: i32,
    /// A worker that is woken by another begins on another core.
    pub spread: bool,
    /// How long an idle worker stays awake.
    pub linger: Duration,
    /// The longest op that a worker runs as it visits it.
    pub small_ns: u32,
    /// A step that runs longer ends the device.
    pub watchdog: Option<Duration>,
}

/// The state under the device's lock.
struct Queues {
    scheduler: Scheduler,
    /// Submitted steps that have not begun. Each can run at once, on any thread.
    steps: VecDeque<Step>,
}

struct Shared {
    port: &'static Port,
    options: RunnerOptions,
    queues: Mutex<Queues>,
    thread_pool: ThreadPool,
    memory: Arc<Memory>,
    /// Steps that wait for a thread.
    runnable: AtomicUsize,
    /// The earliest deadline of a delayed entry; u64::MAX for none.
    deadline: AtomicU64,
    /// The time at which each worker's step began, in nanoseconds since `epoch`, plus one; 0 for a
    /// worker without a step.
    began: Vec<AtomicU64>,
    epoch: Instant,
    /// The time at which a step asked last whether to hand over small parts, in nanoseconds since
    /// `epoch`.
    asked: AtomicU64,
    abandoned: Arc<AtomicBool>,
    threads: Arc<Threads>,
    wake_queues: Arc<WakeQueues>,
    user_code: Arc<UserCode>,
    own: Weak<Shared>,
}

/// The owner of a CPU device's threads.
pub(crate) struct CpuRunner {
    options: RunnerOptions,
    memory: Arc<Memory>,
    threads: Arc<Threads>,
    wake_queues: Arc<WakeQueues>,
    user_code: Arc<UserCode>,
    abandoned: Arc<AtomicBool>,
    trims: Arc<Trims>,
    shared: Mutex<Option<Arc<Shared>>>,
}

impl CpuRunner {
    pub fn new(options: RunnerOptions, memory: Arc<Memory>) -> CpuRunner {
        CpuRunner {
            options,
            memory,
            threads: Arc::new(Threads::default()),
            wake_queues: Arc::new(WakeQueues::new(options.threads)),
            user_code: Arc::new(UserCode::new(options.threads)),
            abandoned: Arc::new(AtomicBool::new(false)),
            trims: Arc::default(),
            shared: Mutex::new(None),
        }
    }
}

impl Runner for CpuRunner {
    fn wake(&self, worker: usize) {
        self.threads.wake(worker);
    }

    fn start(&self, port: &'static Port) {
        if self.threads.running.load(SeqCst) > 0 {
            // All are at work, and look at the intake when they are through: where one is inside
            // user code, another replaces it.
            if self.user_code.is_any()
                && let Some(shared) = &*lock(&self.shared)
            {
                shared.watch_user_code();
            }
            return;
        }
        let mut slot = lock(&self.shared);
        if self.threads.running.load(SeqCst) > 0 {
            return;
        }
        port.life.note_abandoned(&self.abandoned);
        let shared = slot.get_or_insert_with(|| {
            Arc::new_cyclic(|own: &Weak<Shared>| {
                let weak = own.clone();
                Shared {
                    port,
                    options: self.options,
                    queues: Mutex::new(Queues {
                        scheduler: Scheduler::new(port),
                        steps: VecDeque::new(),
                    }),
                    thread_pool: ThreadPool::new(self.options.threads, weak),
                    memory: self.memory.clone(),
                    runnable: AtomicUsize::new(0),
                    deadline: AtomicU64::new(u64::MAX),
                    began: (0..self.options.threads).map(|_| AtomicU64::new(0)).collect(),
                    epoch: Instant::now(),
                    asked: AtomicU64::new(0),
                    abandoned: self.abandoned.clone(),
                    threads: self.threads.clone(),
                    wake_queues: self.wake_queues.clone(),
                    user_code: self.user_code.clone(),
                    own: own.clone(),
                }
            })
        });
        let shared = shared.clone();
        let mut list = lock(&self.threads.list);
        list.clear();
        self.threads.running.store(self.options.threads, SeqCst);
        for worker in 0..self.options.threads {
            let shared = shared.clone();
            let name = format!("futensor-{}-{worker}", port.profile.name);
            match door::start(name, move || shared.live(worker)) {
                Ok(thread) => list.push(Some(thread)),
                Err(_) => {
                    list.push(None);
                    self.threads.running.fetch_sub(1, SeqCst);
                }
            }
        }
        drop((list, slot));
        if self.threads.running.load(SeqCst) == 0 {
            port.life.end(ErrorKind::DeviceLost, "no compute thread could be started");
            shared.refuse_all();
        }
        if let (Some(limit), 1..) = (self.options.watchdog, self.threads.running.load(SeqCst)) {
            let shared = shared.clone();
            let name = format!("futensor-{}-watchdog", port.profile.name);
            // Without the thread there is no watchdog, and nothing else changes.
            let _ = door::start(name, move || shared.watch(limit));
        }
    }

    fn abandon(&self) {
        self.abandoned.store(true, SeqCst);
        self.threads.wake_all();
    }

    fn run_inline(&self, port: &'static Port, node: &mut NodeHandle, limit_ns: u32) -> bool {
        let backend = Host { memory: &self.memory, parallel: &Serial, inline_values: true };
        SmallOps::of_poll(port, backend, limit_ns).run_awaited(node)
    }

    fn awaits(&self) {
        self.wake_queues.awaits_on(threads::core());
    }

    fn table_size(&self) -> TableSize {
        let shared = lock(&self.shared).clone();
        shared.map_or_else(TableSize::default, |shared| {
            lock(&shared.queues).scheduler.machine.table_size()
        })
    }

    fn trim(&self) -> usize {
        crate::concurrent::trim();
        self.memory.trim()
    }

    fn ask_trim(&self) -> u64 {
        let number = self.trims.ask();
        // Not on a worker: what it runs may take long, and comes later than the trim.
        let (memory, trims) = (self.memory.clone(), self.trims.clone());
        let trim = move || {
            trims.carry_out(number, || {
                crate::concurrent::trim();
                memory.trim();
            });
        };
        if door::start("futensor-trim".into(), trim.clone()).is_err() {
            trim();
        }
        number
    }

    fn is_trimmed(&self, number: u64, key: &mut Option<u64>, waker: &Waker) -> bool {
        self.trims.is_ended(number, || false, key, waker)
    }

    fn forget_trim(&self, key: u64) {
        self.trims.forget(key);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The pool's view of the runner that owns it.
impl Workers for Weak<Shared> {
    fn wake(&self, count: usize) {
        let Some(shared) = self.upgrade() else { return };
        for _ in 0..count {
            let Some(worker) = shared.port.mailbox.attendance.unpark_any() else { return };
            shared.threads.wake_apart(worker);
        }
    }
    fn are_awake(&self) -> bool {
        let Some(shared) = self.upgrade() else { return false };
        let now = shared.now();
        let since = now.saturating_sub(shared.asked.swap(now, Relaxed));
        // In a row one wake is for all: a worker stays awake from one step to the next.
        since < nanos(shared.options.linger)
            || shared.port.mailbox.attendance.sleeping() + 1 < shared.options.threads
    }
}

impl Shared {
    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// A worker's thread. A kernel's panic ends with its value. A panic of the engine itself would
    /// leave the task table broken, so it ends the device, and every await with it.
    fn live(&self, me: usize) {
        lower_priority(self.options.nice);
        if cfg!(futensor_unoptimised) {
            unoptimised::say();
        }
        let affinity = self.options.spread.then(Affinity::here).flatten().map(Arc::new);
        self.threads.set_affinity(me, affinity.clone());
        while let Err(words) = caught(|| self.work(me, affinity.as_deref())) {
            self.port.life.end(
                ErrorKind::DeviceLost,
                format!("the device is lost: its engine panicked: {words}"),
            );
            self.end(&mut guard::lock(&self.queues));
        }
        self.threads.clear_affinity(me, affinity);
    }

    /// Ends everything in the task table.
    fn end(&self, queues: &mut Queues) {
        queues.scheduler.end();
        queues.steps.clear();
        self.runnable.store(0, SeqCst);
    }

    /// A worker's life.
    fn work(&self, me: usize, affinity: Option<&Affinity>) {
        let mut last = Instant::now();
        let mut ran: Option<Step> = None;
        let mut came = false;
        let mut by_polls = 0;
        let later = DeferredDrops::begin();
        while !is_replaced() {
            let (did, step) = self.visit_scheduler(me, came, ran.take());
            came = step.is_some();
            if let Some(step) = step {
                ran = self.run(me, step);
            }
            if is_replaced() {
                return;
            }
            if later.has_some() {
                // The drop of a user's captures may take long, and may wait for other work: nobody
                // waits for the drop.
                if let Some(step) = ran.take() {
                    self.tell_end(step);
                }
                self.wake_queues.busy(me);
                self.call_user_code(me, || later.let_go());
            }
            if came || is_replaced() {
                last = Instant::now();
                continue;
            }
            // A worker that has visited a node goes on to `idle` all the same. If it took each node
            // as it comes, this core and the caller's would fight for the node, and for the head of
            // the intake.
            if self.thread_pool.help(me) {
                last = Instant::now();
                continue;
            }
            if did {
                last = Instant::now();
            }
            let idle = self.wake_queues.idle(me, threads::core());
            let found = self.idle(me, &idle, &mut last, &mut by_polls);
            if let Some(wakers) = idle.end() {
                // As in `wake`. Their drops run in the next round.
                self.call_user_code(me, || drop(wakers));
                continue;
            }
            if !found && !self.sleep(me) {
                return;
            }
            if let Some(affinity) = affinity {
                affinity.go_anywhere();
            }
            if last.elapsed() > self.options.linger {
                // It slept: it is awake for a reason.
                last = Instant::now();
            }
        }
    }

    /// Runs a step, and hands the attendance over before if need be. Returns the step unless its
    /// end has been reported.
    fn run(&self, me: usize, mut step: Step) -> Option<Step> {
        self.hand_over(me);
        self.wake_queues.busy(me);
        self.began[me].store(self.now() + 1, Relaxed);
        let member = self.thread_pool.member(me);
        let host = Host { memory: &self.memory, parallel: &member, inline_values: true };
        let (results, began) = match step.is_call() {
            true => self.thread_pool.in_a_row(|| run::compute_step(&step, self.port, host)),
            false => run::compute_step(&step, self.port, host),
        };
        let woken = DeferredWakes::begin();
        run::publish(&mut step, results, self.port, began);
        self.began[me].store(0, Relaxed);
        let mut step = Some(step);
        // A waker may wait for a step that this end unblocks. (And `waitall` for an input that was
        // let go by now.)
        if woken.has_some()
            && let Some(step) = step.take()
        {
            self.tell_end(step);
        }
        self.wake(me, woken);
        step
    }

    /// Tells the task table of a step's end, apart from a visit for more, and puts on offer what it
    /// lets go on.
    fn tell_end(&self, step: Step) {
        let mut queues = guard::lock(&self.queues);
        let now = self.now();
        queues.scheduler.machine.finished(step, now);
        self.offer(&mut queues, now);
        self.put_off(&queues);
    }

    /// Has deferred wakers called. A waker is user code, and may wait for a node that is to be
    /// visited: the worker leaves the attendance first.
    fn wake(&self, me: usize, woken: DeferredWakes) {
        let wakers = woken.end();
        if !wakers.is_empty() {
            self.call_user_code(me, || self.wake_queues.wake(me, threads::core, wakers));
        }
    }

    /// Leaves the attendance for a while; appoints another worker if work is left.
    fn hand_over(&self, me: usize) {
        let attendance = &self.port.mailbox.attendance;
        let left = attendance.leave(me);
        let more = self.runnable.load(SeqCst) > 0
            || left && (self.port.mailbox.has_queued() || self.deadline.load(Relaxed) != u64::MAX);
        if more {
            match attendance.unpark_any() {
                Some(other) => self.threads.wake_apart(other),
                None if self.user_code.is_any() => self.watch_user_code(),
                None => {}
            }
        }
    }

    /// Visits queued nodes, and takes a step. True where anything was done. A worker that has run a
    /// step comes here whether it attends or not: the step's end may let others begin. A worker
    /// that `ran` one reports its end and takes another in one go: in between, another worker would
    /// take the next step, and fetch its operands from this one's cache.
    fn visit_scheduler(&self, me: usize, has_run: bool, ran: Option<Step>) -> (bool, Option<Step>) {
        let attends = self.port.mailbox.attendance.attend(me);
        let due = self.deadline.load(Relaxed) <= self.now();
        if !has_run && !due && self.runnable.load(SeqCst) == 0 && !attends {
            return (false, None);
        }
        let woken = DeferredWakes::begin();
        let mut queues = guard::lock(&self.queues);
        let mut did = ran.is_some();
        if let Some(step) = ran {
            queues.scheduler.machine.finished(step, self.now());
        }
        if attends {
            did |= self.visit_queued(&mut queues);
        }
        let now = self.now();
        queues.scheduler.machine.tick(now);
        self.offer(&mut queues, now);
        // A waker may wait for the very step that this worker would take: others take it then.
        let step = if woken.has_some() { None } else { self.take(&mut queues) };
        self.put_off(&queues);
        drop(queues);
        self.wake(me, woken);
        (did, step)
    }

    /// Visits a bounded number of nodes; runs the small ones.
    fn visit_queued(&self, queues: &mut Queues) -> bool {
        let backend = Host { memory: &self.memory, parallel: &Serial, inline_values: true };
        let mut small = SmallOps::new(self.port, backend, self.options.small_ns);
        let did =
            queues.scheduler.visit_queued(self.port, VISITS_AT_ONCE, || self.now(), &mut small);
        if queues.scheduler.machine.is_ended() {
            self.end(queues);
        }
        did
    }

    /// Notes the deadline of delayed entries. The rest of a batch is due at once.
    fn put_off(&self, queues: &Queues) {
        let left_over = (!queues.scheduler.is_clear()).then_some(0);
        self.deadline
            .store(left_over.or(queues.scheduler.machine.deadline()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Takes a step, and notes how many are left for others.
    fn take(&self, queues: &mut Queues) -> Option<Step> {
        let step = queues.steps.pop_front();
        self.runnable.store(queues.steps.len(), SeqCst);
        step
    }

    /// Makes steps of all ready entries, for free workers.
    fn offer(&self, queues: &mut Queues, now: u64) {
        while let Some(mut step) = queues.scheduler.machine.next(now) {
            if step.is_without_kernel() {
                // It takes less than a hand-over to another thread, which would have to wake.
                run::run(
                    &mut step,
                    self.port,
                    Host { memory: &self.memory, parallel: &Serial, inline_values: true },
                );
                queues.scheduler.machine.finished(step, now);
            } else {
                queues.steps.push_back(step);
            }
        }
        self.runnable.store(queues.steps.len(), SeqCst);
    }

    /// After the end: fails all nodes in the intake.
    fn refuse_all(&self) {
        let mut queues = guard::lock(&self.queues);
        while self.visit_queued(&mut queues) {}
    }

    /// The watchdog's life: a step that runs too long ends the device. Nobody waits for the step's
    /// thread.
    fn watch(&self, limit: Duration) {
        let limit_ns = nanos(limit);
        while self.threads.running.load(SeqCst) > 0 && !self.port.life.is_ended() {
            // Not so long that it would outlive the device for long.
            clock::sleep((limit / 8).clamp(Duration::from_millis(1), Duration::from_secs(1)));
            let now = self.now();
            let stuck = self.began.iter().any(|b| {
                let began = b.load(Relaxed);
                began != 0 && now.saturating_sub(began - 1) > limit_ns
            });
            if stuck {
                let text =
                    format!("the device is lost: a step ran longer than the watchdog's {limit:?}");
                self.port.life.end(ErrorKind::DeviceLost, text);
                let later = DeferredDrops::begin();
                self.end(&mut guard::lock(&self.queues));
                self.refuse_all();
                // Every worker may be stuck: from now on this thread refuses new nodes.
                loop {
                    if self.port.mailbox.has_queued() {
                        self.refuse_all();
                    }
                    later.let_go();
                    clock::sleep(Duration::from_millis(1));
                    if self.abandoned.load(SeqCst) {
                        return;
                    }
                }
            }
        }
    }
}
