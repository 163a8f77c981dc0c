//! Submissions: steps that are queued on a lane and not yet seen to be through, and their
//! publication.
//!
//! The device's thread pushes them, the lane's reaper takes them off in the same order. The file
//! knows nothing of streams.

use super::Shared;
use crate::concurrent::completion::AWAITED;
use crate::cuda::device::background::Wanted;
use crate::cuda::device::index_check::Known;
use crate::cuda::device::libraries::nvidia::Event;
use crate::cuda::device::memory::pinned::Retained;
use crate::cuda::device::step::HostCopy;
use crate::cuda::device::timing::{Anchor, Timed};
use crate::engine::events::Launched;
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

/// One step, or one chunk of a copy, on its way.
pub(super) struct Submission {
    /// Which one it is on its lane, from 1.
    pub at: u64,
    /// None for a chunk of a copy.
    pub step: Option<Step>,
    pub retained: Retained,
    pub host_copy: Option<HostCopy>,
    pub launched: Instant,
    /// The GPU's own times of it, where they are taken.
    pub timed: Option<Timed>,
    /// The step's, for `tracing`.
    pub span: Option<Launched>,
}

#[derive(Default)]
pub(super) struct InFlight {
    pub submissions: VecDeque<Submission>,
    /// Events to wait for, and the submissions that they stand behind.
    pub events: VecDeque<(u64, Event)>,
    /// When the lane was last seen to come further.
    pub moved: Option<Instant>,
    /// One reaper waits for an event, or publishes submissions: the lane's post is taken.
    is_reaped: bool,
    /// Reapers that wait for the post, or for an event.
    idle: usize,
    pub reapers: Vec<JoinHandle<()>>,
}

/// A lane as its reaper sees it.
#[derive(Default)]
pub(super) struct Lane {
    pub in_flight: std::sync::Mutex<InFlight>,
    /// The origin of the GPU's times on this lane.
    pub anchor: Mutex<Option<Anchor>>,
    changed: Condvar,
}

impl Lane {
    pub fn in_flight(&self) -> std::sync::MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn ring(&self) {
        // Under the lock, so that a reaper that has just looked is asleep by now.
        let _in_flight = self.in_flight();
        self.changed.notify_all();
    }

    /// Takes the post, with the next event; waits for both to be had, or for the end. A reaper that
    /// has the post gives it back first.
    pub fn next_event(&self, has_post: bool, over: impl Fn() -> bool) -> Option<(u64, Event)> {
        let mut in_flight = self.in_flight();
        in_flight.is_reaped &= !has_post;
        loop {
            if over() {
                return None;
            }
            if !in_flight.is_reaped
                && let Some(next) = in_flight.events.pop_front()
            {
                in_flight.is_reaped = true;
                return Some(next);
            }
            in_flight.idle += 1;
            in_flight =
                self.changed.wait(in_flight).unwrap_or_else(|poisoned| poisoned.into_inner());
            in_flight.idle -= 1;
        }
    }

    /// Gives the post back before a call that may take long.
    pub fn leave_post(&self) {
        self.in_flight().is_reaped = false;
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
        let mut in_flight = self.in_flight();
        if in_flight.is_reaped || in_flight.events.is_empty() {
            return Ok(());
        }
        if in_flight.idle > 0 {
            self.changed.notify_one();
            return Ok(());
        }
        match another() {
            Ok(handle) => in_flight.reapers.push(handle),
            Err(why) if in_flight.reapers.is_empty() => return Err(why),
            // Those that are away come back.
            Err(_) => {}
        }
        Ok(())
    }

    /// True where somebody awaits one of the submissions up to this one.
    pub fn is_awaited(&self, at: u64) -> bool {
        let in_flight = self.in_flight();
        let awaited = |step: &Step| step.nodes().any(|n| n.completion.state().has(AWAITED));
        in_flight
            .submissions
            .iter()
            .take_while(|f| f.at <= at)
            .any(|f| f.step.as_ref().is_some_and(awaited))
    }

