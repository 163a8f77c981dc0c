//! The state machine: which node is wanted, which node waits for which, and which step runs next on
//! which stream.
//!
//! The machine is a pure function of events (a visit, a finished step, the time, the device's end)
//! to steps. It owns no threads, reads no clock and never waits, so the same machine runs under the
//! CPU's workers and under a simulation that replays a seed. The runner calls the machine under one
//! lock.
//!
//! A node enters the task table when it has an observer (a handle, a detach), and brings the
//! ancestors that it needs. A node without an observer is never entered; an entered node leaves
//! again when its last observer goes. An entry is `Waiting` until each of its inputs is complete or
//! submitted. It may be `Delayed` for a moment, in the hope of fusing with later ops. Then it is
//! `Ready` in a queue, and it ends as a part of a submitted step.
//!
//! This file has the events. `task_table` has the entries and their edges, `epochs` the ends of
//! `waitall`s, `enter` the way in and out of the table, `queue` the choice of the next step,
//! `take_up` the making of a step, `stream` the account of a stream.

#![allow(unsafe_code)]

mod enter;
mod epochs;
mod queue;
mod stream;
mod take_up;
mod task_table;
mod wakers;

use super::limits::Limits;
use super::port::{Port, TableSize};
use super::pressure::Pressure;
use super::step::Step;
use crate::concurrent::completion::{AWAITED, DETACHED, ENTERED, Phase, QUEUED, State, VISITED};
use crate::error::{Error, ErrorKind};
use crate::graph::node::{Node, NodeLink, Op, free};
use crate::sync::Ordering::Relaxed;
use epochs::Epochs;
use smallvec::SmallVec;
use std::collections::VecDeque;
use stream::Stream;
use task_table::{EntryId, EntryRef, Stage, TaskTable};

pub(crate) struct Machine {
    port: &'static Port,
    limits: Limits,
    table: TaskTable,
    epochs: Epochs,
    streams: Vec<Stream>,
    /// Ready entries that begin a chain.
    queue: VecDeque<EntryRef>,
    /// Ready entries that come before all others.
    urgent: VecDeque<EntryRef>,
    delayed: Vec<EntryRef>,
    /// The earliest deadline of a delayed entry.
    delayed_until: u64,
    /// The address of the node whose turn it is. The node may be scheduled again meanwhile.
    turn: usize,
    in_flight: usize,
    /// Wraps around, where the limit allows so many.
    in_flight_bytes: usize,
    /// Entries that became unblocked, and are to be delayed or queued.
    unblocked: Vec<EntryId>,
    next_stream: usize,
    /// The time of the last event.
    now: u64,
    ended: bool,
}

/// The outcome of a visit.
pub(crate) enum Visit {
    Settled,
    /// The node is new and wanted: the scheduler runs it if it is small, or enters it.
    New(NodeLink),
}

/// True of a node with an observer: a handle is there, or it is detached. The last handle's drop
/// and a claim that is given back come in either order, and one sees the other: here, or in
/// `Port::unobserved`.
pub(super) fn is_wanted(node: &NodeLink) -> bool {
    // First the counts: a detach comes before its handle goes.
    node.counts_in_order().handles > 0 || node.completion.state().has(DETACHED)
}

/// The visit of a node that a step may be reading; a panic of the engine ends it as well.
struct Visiting<'a>(&'a Node);

impl Drop for Visiting<'_> {
    fn drop(&mut self) {
        self.0.completion.clear(VISITED);
    }
}

impl Machine {
    pub fn new(port: &'static Port, limits: Limits) -> Machine {
        Machine {
            port,
            limits,
            table: TaskTable::default(),
            epochs: Epochs::new(),
            streams: (0..limits.all_streams()).map(|_| Stream::default()).collect(),
            queue: VecDeque::new(),
            urgent: VecDeque::new(),
            delayed: Vec::new(),
            delayed_until: u64::MAX,
            turn: 0,
            in_flight: 0,
            in_flight_bytes: 0,
            unblocked: Vec::new(),
            next_stream: 0,
            now: 0,
            ended: false,
        }
    }

    /// True while the task table is empty.
    pub fn is_idle(&self) -> bool {
        self.table.is_empty()
    }

