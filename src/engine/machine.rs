//! The state machine: which node is wanted, what waits for what, what runs next and where.
//!
//! A pure function of events (looked at, step finished, time passed, device ended) to steps: it
//! owns no threads, reads no clock and never waits, so the same machine runs under the CPU's
//! workers and under a simulation that replays a seed. The runner calls it under one lock.
//!
//! A node enters the task table when somebody observes it (a handle, a detach) and brings the
//! ancestors that it needs; what nobody observes is never entered, or leaves again when its last
//! observer goes. An entry is `Waiting` until each of its inputs is complete or submitted, may be
//! `Delayed` for a moment in the hope of fusing with what comes, is `Ready` in a queue, and ends as
//! part of a submitted step.
//!
//! Here stand the types and the events. `task_table` has what waits for what, `queue` what can run,
//! `take_up` what a step is made of.

#![allow(unsafe_code)]

mod queue;
mod take_up;
mod task_table;

use super::limits::Limits;
use super::port::{Port, TableSize};
use super::pressure::Pressure;
use super::step::{At, Step};
use crate::completion::{AWAITED, DETACHED, ENTERED, Phase, QUEUED, State, VISITED};
use crate::error::{Error, ErrorKind};
use crate::graph::node::{Node, NodeLink, Op, free};
use crate::sync::{Mutex, Ordering::Relaxed, lock};
use smallvec::SmallVec;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Wake, Waker};

/// Where an entry stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Some input is neither complete nor submitted.
    Waiting,
    /// Could be submitted, and is delayed until the deadline.
    Delayed,
    /// In a queue, to be submitted when the limits allow it.
    Ready,
    Submitted(At),
    /// Computed elsewhere: a poll runs it, or its source brings it.
    Outside,
}

struct Entry {
    node: NodeLink,
    stage: Stage,
    /// Inputs (edges) that are neither complete nor, where steps are submitted ahead, submitted.
    blocked: u32,
    /// When it came into the task table, in nanoseconds.
    since: u64,
    /// The stream that its last input was computed on.
    chain: Option<u16>,
    /// Entries that have this one as an input, an edge each.
    consumers: SmallVec<[u32; 2]>,
    /// The other ends of this entry's own edges: an input's entry, and the place in that one's
    /// consumers. So an edge is taken away at once, however many there are.
    edges: SmallVec<[(u32, u32); 2]>,
    /// How many of the consumers are in the task table; they want this one.
    wants: u32,
    /// Somebody observes it.
    root: bool,
    /// The epoch that it was looked at in. What is brought in before its turn has none until that
    /// comes: an earlier `waitall` is not to wait for it.
    epoch: Option<u64>,
    /// Tells an entry from an earlier one at the same place, in the queues.
    generation: u32,
    /// Its inputs are sought when its turn comes: see [`EARLY_AT_ONCE`].
    deferred: bool,
    /// The waker on the node's own list, while somebody else computes it. It holds a link to the
    /// node, so it comes off with the entry, or the node would keep itself.
    registration: Option<u32>,
    /// The one waker that a source is polled with.
    source: Option<Arc<SourceWaker>>,
}

#[derive(Default)]
struct Stream {
    submitted: u64,
    /// Up to here all steps are through.
    completed: u64,
    /// Steps that are through before others that were submitted earlier: large values on their way
    /// to the host take longer than what follows.
    early: BTreeSet<u64>,
    /// Entries that continue this stream's chain.
    queue: VecDeque<(u32, u32)>,
    /// Its first step was put off.
    stuck: bool,
}

impl Stream {
    /// Steps that are submitted and not through.
    fn depth(&self) -> u64 {
        self.submitted - self.completed - self.early.len() as u64
    }
}

/// Nodes brought in before their turn in one go. Of a longer chain the rest waits for its turn,
/// which is sure to come: else all of a long queue could be brought in under one lock.
const EARLY_AT_ONCE: usize = 256;

/// What was enqueued between two `waitall`s.
#[derive(Default)]
struct Epoch {
    open: usize,
    markers: Vec<NodeLink>,
}

pub(crate) struct Machine {
    port: &'static Port,
    limits: Limits,
    entries: Vec<Option<Entry>>,
    vacant: Vec<u32>,
    generation: u32,
    streams: Vec<Stream>,
    /// Ready entries that no stream's chain leads to, and those that come before all others.
    queue: VecDeque<(u32, u32)>,
    urgent: VecDeque<(u32, u32)>,
    /// Delayed entries, and the earliest of their deadlines.
    delayed: Vec<(u32, u32)>,
    delayed_until: u64,
    /// Address of the node whose turn it is. Somebody may ask for another look at it meanwhile.
    turn: usize,
    epochs: VecDeque<Epoch>,
    first_epoch: u64,
    in_flight: usize,
    /// Wraps around, where the limit allows so many.
    in_flight_bytes: usize,
    /// Entries that became unblocked and are to be delayed or queued.
    unblocked: Vec<u32>,
    next_stream: usize,
    /// The time of the last event.
    now: u64,
    ended: bool,
}