    /// True where the first submission has had the lane for itself for longer than this.
    pub fn is_late(&self, limit: Duration) -> bool {
        let in_flight = self.in_flight();
        let Some(first) = in_flight.submissions.front() else { return false };
        in_flight.moved.map_or(first.launched, |moved| moved.max(first.launched)).elapsed() > limit
    }
}

/// The op and its place in the caller's source.
fn place(node: &NodeLink) -> String {
    format!("{} ({}:{})", node.op.name(), node.at.file(), node.at.line())
}

impl Shared {
    /// The ops that the lanes have begun, as far as that is known: those of each lane's first
    /// submissions.
    pub(super) fn running_ops(&self) -> String {
        let mut named: Vec<String> = Vec::new();
        for lane in &self.lanes {
            let in_flight = lane.in_flight();
            let first = in_flight.submissions.iter().filter_map(|f| f.step.as_ref()).take(3);
            named.extend(first.flat_map(|step| step.nodes().map(place).collect::<Vec<_>>()));
        }
        let more = named.len().saturating_sub(8);
        named.truncate(8);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        named.join(", ") + &more
    }

    /// Publishes a submission that is through: values and errors become known, and tasks that await
    /// them wake. A chunked copy is published by the thread that copies its last chunk.
    pub(super) fn publish(self: &Arc<Self>, lane: usize, submission: Submission) {
        let Submission { step, retained, host_copy, timed, launched, span, .. } = submission;
        // Staging is of no more use; a host copy's is read below.
        drop(retained);
        let times = timed.and_then(|timed| {
            lock(&self.lanes[lane].anchor)
                .as_mut()
                .and_then(|anchor| anchor.read(timed, &self.timed))
        });
        let host_copy = match host_copy {
            // Nothing is left to copy.
            Some(HostCopy::Chunk(chunk)) if chunk.block.is_none() => return chunk.deliver(),
            Some(HostCopy::Chunk(chunk)) => {
                let Some(open) = self.heap.open() else { return };
                open.background.make(Wanted::Copy, move || {
                    chunk.deliver();
                    Ok(())
                });
                return;
            }
            host_copy => host_copy,
        };
        let Some(step) = step else { return };
        if let Some(HostCopy::Chunked(transfer, _)) = &host_copy {
            let (shared, transfer) = (self.clone(), transfer.clone());
            transfer.then(Box::new(move || {
                if !shared.over.load(SeqCst) {
                    shared.conclude(step, host_copy, span, launched, times);
                }
            }));
            return;
        }
        self.conclude(step, host_copy, span, launched, times);
    }

    fn conclude(
        &self,
        mut step: Step,
        host_copy: Option<HostCopy>,
        span: Option<Launched>,
        launched: Instant,
        times: Option<(Instant, Instant)>,
    ) {
        // Before anybody sees the values.
        if let Some(span) = span {
            span.landed(times.map(|(began, ended)| ended.saturating_duration_since(began)));
        }
        if self.port.recordings.is_on() {
            self.port.recordings.landed(step.at, launched, times);
        }
        self.port.counters.closing.fetch_add(step.entries.len(), Relaxed);
        // Their inputs were let go when they were launched.
        free(self.port.conclude_step(&mut step, |step, k, node| {
            let made = lock(&self.table).get(step.entries[k] as usize).cloned().flatten();
            Some(result_of(node, made?, host_copy.as_ref()))
        }));
        lock(&self.done).push(step);
    }
}

/// The result of a node whose submission is through.
fn result_of(node: &NodeLink, made: Known, host_copy: Option<&HostCopy>) -> Result<Value, Error> {
    let value = made.result?;
    if let Some(error) = made.checks.iter().find_map(|check| check.error()) {
        return Err(error);
    }
    if let (Op::Sink(sink), Some(host_copy)) = (&node.op, host_copy) {
        host_copy.give(&**sink, node)?;
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
