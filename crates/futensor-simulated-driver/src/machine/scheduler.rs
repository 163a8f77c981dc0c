//! The scheduler: one thread that runs one item at a time, from a stream that the seed picks.
//!
//! Which streams could move is a function of what has been enqueued and what has run; which one
//! does is drawn from the seeded generator. So under `futsim_pause` and `futsim_step`, or in lazy
//! mode with one client thread, a seed replays an execution.

use crate::checks::race::Point;
use crate::checks::report::Findings;
use crate::machine::faults::Fault;
use crate::machine::objects::{Pool, Stream};
use crate::machine::sim::{Sim, lock, sleep_for_work, wake_scheduler, wake_waiters};
use crate::machine::work::Work;
use crate::memory::{Life, Touch};
use crate::random::Random;
use crate::status::{self, OUT_OF_MEMORY};
use std::sync::{Arc, Once};
use std::time::Duration;

/// Starts the thread, once.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        std::thread::Builder::new()
            .name("simulated device".into())
            .spawn(run)
            .expect("a thread for the simulated device");
    });
}

impl Sim {
    /// Streams whose first item could run now, of the greatest priority there is among them.
    pub fn runnable(&self) -> Vec<u64> {
        let ready = |work: &Work| !work.unmet() && (self.faults.hangs_released || !work.hangs());
        let streams = self.streams.iter().filter(|(_, stream)| {
            let first = stream.queue.front();
            !stream.running
                && !stream.stalled
                && first.is_some_and(|item| {
                    item.needs.iter().all(|&point| self.has_run(point)) && ready(&item.work)
                })
        });
        let ready: Vec<(u64, i32)> = streams.map(|(&id, stream)| (id, stream.priority)).collect();
        let first = ready.iter().map(|&(_, priority)| priority).min();
        ready
            .into_iter()
            .filter(|&(_, priority)| Some(priority) == first)
            .map(|(id, _)| id)
            .collect()
    }

    /// True where what is queued does not run until somebody says so.
    pub fn stands_still(&self) -> bool {
        let held = |stream: &Stream| {
            let first = stream.queue.front();
            stream.stalled
                || first.is_some_and(|item| item.work.hangs() && !self.faults.hangs_released)
        };
        self.pace.paused || self.streams.values().any(held)
    }

    fn may_run(&self) -> bool {
        let pace = &self.pace;
        pace.credits > 0 || !pace.paused && (!pace.lazy || pace.waiters > 0)
    }

    /// In lazy mode a query lets one item run, or a client that polls would wait for ever.
    pub fn grant_query(&mut self) {
        if self.pace.lazy && !self.pace.paused {
            self.pace.credits += 1;
            wake_scheduler();
        }
    }

    /// Whether a stream waits for a value that the host writes, or for another process.
    fn waits_for_value(&self) -> bool {
        self.streams
            .values()
            .any(|stream| stream.queue.front().is_some_and(|item| item.work.unmet()))
    }
}

/// The scheduler's thread.
fn run() {
    let mut sim = lock();
    loop {
        // Asked first: what is waited for may come at any time, without a word, and would be seen
        // by neither if it came between the two.
        let waits = sim.waits_for_value();
        let ready = if sim.may_run() { sim.runnable() } else { Vec::new() };
        if ready.is_empty() {
            if sim.may_run() && sim.pace.credits > 0 {
                sim.pace.credits = 0;
                wake_waiters();
            }
            if waits {
                drop(sim);
                std::thread::sleep(Duration::from_micros(200));
                sim = lock();
            } else {
                sim = sleep_for_work(sim);
            }
            continue;
        }
        let id = ready[sim.random.below(ready.len())];
        let mut order = Random::new(sim.random.bits());
        sim.pace.credits = sim.pace.credits.saturating_sub(1);
        sim.pace.in_flight = Some(id);
        let Some(stream) = sim.streams.get_mut(&id) else { continue };
        let Some(item) = stream.queue.pop_front() else { continue };
        stream.running = true;
        stream.passing = item.work.is_mark();
        let context = stream.context;
        let mut result = sim.before(context, &item.work, &item.touches, &item.label);
        if result.is_ok() {
            drop(sim);
            let mut found = Findings::new();
            result = item.work.run(&mut order, &mut found);
            sim = lock();
            found.into_iter().for_each(|(kind, text)| sim.report(kind, text));
        }
        sim.pace.in_flight = None;
        sim.stats.items_run += 1;
        match result {
            Ok(()) => sim.finish(id, item.at, &item.work, &item.label),
            Err(fault) => sim.fail(id, &item.label, fault),
        }
        wake_waiters();
    }
}

