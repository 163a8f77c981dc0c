//! The ready entries: delayed for a moment, queued behind the chain that they continue, and picked
//! for a stream. The making of a step stands in `take_up`.

use super::stream::Stream;
use super::task_table::{EntryId, EntryRef, Stage};
use super::{Machine, is_wanted};
use crate::engine::step::Step;
use crate::graph::node::{Node, Op};

/// A shorter delay is not worth a deadline, in nanoseconds.
const FUSION_DELAY_MIN_NS: u64 = 200;

impl Machine {
    /// The longest delay of this node: 2 % of its own estimated time.
    fn fusion_delay_ns(&self, node: &Node) -> u64 {
        if !node.op.is_elementwise() || matches!(node.op, Op::Fill(_)) {
            return 0;
        }
        (node.cost_ns() as u64 / 50).min(self.limits.fusion_delay_max_ns)
    }

    /// Delays unblocked entries, or makes them ready.
    pub(super) fn settle_unblocked(&mut self, now: u64, awaited: bool) {
        while let Some(id) = self.unblocked.pop() {
            let entry = self.table.entry(id);
            let delay = if awaited { 0 } else { self.fusion_delay_ns(&entry.node) };
            // The time that the entry has waited for its inputs counts.
            let deadline = entry.since + delay;
            if delay >= FUSION_DELAY_MIN_NS && deadline > now {
                self.delayed_until = match self.delayed.is_empty() {
                    true => deadline,
                    false => self.delayed_until.min(deadline),
                };
                self.delayed.push(self.table.entry_ref(id));
                self.table.entry_mut(id).stage = Stage::Delayed;
            } else {
                self.make_ready(id);
            }
        }
    }

    /// Makes all delayed entries ready.
    pub(super) fn release_delayed(&mut self) {
        for entry in std::mem::take(&mut self.delayed) {
            if self.table.is_at(entry, Stage::Delayed) {
                self.make_ready(entry.id);
            }
        }
    }

    /// Queues an entry behind the chain that it continues, or with those that begin one.
    fn make_ready(&mut self, id: EntryId) {
        self.table.entry_mut(id).stage = Stage::Ready;
        let entry = self.table.entry(id);
        let (mut chain, mut urgent) = (entry.chain, is_urgent(&entry.node.op));
        for input in entry.inputs() {
            if let Some(input) = input.entry()
                && let Stage::Submitted(at) = self.table.entry(input).stage
            {
                if at.stream >= self.limits.streams {
                    // The stream for urgent steps also takes those that hand their results out,
                    // and nothing else that follows.
                    urgent |= matches!(entry.node.op, Op::Part(_) | Op::Sink(_));
                    continue;
                }
                let is_tail = self.streams[at.stream as usize].submitted == at.point;
                if is_tail || chain.is_none() {
                    chain = Some(at.stream);
                }
                if is_tail {
                    break;
                }
            }
        }
        let entry = self.table.entry_ref(id);
        match chain {
            _ if urgent => self.urgent.push_back(entry),
            Some(stream) => self.streams[stream as usize].queue.push_back(entry),
            None => self.queue.push_back(entry),
        }
    }

    /// The next step to submit, if the limits allow one.
    pub fn next(&mut self, now: u64) -> Option<Step> {
        loop {
            if self.in_flight >= self.limits.ops_max {
                return None;
            }
            let (picked, stream) = self.pick()?;
            let entry = self.table.entry_mut(picked.id);
            if entry.is_observed && entry.wants == 0 && !is_wanted(&entry.node) {
                // The last handle is gone, and the visit that says so is still to come.
                entry.is_observed = false;
                self.cancel(picked.id);
                continue;
            }
            let bytes = entry.node.bytes();
            if self.in_flight > 0
                && self.in_flight_bytes.saturating_add(bytes) > self.limits.bytes_max
            {
                // The entry stays first in line. A step larger than the limit runs alone.
                match stream >= self.limits.streams || is_urgent(&entry.node.op) {
                    true => self.urgent.push_front(picked),
                    false => self.streams[stream as usize].queue.push_front(picked),
                }
                return None;
            }
            let step = self.take_up(picked.id, stream);
            self.settle_unblocked(now, false);
            return Some(step);
        }
    }

    /// The stream with the least to do, unless all are full.
    fn least_busy(&self) -> Option<usize> {
        let load = |s: &Stream| (s.is_stuck, s.depth() + s.queue.len() as u64);
        let least = (0..self.limits.streams as usize).min_by_key(|&s| load(&self.streams[s]))?;
        (self.streams[least].depth() < self.limits.depth_max).then_some(least)
    }

    /// Chooses a ready entry and the stream for it. Urgent entries come first, on a stream of their
    /// own where there is one. A chain continues on its stream. The beginning of a chain goes to
    /// the least busy stream, so that independent work overlaps in whatever order it came.
    fn pick(&mut self) -> Option<(EntryRef, u16)> {
        let count = self.limits.streams as usize;
        while let Some(&entry) = self.urgent.front() {
            let is_ready = self.table.is_at(entry, Stage::Ready);
            let stream = match self.streams.get(count) {
                _ if !is_ready => 0,
                Some(own) if own.depth() < self.limits.depth_max => count,
                Some(_) => return None,
                None => self.least_busy()?,
            };
            self.urgent.pop_front();
            if is_ready {
                return Some((entry, stream as u16));
            }
        }
        for k in 0..count {
            let stream = (self.next_stream + k) % count;
            if self.streams[stream].depth() >= self.limits.depth_max {
                continue;
            }
            while let Some(entry) = self.streams[stream].queue.pop_front() {
                if self.table.is_at(entry, Stage::Ready) {
                    self.next_stream = stream + 1;
                    return Some((entry, stream as u16));
                }
            }
        }
        let stream = self.least_busy()?;
        // With nothing else to do, a stream continues another's chain where that needs nothing but
        // a thread.
        let others = (!self.limits.ahead).then_some(0..count).into_iter().flatten();
        for from in others.map(Some).chain([None]).rev() {
            let queue = match from {
                Some(other) => &mut self.streams[other].queue,
                None => &mut self.queue,
            };
            while let Some(entry) = queue.pop_front() {
                if self.table.is_at(entry, Stage::Ready) {
                    return Some((entry, stream as u16));
                }
            }
        }
        None
    }
}

fn is_urgent(op: &Op) -> bool {
    matches!(op, Op::Call(call) if call.is_urgent())
}
