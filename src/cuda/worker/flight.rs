//! Flights: steps that are queued on a lane and not yet seen to be through, and how they are
//! published.
//!
//! The device's thread pushes them, the lane's reaper takes them off in the same order. Knows
//! nothing of streams.

use super::Shared;
use crate::concurrent::completion::AWAITED;
use crate::cuda::device::background::Wanted;
use crate::cuda::device::index_check::Known;
use crate::cuda::device::libraries::nvidia::Event;
use crate::cuda::device::memory::pinned::Cargo;
use crate::cuda::device::step::Landing;
use crate::cuda::device::timing::{Anchor, Timed};
use crate::engine::step::Step;
use crate::error::Error;
use crate::graph::node::{NodeLink, Op, free};
use crate::graph::value::Value;
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One step, or one piece of a copy, on its way.
pub(super) struct Flight {
    /// Which one it is on its lane, from 1.
    pub at: u64,
    /// None for a piece of a copy.
    pub step: Option<Step>,
    pub cargo: Cargo,
    pub landing: Option<Landing>,
    pub launched: Instant,
    /// The GPU's own times of it, where they are taken.
    pub timed: Option<Timed>,
}

#[derive(Default)]
pub(super) struct Sky {
    pub flights: VecDeque<Flight>,
    /// Events to wait for, and the flights that they stand behind.
    pub events: VecDeque<(u64, Event)>,
    /// When the lane was last seen to come further.
    pub moved: Option<Instant>,
    /// One reaper waits for an event, or publishes what is behind one: the lane's post is taken.
    is_reaped: bool,
    /// Reapers that wait for the post, or for an event.
    idle: usize,
    pub reapers: Vec<JoinHandle<()>>,
}

/// A lane as its reaper sees it.
#[derive(Default)]
pub(super) struct Lane {
    pub sky: std::sync::Mutex<Sky>,
    /// What the GPU's times on this lane are counted from.
    pub anchor: Mutex<Option<Anchor>>,
    changed: Condvar,
}

impl Lane {
    pub fn sky(&self) -> std::sync::MutexGuard<'_, Sky> {
        self.sky.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn ring(&self) {
        // Under the lock, so that a reaper that has just looked is asleep by now.
        let _sky = self.sky();
        self.changed.notify_all();
    }

    /// Takes the post, with the next event; waits for both to be had, or for the end. Who has the
    /// post gives it back first.
    pub fn next_event(&self, has_post: bool, over: impl Fn() -> bool) -> Option<(u64, Event)> {
        let mut sky = self.sky();
        sky.is_reaped &= !has_post;
        loop {
            if over() {
                return None;
            }
            if !sky.is_reaped
                && let Some(next) = sky.events.pop_front()
            {
                sky.is_reaped = true;
                return Some(next);
            }
            sky.idle += 1;
            sky = self.changed.wait(sky).unwrap_or_else(|poisoned| poisoned.into_inner());
            sky.idle -= 1;
        }
    }

    /// Gives the post back for what may take long.
    pub fn leave_post(&self) {
        self.sky().is_reaped = false;
    }

    /// Sees to it that somebody waits for the events that are there: by `another`, where all
    /// reapers are away.
    ///
    /// # Errors
    /// Those of `another`, where there is no reaper at all.
    pub fn call_reaper<E>(
        &self,
        another: impl FnOnce() -> Result<JoinHandle<()>, E>,
    ) -> Result<(), E> {
        let mut sky = self.sky();
        if sky.is_reaped || sky.events.is_empty() {
            return Ok(());
        }
        if sky.idle > 0 {
            self.changed.notify_one();
            return Ok(());
        }
        match another() {
            Ok(handle) => sky.reapers.push(handle),
            Err(why) if sky.reapers.is_empty() => return Err(why),
            // Those that are away come back.
            Err(_) => {}
        }
        Ok(())
    }

    /// True where somebody awaits one of the flights up to this one.
    pub fn is_awaited(&self, at: u64) -> bool {
        let sky = self.sky();
        let awaited = |step: &Step| step.nodes().any(|n| n.completion.state().has(AWAITED));
        sky.flights.iter().take_while(|f| f.at <= at).any(|f| f.step.as_ref().is_some_and(awaited))
    }