impl Sim {
    fn finish(&mut self, id: u64, at: u64, work: &Work, label: &Arc<str>) {
        // The stream is gone after a reset, and complete after a fault elsewhere in its context.
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.running = false;
        stream.completed = stream.completed.max(at);
        let empty = stream.destroyed && stream.queue.is_empty();
        match work {
            Work::Graph(nodes) => {
                for node in nodes.iter() {
                    self.after(&node.work, (id, at), &node.label);
                }
            }
            work => self.after(work, (id, at), label),
        }
        if empty {
            self.streams.remove(&id);
        }
    }

    fn fail(&mut self, id: u64, label: &str, fault: Fault) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.running = false;
        let context = stream.context;
        if stream.destroyed {
            self.streams.remove(&id);
        }
        self.report("kernel", format!("{label}: {} ({})", fault.text, status::name(fault.status)));
        self.poison(context, fault.status);
    }
}

impl Sim {
    /// What must happen, and hold, before an item runs.
    pub fn before(
        &mut self,
        context: u64,
        work: &Work,
        touches: &[Touch],
        label: &str,
    ) -> Result<(), Fault> {
        match work {
            Work::Open(span) => {
                if !span.open() {
                    return Err(Fault {
                        status: OUT_OF_MEMORY,
                        text: "the host has no memory".into(),
                    });
                }
                if let Some(allocation) = self.memory.at(span.start) {
                    allocation.life = Life::Here;
                }
                Ok(())
            }
            // A free and a wait name their memory for the race check alone.
            Work::Close(_) => Ok(()),
            Work::Graph(nodes) => {
                for node in nodes.iter() {
                    self.before(context, &node.work, &node.touches, &node.label)?;
                }
                Ok(())
            }
            // A kernel that only was handed an address of freed memory does nothing wrong, and one
            // that follows it faults by itself. Peers' memory would not fault by itself.
            Work::Launch(_) => {
                let live =
                    |sim: &mut Sim, base| sim.memory.at(base).is_some_and(|a| a.life == Life::Here);
                let mut here = touches.to_vec();
                here.retain(|touch| live(self, touch.base));
                self.check_presence(context, &here, false, label)
            }
            Work::Native { .. } => self.check_presence(context, touches, false, label),
            _ => self.check_presence(context, touches, true, label),
        }
    }

    /// What an item leaves behind.
    pub fn after(&mut self, work: &Work, point: Point, label: &str) {
        self.now += work.cost();
        match work {
            Work::Stamp(event) => {
                let now = self.now;
                if let Some(event) = self.events.get_mut(event)
                    && event.point == Some(point)
                {
                    event.time = Some(now);
                }
            }
            Work::Close(start) => {
                let serial = self.memory.at(*start).map_or(0, |allocation| allocation.serial);
                let (pools, reuse) = (&self.pools, self.reuse);
                let keeps = |pool| reuse && pools.get(&pool).is_some_and(Pool::keeps);
                if let Some(damaged) = self.memory.gone(*start, point, keeps) {
                    let offset = damaged as i64 - *start as i64;
                    let text = format!(
                        "{label}: byte {offset} relative to allocation {serial} was written"
                    );
                    self.report("overrun", text);
                }
                self.count_bytes();
            }
            Work::Open(_) => self.count_bytes(),
            _ => {}
        }
    }

    /// Brings the counters of bytes up to date.
    pub fn count_bytes(&mut self) {
        let held =
            (0..self.devices.len()).map(|device| self.memory.usage(device).held as u64).sum();
        self.stats.live_bytes = held;
        self.stats.peak_bytes = self.stats.peak_bytes.max(held);
    }
}
