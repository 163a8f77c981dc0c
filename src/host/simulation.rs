//! The simulated device's runner: the same machine, one event at a time, in an order that a seed
//! chooses, on a clock that only the simulation moves.
//!
//! Streams are queues, and one of them runs at a time; values lie in host memory and are really
//! computed. Faults come on demand. A seed replays: nothing here asks the computer for the time or
//! for random numbers. Tests drive the simulation by hand, or leave it to a thread of its own.

use crate::backend::Results;
use crate::engine::port::{Port, Runner, TableSize};
use crate::engine::run;
use crate::engine::scheduler::Scheduler;
use crate::engine::small::SmallOps;
use crate::engine::step::Step;
use crate::error::ErrorKind;
use crate::guard::{self, caught};
use crate::host::step::Host;
use crate::memory::Memory;
use crate::sync::plain::{AtomicBool, Ordering::SeqCst};
use crate::sync::{Mutex, lock, threads};
use crate::view::Serial;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// The faults to come, each at a step, counted as steps begin, from 1.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub kernel_at: Option<u64>,
    pub loss_at: Option<u64>,
    pub stuck_at: Option<u64>,
}

/// How the simulation behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    pub seed: u64,
    pub faults: Faults,
    /// Virtual nanoseconds after which a step that never ends takes the device with it.
    pub watchdog_ns: Option<u64>,
    /// Small steps run where they are taken up, as on the CPU; else everything goes through
    /// streams.
    pub small: bool,
    /// A thread of its own runs it; else tests do.
    pub own_thread: bool,
}

struct World {
    scheduler: Scheduler,
    port: &'static Port,
    streams: Vec<VecDeque<Step>>,
    reached: Vec<u64>,
    /// A step that never ends, a stream each, and when it began.
    stuck: Vec<Option<(Step, u64)>>,
    clock: u64,
    random: u64,
    begun: u64,
}

pub(crate) struct SimRunner {
    script: Script,
    memory: Arc<Memory>,
    world: Mutex<Option<World>>,
    thread: Mutex<Option<threads::Thread>>,
    abandoned: AtomicBool,
}

/// A possible next event.
enum Event {
    Visit,
    Run(usize),
    Tick(u64),
    Expire(u64),
}