    /// True where the first flight has had the lane for itself for longer than this.
    pub fn is_late(&self, limit: Duration) -> bool {
        let sky = self.sky();
        let Some(first) = sky.flights.front() else { return false };
        sky.moved.map_or(first.launched, |moved| moved.max(first.launched)).elapsed() > limit
    }
}

/// The op and its place in the caller's source.
fn place(node: &NodeLink) -> String {
    format!("{} ({}:{})", node.op.name(), node.at.file(), node.at.line())
}

impl Shared {
    /// The ops that the lanes have begun, as far as that is known: those of each lane's first
    /// flights.
    pub(super) fn running_ops(&self) -> String {
        let mut named: Vec<String> = Vec::new();
        for lane in &self.lanes {
            let sky = lane.sky();
            let first = sky.flights.iter().filter_map(|f| f.step.as_ref()).take(3);
            named.extend(first.flat_map(|step| step.nodes().map(place).collect::<Vec<_>>()));
        }
        let more = named.len().saturating_sub(8);
        named.truncate(8);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        named.join(", ") + &more
    }

    /// Publishes a flight that is through: values and errors become known, and those who await them
    /// wake. What is copied from there on is copied by others, and published then.
    pub(super) fn publish(self: &Arc<Self>, lane: usize, flight: Flight) {
        let Flight { step, cargo, landing, timed, launched, .. } = flight;
        // Staging is of no more use; a landing's is read below.
        drop(cargo);
        let times = timed.and_then(|timed| {
            lock(&self.lanes[lane].anchor)
                .as_mut()
                .and_then(|anchor| anchor.read(timed, &self.timed))
        });
        let landing = match landing {
            Some(Landing::Piece(piece)) => {
                let Some(open) = self.heap.open() else { return };
                open.background.make(Wanted::Copy, move || {
                    piece.land();
                    Ok(())
                });
                return;
            }
            landing => landing,
        };
        let Some(step) = step else { return };
        if let Some(Landing::Arrival(arrival, _)) = &landing {
            let (shared, arrival) = (self.clone(), arrival.clone());
            arrival.then(Box::new(move || {
                if !shared.over.load(SeqCst) {
                    shared.conclude(step, landing, launched, times);
                }
            }));
            return;
        }
        self.conclude(step, landing, launched, times);
    }

    fn conclude(
        &self,
        mut step: Step,
        landing: Option<Landing>,
        launched: Instant,
        times: Option<(Instant, Instant)>,
    ) {
        if self.port.recordings.is_on() {
            self.port.recordings.landed(step.at, launched, times);
        }
        self.port.counters.closing.fetch_add(step.entries.len(), Relaxed);
        // What they were made from was let go when they were launched.
        free(self.port.conclude_step(&mut step, |step, k, node| {
            let made = lock(&self.table).get(step.entries[k] as usize).cloned().flatten();
            Some(result_of(node, made?, landing.as_ref()))
        }));
        lock(&self.done).push(step);
    }
}

/// What a node comes to now that its flight is through.
fn result_of(node: &NodeLink, made: Known, landing: Option<&Landing>) -> Result<Value, Error> {
    let value = made.result?;
    if let Some(error) = made.doubts.iter().find_map(|d| d.verdict()) {
        return Err(error);
    }
    if let (Op::Sink(sink), Some(landing)) = (&node.op, landing) {
        landing.give(&**sink, node)?;
    }
    Ok(value)
}

/// A lane's table slot.
pub(super) fn put(table: &Mutex<Vec<Option<Known>>>, entry: u32, made: Option<Known>) {
    let mut table = lock(table);
    let entry = entry as usize;
    if table.len() <= entry {
        table.resize_with(entry + 1, || None);
    }
    let before = std::mem::replace(&mut table[entry], made);
    // A value's last owner may be here: its memory is handed over without the lock.
    drop(table);
    drop(before);
}
