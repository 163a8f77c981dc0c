//! The state machine: which node is wanted, what waits for what, what runs next and where.
//!
//! A pure function of events (looked at, step finished, time passed, device ended) to steps: it owns
//! no threads, reads no clock and never waits, so the same machine runs under the CPU's workers and
//! under a simulation that replays a seed. The driver calls it under one lock.
//!
//! A node enters the books when somebody observes it (a handle, a detach) and brings the ancestors
//! that it needs; what nobody observes is never entered, or leaves again when its last observer goes.
//! An entry is `Waiting` until each of its inputs is complete or submitted, may be `Held` for a moment
//! in the hope of fusing with what comes, is `Ready` in a queue, and ends as part of a submitted step.

#![allow(unsafe_code)]

use super::port::Port;
use super::step::{At, Step, Work};
use crate::completion::{AWAITED, DETACHED, ENTERED, Phase, QUEUED};
use crate::error::{Error, ErrorKind};
use crate::graph::fuse::Group;
use crate::graph::node::{NodeLink, Op, free};
use crate::graph::program::OUTPUTS_MAX;
use crate::graph::value::{INLINE_BYTES, Storage, Value};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::{Arc, atomic::Ordering::Relaxed};
use std::task::{Wake, Waker};

/// What the machine is allowed to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub streams: u16,
    /// Steps that may be submitted to one stream and not finished.
    pub depth_max: u64,
    /// Steps and bytes of results that may be submitted and not finished, on all streams.
    pub ops_max: usize,
    pub bytes_max: usize,
    /// Longest hold-back of a step that may fuse with what follows, in nanoseconds. 0 turns it off.
    pub hold_max_ns: u64,
    /// A step may be submitted before what it reads is there: its stream is in order, and waits for others
    /// by itself. Where this is false each submitted step can run at once, on whatever thread is free.
    pub ahead: bool,
    /// What follows an op that [takes it](crate::Operation::takes_epilogue) may run in the same step.
    pub epilogues: bool,
}

/// Where an entry stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Some input is neither complete nor submitted.
    Waiting,
    /// Could be submitted, and is held back until the deadline.
    Held,
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
    /// When it came into the books, in nanoseconds.
    since: u64,
    /// The stream that its last input was computed on.
    chain: Option<u16>,
    /// Entries that have this one as an input, an edge each.
    consumers: SmallVec<[u32; 2]>,
    /// How many of the consumers are in the books; they want this one.
    wants: u32,
    /// Somebody observes it.
    root: bool,
    epoch: u64,
    /// Tells an entry from an earlier one at the same place, in the queues.
    generation: u32,
    /// The waker on the node's own list, while somebody else computes it. It holds a link to the node, so
    /// it comes off with the entry, or the node would keep itself.
    bell: Option<u32>,
    /// The one waker that a source is polled with.
    waker: Option<Waker>,
}

#[derive(Default)]
struct Stream {
    submitted: u64,
    completed: u64,
    /// Entries that continue this stream's chain.
    queue: VecDeque<(u32, u32)>,
}

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
    /// Ready entries that no stream's chain leads to.
    queue: VecDeque<(u32, u32)>,
    /// Held entries with their deadlines, in the order of holding.
    held: VecDeque<(u64, u32, u32)>,
    epochs: VecDeque<Epoch>,
    first_epoch: u64,
    in_flight: usize,
    in_flight_bytes: usize,
    /// Entries that became unblocked and are to be held or queued.
    unblocked: Vec<u32>,
    next_stream: usize,
    /// The time of the last event.
    now: u64,
    ended: bool,
}

/// What the driver has to do about a node that it asked the machine to look at.
pub(crate) enum Look {
    Settled,
    /// New and wanted: run it if it is small, else enter it.
    New(NodeLink),
    /// Its source is to be polled.
    Source(NodeLink),
}