    /// The size of the task table.
    pub fn table_size(&self) -> TableSize {
        TableSize { entries: self.table.len(), markers: self.epochs.markers() }
    }

    /// True once nothing is entered any more.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// The earliest deadline of a delayed entry.
    pub fn deadline(&self) -> Option<u64> {
        (!self.delayed.is_empty()).then_some(self.delayed_until)
    }

    /// Visits a node that came out of the intake.
    pub fn visit(&mut self, node: NodeLink, now: u64) -> Visit {
        self.now = now;
        self.turn = node.address();
        let entry = node.entry();
        let is_new = if entry.is_none() && node.completion.state().phase() == Phase::Pending {
            let state = node.completion.clear(QUEUED);
            self.visit_at(&node, entry, state)
        } else {
            // A step may be reading the node. This link is no reader, and is not to keep the node
            // from being written over.
            let state = node.completion.exchange(QUEUED, VISITED);
            let _visiting = Visiting(&node);
            self.visit_at(&node, entry, state)
        };
        if is_new { Visit::New(node) } else { Visit::Settled }
    }

    /// True where the node is new and wanted.
    fn visit_at(&mut self, node: &NodeLink, entry: Option<EntryId>, state: State) -> bool {
        if let Op::Marker = node.op {
            self.mark(node.clone());
            return false;
        }
        if let Some(id) = entry {
            self.count_in(id);
        }
        if state.is_complete() || state.phase() == Phase::Fused {
            if let Some(id) = entry.filter(|&id| self.table.entry(id).stage == Stage::Outside) {
                self.end_outside(id, self.now);
            }
            return false;
        }
        let wanted = is_wanted(node);
        if state.phase() != Phase::Pending {
            // A poll runs the node just now, or a submitted step does. A temporary that a poll has
            // claimed for its one reader is that reader's affair: a poll that gives both back
            // schedules the reader alone, and an entry here would wait for ever.
            match entry.map(|id| self.table.entry_mut(id)) {
                None if wanted => self.wait_outside(node.clone()),
                // The node's end, or the claimer that gives it back, schedules it again.
                Some(entry) if entry.stage == Stage::Outside => entry.is_observed = wanted,
                _ => {}
            }
            return false;
        }
        match entry {
            // An unwanted node is kept by its consumers, or dies here, skipped.
            None => wanted,
            Some(id) => {
                self.visit_entry(id, node, wanted, state.has(AWAITED));
                false
            }
        }
    }

    /// Visits a pending node that has an entry.
    fn visit_entry(&mut self, id: EntryId, node: &NodeLink, wanted: bool, awaited: bool) {
        let is_source = matches!(node.op, Op::Source(_));
        let entry = self.table.entry_mut(id);
        entry.is_observed = wanted;
        let is_deferred = std::mem::take(&mut entry.is_deferred) && entry.stage == Stage::Waiting;
        if entry.is_unwanted() {
            self.cancel(id);
            return;
        }
        if is_deferred {
            self.resolve(vec![id], &mut |_| false);
        }
        if self.table.entry(id).stage == Stage::Outside && !is_source {
            // A poll gave the node back. It is the engine's now, unless another poll was faster.
            if node.completion.set(ENTERED).phase() == Phase::Pending {
                let entry = self.table.entry_mut(id);
                entry.stage = Stage::Waiting;
                if let Some(registration) = entry.registration.take() {
                    node.completion.deregister(registration);
                }
                self.resolve(vec![id], &mut |_| false);
            }
        }
        if awaited {
            self.release_delayed();
        }
        self.settle_unblocked(self.now, awaited);
        if is_source {
            self.ask_source(id);
        }
    }

    /// Visits an awaited node before its turn in the intake. The node stays there until its turn.
    pub fn visit_early(&mut self, node: NodeLink) -> Visit {
        self.turn = 0;
        let state = node.completion.state();
        let is_new = state.has(QUEUED) && state.phase() == Phase::Pending && node.entry().is_none();
        if is_new && is_wanted(&node) { Visit::New(node) } else { Visit::Settled }
    }