/// What the scheduler has to do about a node that it asked the machine to look at.
pub(crate) enum Visit {
    Settled,
    /// New and wanted: run it if it is small, else enter it.
    New(NodeLink),
}

/// Asks for another look at a node when what it waits for ends.
struct ScheduleWaker(NodeLink, &'static Port);

impl Wake for ScheduleWaker {
    fn wake(self: Arc<Self>) {
        self.1.schedule(self.0.clone());
    }
}

/// The same for a source. Whoever brings the value may keep the waker for ever: it lets the node go
/// with the entry.
struct SourceWaker(Mutex<Option<NodeLink>>, &'static Port);

impl Wake for SourceWaker {
    fn wake(self: Arc<Self>) {
        let node = lock(&self.0).clone();
        if let Some(node) = node {
            self.1.schedule(node);
        }
    }
}

impl Entry {
    /// What its node is made from.
    fn inputs(&self) -> &[NodeLink] {
        debug_assert!(!matches!(self.stage, Stage::Outside | Stage::Submitted(_)));
        // SAFETY: it is pending in our task table, and `ENTERED` keeps polls from claiming it.
        unsafe { self.node.inputs() }
    }
}

/// Somebody observes it: a handle is there, or it is detached. Of the last handle's drop and a
/// claim that is given back, in whatever order, one sees the other: here, or in `Port::unobserved`.
pub(super) fn is_wanted(node: &NodeLink) -> bool {
    // First the counts: a detach comes before its handle goes.
    node.counts_in_order().handles > 0 || node.completion.state().has(DETACHED)
}

/// While a node is looked at that a step may be reading; ends also where the engine panics.
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
            entries: Vec::new(),
            vacant: Vec::new(),
            generation: 0,
            streams: (0..limits.all_streams()).map(|_| Stream::default()).collect(),
            queue: VecDeque::new(),
            urgent: VecDeque::new(),
            delayed: Vec::new(),
            delayed_until: u64::MAX,
            turn: 0,
            epochs: VecDeque::from([Epoch::default()]),
            first_epoch: 0,
            in_flight: 0,
            in_flight_bytes: 0,
            unblocked: Vec::new(),
            next_stream: 0,
            now: 0,
            ended: false,
        }
    }

    /// A waker that asks for a look at this node.
    fn waker(&self, node: &NodeLink) -> Waker {
        Waker::from(Arc::new(ScheduleWaker(node.clone(), self.port)))
    }

    /// Has a source in the task table asked for its value.
    fn ask_source(&mut self, e: u32) {
        let port = self.port;
        let x = self.entry(e);
        let waker = x
            .source
            .get_or_insert_with(|| Arc::new(SourceWaker(Mutex::new(Some(x.node.clone())), port)));
        port.ask_source(x.node.clone(), Waker::from(waker.clone()));
    }

    /// Nothing is in the task table.
    pub fn is_idle(&self) -> bool {
        self.entries.len() == self.vacant.len()
    }

    /// What is in the task table.
    pub fn table_size(&self) -> TableSize {
        TableSize {
            entries: self.entries.len() - self.vacant.len(),
            markers: self.epochs.iter().map(|epoch| epoch.markers.len()).sum(),
        }
    }

    /// Nothing is entered any more.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// The earliest deadline of a delayed entry.
    pub fn deadline(&self) -> Option<u64> {
        (!self.delayed.is_empty()).then_some(self.delayed_until)
    }

    fn entry(&mut self, e: u32) -> &mut Entry {
        self.entries[e as usize].as_mut().expect("a number is given up with its entry")
    }

    fn entry_of(&self, e: u32) -> &Entry {
        self.entries[e as usize].as_ref().expect("a number is given up with its entry")
    }

    fn is_live(&self, e: u32, generation: u32) -> bool {
        self.entries[e as usize].as_ref().is_some_and(|x| x.generation == generation)
    }

    /// A node came out of the intake.
    pub fn visit(&mut self, node: NodeLink, now: u64) -> Visit {
        self.now = now;
        self.turn = node.address();
        let entry = node.entry();
        let is_new = if entry.is_none() && node.completion.state().phase() == Phase::Pending {
            let state = node.completion.clear(QUEUED);
            self.visit_in(&node, entry, state)
        } else {
            // A step may be reading it: this link is no reader, and is not to keep it from being
            // written over.
            let state = node.completion.exchange(QUEUED, VISITED);
            let _visiting = Visiting(&node);
            self.visit_in(&node, entry, state)
        };
        if is_new { Visit::New(node) } else { Visit::Settled }
    }

    /// True where it is new and wanted.
    fn visit_in(&mut self, node: &NodeLink, entry: Option<u32>, state: State) -> bool {
        let now = self.now;
        if let Op::Marker = node.op {
            self.mark(node.clone());
            return false;
        }
        if let Some(e) = entry {
            self.count_in(e);
        }
        if state.is_complete() || state.phase() == Phase::Fused {
            if let Some(e) = entry.filter(|&e| self.entry(e).stage == Stage::Outside) {
                self.end_outside(e, now);
            }
            return false;
        }
        let wanted = is_wanted(node);
        if state.phase() != Phase::Pending {
            // A poll runs it just now, or a step that we submitted. A temporary that a poll has
            // claimed for its one reader is that reader's affair: should the poll give both back,
            // it asks for a look at the reader only, and an entry here would wait for ever.
            match entry.map(|e| self.entry(e)) {
                None if wanted => self.wait_outside(node.clone()),
                // Its end, or who gives it back, asks for another look.
                Some(x) if x.stage == Stage::Outside => x.root = wanted,
                _ => {}
            }
            return false;
        }
        match entry {
            None if wanted => true,
            // Its consumers keep it, or it dies here, skipped.
            None => false,
            Some(e) => {
                let is_source = matches!(node.op, Op::Source(_));
                let x = self.entry(e);
                x.root = wanted;
                let (root, wants) = (x.root, x.wants);
                let deferred = std::mem::take(&mut x.deferred) && x.stage == Stage::Waiting;
                if !root && wants == 0 {
                    self.cancel(e);
                    return false;
                }
                if deferred {
                    self.resolve(vec![e], &mut |_| false);
                }
                if self.entry(e).stage == Stage::Outside && !is_source {
                    // A poll gave it back: it is ours now, unless another poll was faster.
                    if node.completion.set(ENTERED).phase() == Phase::Pending {
                        self.entry(e).stage = Stage::Waiting;
                        if let Some(registration) = self.entry(e).registration.take() {
                            node.completion.deregister(registration);
                        }
                        self.resolve(vec![e], &mut |_| false);
                    }
                }
                if state.has(AWAITED) {
                    self.release_delayed();
                }
                self.settle_unblocked(now, state.has(AWAITED));
                if is_source {
                    self.ask_source(e);
                }
                false
            }
        }
    }

    /// A node that somebody awaits has not had its turn in the intake, where it stays until then.
    pub fn visit_early(&mut self, node: NodeLink) -> Visit {
        self.turn = 0;
        let state = node.completion.state();
        let is_new = state.has(QUEUED) && state.phase() == Phase::Pending && node.entry().is_none();
        if is_new && is_wanted(&node) { Visit::New(node) } else { Visit::Settled }
    }

    /// Puts a wanted node into the task table, with all that it needs. `small` runs a node on the
    /// spot if that is worth while, and says whether it did.
    pub fn enter(&mut self, root: NodeLink, now: u64, small: &mut dyn FnMut(&NodeLink) -> bool) {
        self.now = now;
        // Whoever drops the last handle while the node is claimed asks for no look. The node was
        // claimed a moment ago, where it was tried on the spot: so its observers are counted again.
        if !is_wanted(&root) {
            return;
        }
        let awaited = root.completion.state().has(AWAITED);
        match self.add(root.clone()) {
            Some(e) => {
                self.entry(e).root = true;
                self.resolve(vec![e], small);
            }
            None => self.wait_outside(root),
        }
        if awaited {
            self.release_delayed();
        }
        self.settle_unblocked(now, awaited);
    }

    fn epoch(&self) -> u64 {
        self.first_epoch + self.epochs.len() as u64 - 1
    }

    /// Finds what new entries wait for, and enters that.
    fn resolve(&mut self, mut stack: Vec<u32>, small: &mut dyn FnMut(&NodeLink) -> bool) {
        let mut early = EARLY_AT_ONCE;
        while let Some(e) = stack.pop() {
            if self.entry(e).epoch.is_none() {
                if early == 0 {
                    self.entry(e).deferred = true;
                    continue;
                }
                early -= 1;
            }
            let inputs: SmallVec<[NodeLink; 3]> = self.entry(e).inputs().iter().cloned().collect();
            for input in inputs {
                // One whose step has published it and is not through yet is not there: the step's
                // own links would keep its buffer from being written over.
                let closing = !self.limits.ahead
                    && input
                        .entry()
                        .is_some_and(|i| matches!(self.entry(i).stage, Stage::Submitted(_)));
                let there = input.completion.state().is_complete() && !closing;
                if there || input.entry().is_none() && small(&input) {
                    continue;
                }
                let i = match input.entry() {
                    Some(i) => i,
                    None => match self.add(input.clone()) {
                        Some(i) => {
                            if let Op::Source(_) = input.op {
                                // Nobody held it when it came in: it is to be polled now.
                                self.entry(i).stage = Stage::Outside;
                                self.port.schedule(input.clone());
                            } else {
                                stack.push(i);
                            }
                            i
                        }
                        None => match self.outside_entry(input.clone()) {
                            Some(i) => i,
                            // It has just been completed.
                            None => continue,
                        },
                    },
                };
                let x = self.entry(i);
                let place = x.consumers.len() as u32;
                x.consumers.push(e);
                x.wants += 1;
                let submitted = matches!(x.stage, Stage::Submitted(_));
                let ahead = self.limits.ahead;
                let x = self.entry(e);
                x.edges.push((i, place));
                x.blocked += !(submitted && ahead) as u32;
            }
            if self.entry(e).blocked == 0 {
                self.unblocked.push(e);
            }
        }
    }

    /// A source's node is in the task table, and its future asked, until a look finds the value
    /// there.
    pub fn enter_source(&mut self, node: NodeLink) {
        if let Some(e) = self.add(node) {
            self.entry(e).root = true;
            self.entry(e).stage = Stage::Outside;
            self.ask_source(e);
        }
    }

    /// Whether a stream's first step was put off: what need not follow it goes elsewhere.
    #[allow(dead_code)] // Host devices put nothing off.
    pub fn stuck(&mut self, stream: usize, is: bool) {
        self.streams[stream].stuck = is;
    }

    /// A step has run; its nodes are complete.
    pub fn finished(&mut self, step: Step, now: u64) {
        let ended = step.entries.len();
        let closing = &self.port.counters.closing;
        if self.ended {
            // What else is counted was counted off by the end.
            let _ = closing.fetch_update(Relaxed, Relaxed, |n| Some(n.saturating_sub(ended)));
            return;
        }
        let stream = &mut self.streams[step.at.stream as usize];
        if step.at.point == stream.completed + 1 {
            stream.completed += 1;
            while stream.early.remove(&(stream.completed + 1)) {
                stream.completed += 1;
            }
        } else {
            stream.early.insert(step.at.point);
        }
        self.in_flight -= 1;
        self.in_flight_bytes = self.in_flight_bytes.wrapping_sub(step.bytes);
        self.port.counters.in_flight.store(self.in_flight, Relaxed);
        let weight = step.nodes().map(|n| Pressure::weight(n.bytes())).fold(0, usize::wrapping_add);
        // First the counters: removing an entry may end a waitall, and who has waited looks at
        // them.
        self.port.pressure.finished_many(ended, weight);
        let _ = closing.fetch_update(Relaxed, Relaxed, |n| Some(n.saturating_sub(ended)));
        if !self.limits.ahead {
            for c in self.consumers_outside(&step.entries) {
                self.entry(c).chain = Some(step.at.stream);
                self.unblock(&[c]);
            }
        }
        for &e in &step.entries {
            self.remove(e);
        }
        self.settle_unblocked(now, false);
        // The step's links go last: freeing may cascade.
        free(step.into_links());
    }

    /// Time has passed: what was delayed long enough is let go.
    pub fn tick(&mut self, now: u64) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.release_delayed();
        }
    }

    /// The device has ended: everything in the task table fails, what runs just now included. A
    /// thread that is stuck in a step is not waited for; should it come back, its result is thrown
    /// away.
    pub fn end(&mut self) {
        self.ended = true;
        let (mut ops, mut weight) = (0, 0usize);
        for e in 0..self.entries.len() {
            let Some(x) = &self.entries[e] else { continue };
            let node = x.node.clone();
            let pending = node.completion.claim(Phase::Writing, 0);
            // What somebody else has claimed, or ended, is counted off by them.
            if pending || matches!(x.stage, Stage::Submitted(_)) {
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
        let open: Vec<u32> = (0..self.entries.len() as u32)
            .filter(|&e| self.entries[e as usize].is_some())
            .collect();
        for e in open {
            self.remove(e);
        }
        self.unblocked.clear();
        self.delayed.clear();
        self.queue.clear();
        self.urgent.clear();
        self.vacant = (0..self.entries.len() as u32).collect();
        self.in_flight = 0;
        self.in_flight_bytes = 0;
        for stream in &mut self.streams {
            stream.queue.clear();
            stream.early.clear();
            stream.completed = stream.submitted;
        }
        self.port.counters.in_flight.store(0, Relaxed);
        self.port.pressure.finished_many(ops, weight);
        self.port.pressure.open_gate();
    }

    fn end_error(&self, node: &NodeLink) -> Error {
        let error = self.port.end_error(node.op.name(), node.at);
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