/// Asks for another look at a node when what it waits for ends.
struct LookAgain(NodeLink, &'static Port);

impl Wake for LookAgain {
    fn wake(self: Arc<Self>) {
        self.1.look(self.0.clone());
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
            streams: (0..limits.streams).map(|_| Stream::default()).collect(),
            queue: VecDeque::new(),
            held: VecDeque::new(),
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
        Waker::from(Arc::new(LookAgain(node.clone(), self.port)))
    }

    /// The waker that a source in the books is polled with.
    pub fn source_waker(&mut self, node: &NodeLink) -> Waker {
        let fresh = self.waker(node);
        match node.entry() {
            Some(e) => self.entry(e).waker.get_or_insert(fresh).clone(),
            None => fresh,
        }
    }

    /// Nothing is in the books.
    pub fn is_idle(&self) -> bool {
        self.entries.len() == self.vacant.len()
    }

    /// The earliest deadline of a held entry.
    pub fn deadline(&self) -> Option<u64> {
        self.held.iter().map(|h| h.0).min()
    }

    fn entry(&mut self, e: u32) -> &mut Entry {
        self.entries[e as usize].as_mut().expect("an entry in the books")
    }

    fn is_live(&self, e: u32, generation: u32) -> bool {
        self.entries[e as usize].as_ref().is_some_and(|x| x.generation == generation)
    }

    // ---- events ---------------------------------------------------------------------------------

    /// A node came out of the intake.
    pub fn look(&mut self, node: NodeLink, now: u64) -> Look {
        self.now = now;
        let state = node.completion.clear(QUEUED);
        if let Op::Marker = node.op {
            self.mark(node);
            return Look::Settled;
        }
        let entry = node.entry();
        if state.is_complete() || state.phase() == Phase::Fused {
            if let Some(e) = entry.filter(|&e| self.entry(e).stage == Stage::Outside) {
                self.end_outside(e, now);
            }
            return Look::Settled;
        }
        if state.phase() != Phase::Pending {
            // A poll runs it just now, or a step that we submitted. A temporary that a poll has claimed for
            // its one reader is that reader's affair: should the poll give both back, it asks for a look at
            // the reader only, and an entry here would wait for ever.
            let wanted = node.counts().handles > 0 || state.has(DETACHED);
            if entry.is_none() && wanted {
                self.wait_outside(node);
            }
            return Look::Settled;
        }
        let wanted = node.counts().handles > 0 || state.has(DETACHED);
        match entry {
            None if wanted => Look::New(node),
            // Its consumers keep it, or it dies here, skipped.
            None => Look::Settled,
            Some(e) => {
                let is_source = matches!(node.op, Op::Source(_));
                let x = self.entry(e);
                x.root = wanted;
                let (root, wants) = (x.root, x.wants);
                if !root && wants == 0 {
                    drop(node);
                    self.cancel(e);
                    return Look::Settled;
                }
                if self.entry(e).stage == Stage::Outside && !is_source {
                    // A poll gave it back: it is ours now, unless another poll was faster.
                    if node.completion.set(ENTERED).phase() == Phase::Pending {
                        self.entry(e).stage = Stage::Waiting;
                        if let Some(bell) = self.entry(e).bell.take() {
                            node.completion.deregister(bell);
                        }
                        self.resolve(vec![e], &mut |_| false);
                    }
                }
                if state.has(AWAITED) {
                    self.release_held();
                }
                self.settle_unblocked(now, state.has(AWAITED));
                if is_source { Look::Source(node) } else { Look::Settled }
            }
        }
    }

    /// Puts a wanted node into the books, with all that it needs. `small` runs a node on the spot if
    /// that is worth while, and says whether it did.
    pub fn enter(&mut self, root: NodeLink, now: u64, small: &mut dyn FnMut(&NodeLink) -> bool) {
        self.now = now;
        let awaited = root.completion.state().has(AWAITED);
        match self.add(root.clone(), self.epoch()) {
            Some(e) => {
                self.entry(e).root = true;
                self.resolve(vec![e], small);
            }
            None => self.wait_outside(root),
        }
        if awaited {
            self.release_held();
        }
        self.settle_unblocked(now, awaited);
    }

    fn epoch(&self) -> u64 {
        self.first_epoch + self.epochs.len() as u64 - 1
    }

    /// Finds what new entries wait for, and enters that.
    fn resolve(&mut self, mut stack: Vec<u32>, small: &mut dyn FnMut(&NodeLink) -> bool) {
        let epoch = self.epoch();
        while let Some(e) = stack.pop() {
            let node = self.entry(e).node.clone();
            // SAFETY: the node is pending in our books: ENTERED keeps polls from claiming it.
            let inputs: SmallVec<[NodeLink; 3]> = unsafe { node.inputs() }.iter().cloned().collect();
            for input in inputs {
                // One whose step has published it and is not through yet is not there: the step's own links would
                // keep its buffer from being written over.
                let closing = !self.limits.ahead
                    && input.entry().is_some_and(|i| matches!(self.entry(i).stage, Stage::Submitted(_)));
                let there = input.completion.state().is_complete() && !closing;
                if there || input.entry().is_none() && small(&input) {
                    continue;
                }
                let i = match input.entry() {
                    Some(i) => i,
                    None => match self.add(input.clone(), epoch) {
                        Some(i) => {
                            if let Op::Source(_) = input.op {
                                // Nobody held it when it came in: the driver is to poll it now.
                                self.entry(i).stage = Stage::Outside;
                                self.port.look(input.clone());
                            } else {
                                stack.push(i);
                            }
                            i
                        }
                        None => match self.outside_entry(input.clone(), epoch) {
                            Some(i) => i,
                            // It has just been completed.
                            None => continue,
                        },
                    },
                };
                let x = self.entry(i);
                x.consumers.push(e);
                x.wants += 1;
                let submitted = matches!(x.stage, Stage::Submitted(_));
                if !(submitted && self.limits.ahead) {
                    self.entry(e).blocked += 1;
                }
            }
            if self.entry(e).blocked == 0 {
                self.unblocked.push(e);
            }
        }
    }

    /// A source's node is watched by the driver until `source_done`.
    pub fn enter_source(&mut self, node: NodeLink) {
        if let Some(e) = self.add(node, self.epoch()) {
            self.entry(e).root = true;
            self.entry(e).stage = Stage::Outside;
        }
    }

    /// A node that was computed outside of steps is complete; the driver calls this for sources.
    pub fn source_done(&mut self, node: &NodeLink, now: u64) {
        if let Some(e) = node.entry() {
            self.end_outside(e, now);
        }
    }

    /// A step has run; its nodes are complete.
    pub fn finished(&mut self, step: Step, now: u64) {
        if self.ended {
            return;
        }
        let stream = &mut self.streams[step.at.stream as usize];
        debug_assert_eq!(stream.completed + 1, step.at.point);
        stream.completed = step.at.point;
        self.in_flight -= 1;
        self.in_flight_bytes -= step.bytes;
        self.port.counters.in_flight.store(self.in_flight, Relaxed);
        let ended = step.entries.len();
        let weight = step.nodes().map(|n| super::small::weight(n)).sum();
        // First the counters: removing an entry may end a waitall, and who has waited looks at them.
        self.port.pressure.finished_many(ended, weight);
        let closing = &self.port.counters.closing;
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
        let mut links: crate::graph::node::Inputs = SmallVec::new();
        if let Work::Group { group, end, .. } = step.work {
            links.extend(group.members.into_iter().map(|(n, _)| n));
            links.extend(group.inputs);
            links.extend(group.head.map(|(n, _)| n));
            links.extend(end.map(|(n, _)| n));
        } else if let Work::Node(node) = step.work {
            links.push(node);
        }
        free(links);
    }

    /// Time has passed: what was held long enough is let go.
    pub fn tick(&mut self, now: u64) {
        if self.held.iter().any(|&(deadline, ..)| deadline <= now) {
            self.release_held();
        }
    }

    /// The device has ended: everything in the books fails, what runs just now included. A thread that
    /// is stuck in a step is not waited for; should it come back, its result is thrown away.
    pub fn end(&mut self) {
        self.ended = true;
        for e in 0..self.entries.len() {
            let Some(x) = &self.entries[e] else { continue };
            let node = x.node.clone();
            let pending = node.completion.claim(Phase::Writing, 0);
            if pending || node.completion.begin_writing() {
                let error = self.end_error(&node);
                // SAFETY: it was pending and we hold the right to write. Of a running step the inputs stay:
                // its thread may be reading them.
                let inputs = if pending { unsafe { node.let_go() } } else { SmallVec::new() };
                self.port.finish(&node, Err(error));
                free(inputs);
            }
        }
        let open: Vec<u32> =
            (0..self.entries.len() as u32).filter(|&e| self.entries[e as usize].is_some()).collect();
        let (mut ops, mut weight) = (0, 0);
        for e in open {
            let node = self.entry(e).node.clone();
            ops += 1;
            weight += super::small::weight(&node);
            self.remove(e);
        }
        self.unblocked.clear();
        self.held.clear();
        self.queue.clear();
        self.vacant = (0..self.entries.len() as u32).collect();
        self.in_flight = 0;
        self.in_flight_bytes = 0;
        for stream in &mut self.streams {
            stream.queue.clear();
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
            let inputs = unsafe { node.let_go() };
            self.port.finish(&node, Err(error));
            free(inputs);
            self.port.pressure.finished(1, node.bytes());
        }
    }

    // ---- the books ------------------------------------------------------------------------------

    /// Makes an entry of a pending node; `None` where somebody has claimed it already.
    fn add(&mut self, node: NodeLink, epoch: u64) -> Option<u32> {
        if !std::ptr::eq(node.home as *const _ as *const (), self.port as *const Port as *const ()) {
            return None;
        }
        if node.completion.set(ENTERED).phase() != Phase::Pending {
            return None;
        }
        Some(self.insert(node, epoch, Stage::Waiting))
    }

    fn insert(&mut self, node: NodeLink, epoch: u64, stage: Stage) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        let e = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        node.set_entry(Some(e));
        self.entries[e as usize] = Some(Entry {
            node,
            stage,
            blocked: 0,
            since: self.now,
            chain: None,
            consumers: SmallVec::new(),
            wants: 0,
            root: false,
            epoch,
            generation: self.generation,
            bell: None,
            waker: None,
        });
        self.epochs[(epoch - self.first_epoch) as usize].open += 1;
        e
    }

    /// An entry for a node that somebody else computes now; `None` where it has just ended.
    fn outside_entry(&mut self, node: NodeLink, epoch: u64) -> Option<u32> {
        let (waker, mut bell) = (self.waker(&node), None);
        if node.completion.register(&mut bell, &waker) {
            return None;
        }
        let e = self.insert(node, epoch, Stage::Outside);
        self.entry(e).bell = bell;
        Some(e)
    }

    fn wait_outside(&mut self, node: NodeLink) {
        self.outside_entry(node, self.epoch());
    }

    fn end_outside(&mut self, e: u32, now: u64) {
        let consumers = std::mem::take(&mut self.entry(e).consumers);
        self.unblock(&consumers);
        self.remove(e);
        self.settle_unblocked(now, false);
    }

    /// Who reads from these entries and is none of them, an edge each.
    fn consumers_outside(&self, entries: &[u32]) -> SmallVec<[u32; 4]> {
        let books = entries.iter().filter_map(|&e| self.entries[e as usize].as_ref());
        books.flat_map(|x| x.consumers.iter().copied()).filter(|c| !entries.contains(c)).collect()
    }

    fn unblock(&mut self, consumers: &[u32]) {
        for &c in consumers {
            let x = self.entry(c);
            x.blocked -= 1;
            if x.blocked == 0 {
                self.unblocked.push(c);
            }
        }
    }

    /// Takes an entry out; its node is complete, cancelled, or somebody else's.
    fn remove(&mut self, e: u32) {
        let Some(x) = self.entries[e as usize].take() else { return };
        self.vacant.push(e);
        if let Some(bell) = x.bell {
            x.node.completion.deregister(bell);
        }
        x.node.set_entry(None);
        let epoch = &mut self.epochs[(x.epoch - self.first_epoch) as usize];
        epoch.open -= 1;
        self.close_epochs();
        free([x.node]);
    }

    /// Takes a node that nobody wants any more out of the books, and its ancestors where only it
    /// wanted them.
    fn cancel(&mut self, e: u32) {
        let mut stack = vec![e];
        while let Some(e) = stack.pop() {
            let x = self.entry(e);
            if matches!(x.stage, Stage::Submitted(_)) || x.root || x.wants > 0 {
                continue;
            }
            let (node, outside) = (x.node.clone(), x.stage == Stage::Outside);
            // SAFETY: pending in our books, so nobody else lets its inputs go; where a poll has claimed it
            // they are not looked at, and are none of ours.
            let inputs = if outside { &[] } else { unsafe { node.inputs() } };
            for input in inputs {
                let Some(i) = input.entry() else { continue };
                let y = self.entry(i);
                if let Some(at) = y.consumers.iter().position(|&c| c == e) {
                    y.consumers.swap_remove(at);
                    y.wants -= 1;
                    if y.wants == 0 && !y.root {
                        stack.push(i);
                    }
                }
            }
            node.completion.clear(ENTERED);
            let has_waker = self.entry(e).waker.is_some();
            if let Op::Source(source) = &node.op {
                // Ours: this link, that of the books, and the waker's. Where there is no other, nobody will
                // ask for the value, and what it waits for may hold the waker for ever.
                let counts = node.counts();
                if counts.handles == 0 && counts.links == 2 + has_waker as u32 {
                    source.abandon();
                }
            }
            self.remove(e);
        }
    }

    /// A `waitall` was asked for.
    fn mark(&mut self, marker: NodeLink) {
        if let Some(epoch) = self.epochs.back_mut() {
            epoch.markers.push(marker);
        }
        self.epochs.push_back(Epoch::default());
        self.close_epochs();
    }

    /// Ends the `waitall`s before which nothing is open.
    fn close_epochs(&mut self) {
        while self.epochs.len() > 1 && self.epochs[0].open == 0 {
            let epoch = self.epochs.pop_front().unwrap_or_default();
            self.first_epoch += 1;
            for marker in epoch.markers {
                if marker.completion.claim(Phase::Writing, 0) {
                    let done = Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8]));
                    marker.completion.write(Ok(done), false);
                }
            }
        }
    }

    // ---- holding back and queueing --------------------------------------------------------------

    /// Longest time that this node may be held back: 2 % of its own estimated time.
    fn hold_ns(&self, e: u32) -> u64 {
        let node = &self.entries[e as usize].as_ref().expect("an entry in the books").node;
        if !node.op.is_elementwise() || matches!(node.op, Op::Fill(_)) {
            return 0;
        }
        (node.cost_ns as u64 / 50).min(self.limits.hold_max_ns)
    }

    fn settle_unblocked(&mut self, now: u64, awaited: bool) {
        while let Some(e) = self.unblocked.pop() {
            let hold = if awaited { 0 } else { self.hold_ns(e) };
            let x = self.entry(e);
            let generation = x.generation;
            // The time that it has waited for its inputs counts.
            let deadline = x.since + hold;
            if hold >= 200 && deadline > now {
                x.stage = Stage::Held;
                self.held.push_back((deadline, e, generation));
            } else {
                self.make_ready(e);
            }
        }
    }

    fn release_held(&mut self) {
        for (_, e, generation) in std::mem::take(&mut self.held) {
            if self.is_live(e, generation) && self.entry(e).stage == Stage::Held {
                self.make_ready(e);
            }
        }
    }

    /// Queues an entry behind the chain that it continues, or with those that begin one.
    fn make_ready(&mut self, e: u32) {
        self.entry(e).stage = Stage::Ready;
        let generation = self.entry(e).generation;
        let node = self.entry(e).node.clone();
        let mut chain = self.entry(e).chain;
        // SAFETY: pending in our books.
        for input in unsafe { node.inputs() } {
            if let Some(i) = input.entry()
                && let Stage::Submitted(at) = self.entry(i).stage
            {
                let tail = self.streams[at.stream as usize].submitted == at.point;
                if tail || chain.is_none() {
                    chain = Some(at.stream);
                }
                if tail {
                    break;
                }
            }
        }
        match chain {
            Some(stream) => self.streams[stream as usize].queue.push_back((e, generation)),
            None => self.queue.push_back((e, generation)),
        }
    }

    /// The next step to submit, if the limits allow one.
    pub fn next(&mut self, now: u64) -> Option<Step> {
        loop {
            if self.in_flight >= self.limits.ops_max {
                return None;
            }
            let (e, stream) = self.pick()?;
            let x = self.entry(e);
            if x.root && x.wants == 0 {
                let state = x.node.completion.state();
                if x.node.counts().handles == 0 && !state.has(DETACHED) {
                    // Word of the drop is still on its way.
                    x.root = false;
                    self.cancel(e);
                    continue;
                }
            }
            let (bytes, generation) = (x.node.bytes(), x.generation);
            if self.in_flight > 0 && self.in_flight_bytes.saturating_add(bytes) > self.limits.bytes_max {
                // It stays first in line; a step larger than the limit runs alone.
                self.streams[stream as usize].queue.push_front((e, generation));
                return None;
            }
            let step = self.take_up(e, stream);
            self.settle_unblocked(now, false);
            return Some(step);
        }
    }

    /// Chooses a ready entry and the stream for it: chains continue where they are, whatever begins
    /// goes to the least busy stream, so that independent work overlaps in whatever order it came.
    fn pick(&mut self) -> Option<(u32, u16)> {
        let count = self.streams.len();
        for k in 0..count {
            let s = (self.next_stream + k) % count;
            let depth = self.streams[s].submitted - self.streams[s].completed;
            if depth >= self.limits.depth_max {
                continue;
            }
            while let Some((e, generation)) = self.streams[s].queue.pop_front() {
                if self.is_live(e, generation) && self.entry(e).stage == Stage::Ready {
                    self.next_stream = s + 1;
                    return Some((e, s as u16));
                }
            }
        }
        let depth = |s: &Stream| s.submitted - s.completed + s.queue.len() as u64;
        let s = (0..count).min_by_key(|&s| depth(&self.streams[s]))?;
        if self.streams[s].submitted - self.streams[s].completed >= self.limits.depth_max {
            return None;
        }
        // With nothing else to do, a stream continues another's chain where that needs nothing but a thread.
        let others = (!self.limits.ahead).then_some(0..count).into_iter().flatten();
        for from in others.map(Some).chain([None]).rev() {
            let queue = match from {
                Some(other) => &mut self.streams[other].queue,
                None => &mut self.queue,
            };
            while let Some((e, generation)) = queue.pop_front() {
                let x = self.entries[e as usize].as_ref();
                if x.is_some_and(|x| x.generation == generation && x.stage == Stage::Ready) {
                    return Some((e, s as u16));
                }
            }
        }
        None
    }

    // ---- taking up ------------------------------------------------------------------------------

    /// Makes a step of an entry and of what fuses with it.
    fn take_up(&mut self, e: u32, stream: u16) -> Step {
        let node = self.entry(e).node.clone();
        let mut entries: SmallVec<[u32; 2]> = SmallVec::new();
        let mut group: Group<NodeLink> = Group::new();
        let mut end = None;
        let fusible = node.op.is_elementwise() && !matches!(node.op, Op::Fill(_));
        if fusible {
            self.include(e, &mut group, &mut entries);
            end = self.grow(&node, &mut group, &mut entries);
        } else {
            entries.push(e);
            if self.limits.epilogues && node.op.takes_epilogue() {
                end = self.follow(&node, &mut group, &mut entries);
            }
        }
        let grouped = fusible || group.head.is_some();
        if fusible && self.written(&group, end.as_ref(), &node).len() > OUTPUTS_MAX {
            // Too many of them are observed: a shorter group, cut where it fits. (The old one goes first:
            // its links would count.)
            drop(std::mem::replace(&mut group, Group::new()));
            let cut = (1..entries.len()).rev().find(|&cut| {
                let part = self.regroup(&entries[..cut]);
                self.written(&part, None, &node).len() <= OUTPUTS_MAX
            });
            entries.truncate(cut.unwrap_or(1));
            group = self.regroup(&entries);
            end = None;
        }
        let at = At { stream, point: self.streams[stream as usize].submitted + 1 };
        self.streams[stream as usize].submitted = at.point;

        // What it reads from other streams, and is not there yet.
        let mut waits: SmallVec<[At; 2]> = SmallVec::new();
        let mut wait_for = |machine: &mut Machine, input: &NodeLink| {
            let Some(i) = input.entry() else { return };
            if let Stage::Submitted(on) = machine.entry(i).stage
                && on.stream != stream
                && machine.streams[on.stream as usize].completed < on.point
            {
                match waits.iter_mut().find(|w| w.stream == on.stream) {
                    Some(wait) => wait.point = wait.point.max(on.point),
                    None => waits.push(on),
                }
            }
        };
        for input in &group.inputs {
            wait_for(self, input);
        }
        if !fusible {
            // SAFETY: pending in our books.
            for input in unsafe { node.inputs() } {
                wait_for(self, input);
            }
        }
        if !waits.is_empty() {
            self.port.counters.events.fetch_add(waits.len() as u64, Relaxed);
        }

        // Who else wants a member's value decides whether it is written out.
        let mut written: SmallVec<[u8; 2]> = SmallVec::new();
        if grouped {
            written = self.written(&group, end.as_ref(), &node);
            let regs = written.iter().map(|&k| group.members[k as usize].1).collect();
            group.program.outputs = regs;
        }

        let mut bytes = 0usize;
        let mut cost_ns = 0;
        for &e in &entries {
            self.entry(e).stage = Stage::Submitted(at);
            let node = self.entry(e).node.clone();
            let claimed = node.completion.claim(Phase::Claimed, 0);
            debug_assert!(claimed, "an entered node is the engine's");
            cost_ns += node.cost_ns as u64;
        }
        for &k in &written {
            bytes = bytes.saturating_add(group.members[k as usize].0.bytes());
        }
        if !grouped {
            bytes = node.bytes();
        }
        if self.limits.ahead {
            let outside = self.consumers_outside(&entries);
            self.unblock(&outside);
        }
        self.in_flight += 1;
        self.in_flight_bytes = self.in_flight_bytes.saturating_add(bytes);
        let counters = &self.port.counters;
        counters.in_flight.store(self.in_flight, Relaxed);
        counters.started.fetch_add(1, Relaxed);
        counters.fused.fetch_add(entries.len() as u64 - 1, Relaxed);
        let work = if grouped { Work::Group { group, written, end } } else { Work::Node(node) };
        Step { at, waits, work, entries, bytes, cost_ns }
    }

    /// The members whose values anybody may look at. `borrowed` is a member that the caller holds a link
    /// on beside the books and the group.
    fn written(
        &self,
        group: &Group<NodeLink>,
        end: Option<&(NodeLink, u8)>,
        borrowed: &NodeLink,
    ) -> SmallVec<[u8; 2]> {
        let observed = |k: &usize| {
            let node = &group.members[*k].0;
            let inside = self.edges_inside(*k, group, end) + (node.address() == borrowed.address()) as u32;
            is_observed(node, inside)
        };
        (0..group.members.len()).filter(observed).map(|k| k as u8).collect()
    }

    /// The group of these entries alone, in their order.
    fn regroup(&mut self, entries: &[u32]) -> Group<NodeLink> {
        let mut group = Group::new();
        for &e in entries {
            self.include(e, &mut group, &mut SmallVec::new());
        }
        group
    }

    /// Adds an entry's node to the group.
    fn include(&mut self, e: u32, group: &mut Group<NodeLink>, entries: &mut SmallVec<[u32; 2]>) {
        let node = self.entry(e).node.clone();
        // SAFETY: pending in our books.
        let inputs: SmallVec<[NodeLink; 3]> = unsafe { node.inputs() }.iter().cloned().collect();
        group.add(&node, &inputs);
        entries.push(e);
    }

    /// Takes in what follows, as far as it is elementwise over the same shape and needs nothing that is
    /// not there; a reduction ends it.
    fn grow(
        &mut self,
        first: &NodeLink,
        group: &mut Group<NodeLink>,
        entries: &mut SmallVec<[u32; 2]>,
    ) -> Option<(NodeLink, u8)> {
        let mut k = 0;
        let mut end: Option<(u32, u8)> = None;
        // Where the group follows a node, that one is an entry and no member.
        let members_from = !first.op.is_elementwise() as usize;
        while k < entries.len() {
            let consumers = self.entry(entries[k]).consumers.clone();
            for c in consumers {
                if entries.contains(&c) || end.is_some_and(|(e, _)| e == c) {
                    continue;
                }
                let node = self.entry(c).node.clone();
                if matches!(node.op, Op::Reduce(_)) {
                    let movable = matches!(self.entry(c).stage, Stage::Waiting) && self.entry(c).blocked == 1;
                    if end.is_none() && movable && k >= members_from {
                        end = Some((c, (k - members_from) as u8));
                    }
                } else {
                    self.try_include(c, first, group, entries, 6);
                }
            }
            k += 1;
        }
        let (e, member) = end?;
        entries.push(e);
        Some((self.entry(e).node.clone(), member))
    }

    /// What comes after a step of one node in the same step, as long as nobody else looks at the node's value.
    fn follow(
        &mut self,
        head: &NodeLink,
        group: &mut Group<NodeLink>,
        entries: &mut SmallVec<[u32; 2]>,
    ) -> Option<(NodeLink, u8)> {
        let end = self.grow(head, group, entries);
        // Beside its readers here the caller has a link.
        let at = group.input(head).filter(|&at| !is_observed(head, group.edges[at] as u32 + 1));
        match at {
            Some(at) if self.written(group, end.as_ref(), head).len() <= OUTPUTS_MAX => {
                group.head = Some((head.clone(), at as u8));
                end
            }
            _ => {
                *group = Group::new();
                entries.truncate(1);
                None
            }
        }
    }

    /// Includes an entry and, before it, those of its inputs that are not submitted, if all of that can
    /// be done now.
    fn try_include(
        &mut self,
        e: u32,
        first: &NodeLink,
        group: &mut Group<NodeLink>,
        entries: &mut SmallVec<[u32; 2]>,
        depth: u32,
    ) -> bool {
        if entries.contains(&e) {
            return true;
        }
        let x = self.entry(e);
        let node = x.node.clone();
        let free = matches!(x.stage, Stage::Waiting | Stage::Held | Stage::Ready);
        let fits = node.op.is_elementwise() && !matches!(node.op, Op::Fill(_)) && node.shape == first.shape;
        if !free || !fits || depth == 0 || !group.has_room() {
            return false;
        }
        // SAFETY: pending in our books.
        let inputs: SmallVec<[NodeLink; 3]> = unsafe { node.inputs() }.iter().cloned().collect();
        for input in &inputs {
            if group.member(input).is_some() {
                continue;
            }
            // The books, not the value, say what is there: one computed outside may be complete while the
            // word of it, which unblocks this entry, is still on its way.
            let there = match input.entry() {
                None => input.completion.state().is_complete(),
                Some(i) if matches!(self.entry(i).stage, Stage::Submitted(_)) => self.limits.ahead,
                Some(i) => self.try_include(i, first, group, entries, depth - 1),
            };
            if !there {
                return false;
            }
        }
        if !group.has_room() {
            return false;
        }
        self.include(e, group, entries);
        true
    }

    /// How many edges lead from member `k` to other members or to the reduction at the end.
    fn edges_inside(&self, k: usize, group: &Group<NodeLink>, end: Option<&(NodeLink, u8)>) -> u32 {
        let address = group.members[k].0.address();
        let mut edges = 0;
        for (member, _) in group.members.iter().skip(k + 1) {
            // SAFETY: pending in our books.
            edges += unsafe { member.inputs() }.iter().filter(|i| i.address() == address).count() as u32;
        }
        edges + end.is_some_and(|&(_, m)| m as usize == k) as u32
    }
}

/// True where anybody but the group's own members may look at this value, now or later.
fn is_observed(node: &NodeLink, edges_inside: u32) -> bool {
    let counts = node.counts();
    let state = node.completion.state();
    // Ours: the link of the books and that of the group. One that is queued has another, which cannot be
    // told from a reader's: it counts as one.
    let ours = 2;
    counts.handles > 0 || state.has(DETACHED) || counts.links > ours + edges_inside
}

#[cfg(all(test, not(futensor_loom)))]
#[path = "machine_tests.rs"]
mod tests;