    /// Says whether a stream's first step was put off: what need not follow that step goes to other
    /// streams.
    #[allow(dead_code)] // Host devices put nothing off.
    pub fn stuck(&mut self, stream: usize, is: bool) {
        self.streams[stream].is_stuck = is;
    }

    /// A step has run; its nodes are complete.
    pub fn finished(&mut self, step: Step, now: u64) {
        let ended = step.entries.len();
        let closing = &self.port.counters.closing;
        if self.ended {
            // The end has counted everything else off.
            let _ = closing.fetch_update(Relaxed, Relaxed, |n| Some(n.saturating_sub(ended)));
            return;
        }
        self.streams[step.at.stream as usize].finished(step.at.point);
        self.in_flight -= 1;
        self.in_flight_bytes = self.in_flight_bytes.wrapping_sub(step.bytes);
        self.port.counters.in_flight.store(self.in_flight, Relaxed);
        let weight = step.nodes().map(|n| Pressure::weight(n.bytes())).fold(0, usize::wrapping_add);
        // First the counters: removing an entry may end a `waitall`, and its waiter looks at them.
        self.port.pressure.finished_many(ended, weight);
        let _ = closing.fetch_update(Relaxed, Relaxed, |n| Some(n.saturating_sub(ended)));
        if !self.limits.ahead {
            for id in self.table.consumers_outside(&step.entries) {
                self.table.entry_mut(id).chain = Some(step.at.stream);
                self.unblock(&[id]);
            }
        }
        for &id in &step.entries {
            self.take_out(id);
        }
        self.settle_unblocked(now, false);
        // Freeing may cascade. Whoever waits for the device finds the memory free of what was
        // dropped meanwhile.
        free(step.into_links());
        self.close_epochs();
    }

    /// Time has passed: an entry that was delayed long enough becomes ready, and all others with
    /// it.
    pub fn tick(&mut self, now: u64) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.release_delayed();
        }
    }

    /// The device has ended: everything in the task table fails, running steps included. A thread
    /// that is stuck in a step is not waited for; should it come back, its result is thrown away.
    pub fn end(&mut self) {
        self.ended = true;
        let (mut ops, mut weight) = (0, 0usize);
        let ids = self.table.ids();
        for &id in &ids {
            let entry = self.table.entry(id);
            let (node, stage) = (entry.node.clone(), entry.stage);
            let pending = node.completion.claim(Phase::Writing, 0);
            // A node that somebody else has claimed, or ended, is counted off by them.
            if pending || matches!(stage, Stage::Submitted(_)) {
                ops += 1;
                weight = weight.wrapping_add(Pressure::weight(node.bytes()));
            }
            if pending || node.completion.begin_writing() {
                let error = self.end_error(&node);
                // SAFETY: we hold the right to write. Of a running step the inputs stay: its thread
                // may be reading them.
                let inputs = unsafe {
                    let inputs = if pending { node.let_go() } else { SmallVec::new() };
                    self.port.finish(&node, Err(error));
                    inputs
                };
                free(inputs);
            }
        }
        for id in ids {
            self.remove(id);
        }
        self.unblocked.clear();
        self.delayed.clear();
        self.queue.clear();
        self.urgent.clear();
        self.in_flight = 0;
        self.in_flight_bytes = 0;
        self.streams.iter_mut().for_each(Stream::end);
        self.port.counters.in_flight.store(0, Relaxed);
        self.port.pressure.finished_many(ops, weight);
        self.port.pressure.open_gate();
    }

    fn end_error(&self, node: &NodeLink) -> Error {
        let error = self.port.life.end_error(node.op.name(), node.at);
        error.unwrap_or_else(|| node.fail(ErrorKind::DeviceLost, "the device is gone"))
    }

    /// Fails a node that was taken in after the end.
    pub fn refuse(&mut self, node: NodeLink) {
        if node.completion.claim(Phase::Writing, 0) {
            let error = self.end_error(&node);
            // SAFETY: we hold the right to write.
            let inputs = unsafe {
                let inputs = node.let_go();
                self.port.finish(&node, Err(error));
                inputs
            };
            free(inputs);
            self.port.pressure.finished(1, node.bytes());
        }
    }
}

#[cfg(all(test, not(futensor_loom)))]
#[path = "machine_tests.rs"]
pub(super) mod tests;