impl SimRunner {
    pub fn new(script: Script, memory: Arc<Memory>) -> SimRunner {
        SimRunner {
            script,
            memory,
            world: Mutex::new(None),
            thread: Mutex::new(None),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Nothing happens but by [`step`](Self::step).
    pub fn is_by_hand(&self) -> bool {
        !self.script.own_thread
    }

    /// Lets one thing happen, chosen by the seed, and then polls the sources; false
    /// where nothing can.
    pub fn step(&self, port: &'static Port) -> bool {
        let went_on = self.go_on(port);
        // Without the lock: what a source does is the user's.
        while port.sources.run() {}
        went_on
    }

    fn go_on(&self, port: &'static Port) -> bool {
        let mut slot = guard::lock(&self.world);
        let world = slot.get_or_insert_with(|| World {
            scheduler: Scheduler::new(port),
            port,
            streams: (0..port.profile.limits.all_streams()).map(|_| VecDeque::new()).collect(),
            reached: vec![0; port.profile.limits.all_streams() as usize],
            stuck: (0..port.profile.limits.all_streams()).map(|_| None).collect(),
            clock: 0,
            random: self.script.seed,
            begun: 0,
        });
        let mut events = Vec::new();
        if !world.scheduler.is_clear() || port.mailbox.has_queued() {
            events.push(Event::Visit);
        }
        let runs = |&s: &usize| {
            let ready = |step: &Step| {
                step.waits.iter().all(|w| world.reached[w.stream as usize] >= w.point)
            };
            world.stuck[s].is_none() && world.streams[s].front().is_some_and(ready)
        };
        // An urgent step goes before those that have not begun.
        let urgent = (port.profile.limits.streams as usize..world.streams.len()).find(runs);
        let all = urgent.unwrap_or(0)..world.streams.len();
        events.extend(all.filter(runs).map(Event::Run));
        if let Some(deadline) = world.scheduler.machine.deadline() {
            events.push(Event::Tick(deadline));
        }
        if events.is_empty() {
            // Time passes only where nothing else happens.
            let first = world.stuck.iter().flatten().map(|(_, began)| *began).min();
            if let (Some(began), Some(limit)) = (first, self.script.watchdog_ns) {
                // A time that the clock never comes to is no limit.
                let expires = began.checked_add(limit).filter(|&at| at < u64::MAX);
                events.extend(expires.map(Event::Expire));
            }
        }
        if events.is_empty() {
            return false;
        }
        let chosen = (world.next_random() % events.len() as u64) as usize;
        match events.swap_remove(chosen) {
            Event::Visit => self.visit(world),
            Event::Run(stream) => self.run(world, stream),
            Event::Tick(to) => {
                world.clock = world.clock.max(to);
                world.scheduler.machine.tick(world.clock);
            }
            Event::Expire(to) => {
                world.clock = world.clock.max(to);
                port.life.end(
                    ErrorKind::DeviceLost,
                    "the device is lost: a step ran longer than the watchdog allows",
                );
                world.end();
            }
        }
        let now = world.clock;
        while let Some(step) = world.scheduler.machine.next(now) {
            world.streams[step.at.stream as usize].push_back(step);
        }
        true
    }

    fn host(&self) -> Host<'_> {
        Host { memory: &self.memory, parallel: &Serial, inline_values: false }
    }

    fn visit(&self, world: &mut World) {
        let count = 1 + world.next_random() % 4;
        let limit_ns = if self.script.small { 2_000 } else { 0 };
        let mut small = SmallOps::new(world.port, self.host(), limit_ns);
        world.scheduler.visit_queued(world.port, count as usize, || world.clock, &mut small);
        if world.scheduler.machine.is_ended() {
            world.end();
        }
    }

    fn run(&self, world: &mut World, stream: usize) {
        let Some(mut step) = world.streams[stream].pop_front() else { return };
        world.begun += 1;
        let faults = self.script.faults;
        let names: Vec<&str> = step.nodes().map(|n| n.op.name()).collect();
        if faults.loss_at == Some(world.begun) {
            let at = step.nodes().next().map(|n| n.at);
            let place = at.map_or(String::new(), |at| format!(" ({}:{})", at.file(), at.line()));
            let text =
                format!("the device is lost: it failed while running {}{place}", names.join(", "));
            world.port.life.end(ErrorKind::DeviceLost, text);
            world.end();
            return;
        }
        if faults.stuck_at == Some(world.begun) {
            world.stuck[stream] = Some((step, world.clock));
            return;
        }
        let host = self.host();
        if faults.kernel_at == Some(world.begun) {
            let node = step.nodes().next();
            let error = node.map(|n| n.fail(ErrorKind::Kernel, "the kernel failed (simulated)"));
            let results: Results =
                (0..step.work().results()).filter_map(|_| error.clone().map(Err)).collect();
            run::publish(&mut step, results, world.port, None);
        } else {
            run::run(&mut step, world.port, host);
        }
        world.reached[stream] = step.at.point;
        world.clock += step.cost_ns;
        let now = world.clock;
        world.scheduler.machine.finished(step, now);
    }

    /// A step for the thread of its own. A panic of the engine's leaves its task table in doubt: it
    /// ends the device, and every await with it.
    fn step_or_lose(&self, port: &'static Port) -> bool {
        caught(|| self.step(port)).unwrap_or_else(|words| {
            port.life.end(
                ErrorKind::DeviceLost,
                format!("the device is lost: its engine panicked: {words}"),
            );
            if let Some(world) = &mut *guard::lock(&self.world) {
                world.end();
            }
            true
        })
    }

    /// The life of the simulation's own thread.
    fn live(&self, port: &'static Port) {
        loop {
            while self.step_or_lose(port) {}
            if self.abandoned.load(SeqCst) {
                let mut thread = lock(&self.thread);
                if port.mailbox.intake.is_empty() {
                    *thread = None;
                    return;
                }
            } else {
                threads::park();
            }
        }
    }
}

impl World {
    /// SplitMix64 (Steele et al., OOPSLA 2014).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn end(&mut self) {
        self.scheduler.end();
        self.streams.iter_mut().for_each(VecDeque::clear);
        // A real device's stuck thread would keep its step; here it goes.
        self.stuck.iter_mut().for_each(|s| *s = None);
    }
}

impl Runner for SimRunner {
    fn wake(&self, _: usize) {}

    fn start(&self, port: &'static Port) {
        if !self.script.own_thread {
            return;
        }
        let mut slot = lock(&self.thread);
        match &*slot {
            Some(thread) => thread.unpark(),
            None => {
                let life = move || {
                    if let Some(runner) = port.runner.as_any().downcast_ref::<SimRunner>() {
                        runner.live(port);
                    }
                };
                *slot = threads::start(format!("futensor-{}", port.profile.name), life).ok();
            }
        }
    }

    fn abandon(&self) {
        self.abandoned.store(true, SeqCst);
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }

    fn polls_sources(&self) -> bool {
        true
    }

    fn table_size(&self) -> TableSize {
        let world = lock(&self.world);
        world.as_ref().map_or_else(TableSize::default, |world| world.scheduler.machine.table_size())
    }

    fn trim(&self) -> usize {
        self.memory.trim()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
