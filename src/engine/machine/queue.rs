//! The ready entries: delayed for a moment, queued behind the chain that they continue, and picked
//! for a stream. The making of a step stands in `take_up`.

use super::{Machine, Stage, Stream, is_wanted};
use crate::engine::step::Step;
use crate::graph::node::Op;

impl Machine {
    /// Longest time that this node may be delayed: 2 % of its own estimated time.
    fn fusion_delay_ns(&self, e: u32) -> u64 {
        let node =
            &self.entries[e as usize].as_ref().expect("a number is given up with its entry").node;
        if !node.op.is_elementwise() || matches!(node.op, Op::Fill(_)) {
            return 0;
        }
        (node.cost_ns as u64 / 50).min(self.limits.fusion_delay_max_ns)
    }

    pub(super) fn settle_unblocked(&mut self, now: u64, awaited: bool) {
        while let Some(e) = self.unblocked.pop() {
            let delay = if awaited { 0 } else { self.fusion_delay_ns(e) };
            let x = self.entry(e);
            let generation = x.generation;
            // The time that it has waited for its inputs counts.
            let deadline = x.since + delay;
            if delay >= 200 && deadline > now {
                x.stage = Stage::Delayed;
                self.delayed_until = if self.delayed.is_empty() {
                    deadline
                } else {
                    self.delayed_until.min(deadline)
                };
                self.delayed.push((e, generation));
            } else {
                self.make_ready(e);
            }
        }
    }

    pub(super) fn release_delayed(&mut self) {
        for (e, generation) in std::mem::take(&mut self.delayed) {
            if self.is_live(e, generation) && self.entry(e).stage == Stage::Delayed {
                self.make_ready(e);
            }
        }
    }

    /// Queues an entry behind the chain that it continues, or with those that begin one.
    fn make_ready(&mut self, e: u32) {
        self.entry(e).stage = Stage::Ready;
        let x = self.entry_of(e);
        let (generation, mut chain, mut urgent) = (x.generation, x.chain, is_urgent(&x.node.op));
        for input in x.inputs() {
            if let Some(i) = input.entry()
                && let Stage::Submitted(at) = self.entry_of(i).stage
            {
                if at.stream >= self.limits.streams {
                    // The stream for what is urgent is for what hands it out, and for nothing else
                    // that follows.
                    urgent |= matches!(x.node.op, Op::Part(_) | Op::Sink(_));
                    continue;
                }
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
            _ if urgent => self.urgent.push_back((e, generation)),
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
            if x.root && x.wants == 0 && !is_wanted(&x.node) {
                // Word of the drop is still on its way.
                x.root = false;
                self.cancel(e);
                continue;
            }
            let (bytes, generation) = (x.node.bytes(), x.generation);
            if self.in_flight > 0
                && self.in_flight_bytes.saturating_add(bytes) > self.limits.bytes_max
            {
                // It stays first in line; a step larger than the limit runs alone.
                match stream >= self.limits.streams || is_urgent(&self.entry_of(e).node.op) {
                    true => self.urgent.push_front((e, generation)),
                    false => self.streams[stream as usize].queue.push_front((e, generation)),
                }
                return None;
            }
            let step = self.take_up(e, stream);
            self.settle_unblocked(now, false);
            return Some(step);
        }
    }

    /// The stream with the least to do, unless all are full.
    fn least_busy(&self) -> Option<usize> {
        let depth = |s: &Stream| (s.stuck, s.depth() + s.queue.len() as u64);
        let s = (0..self.limits.streams as usize).min_by_key(|&s| depth(&self.streams[s]))?;
        (self.streams[s].depth() < self.limits.depth_max).then_some(s)
    }

    /// Chooses a ready entry and the stream for it: what is urgent comes first, in a stream of its
    /// own where there is one; chains continue where they are; whatever begins goes to the least
    /// busy stream, so that independent work overlaps in whatever order it came.
    fn pick(&mut self) -> Option<(u32, u16)> {
        let count = self.limits.streams as usize;
        while let Some(&(e, generation)) = self.urgent.front() {
            let ready = self.is_live(e, generation) && self.entry(e).stage == Stage::Ready;
            let s = match self.streams.get(count) {
                _ if !ready => 0,
                Some(own) if own.depth() < self.limits.depth_max => count,
                Some(_) => return None,
                None => self.least_busy()?,
            };
            self.urgent.pop_front();
            if ready {
                return Some((e, s as u16));
            }
        }
        for k in 0..count {
            let s = (self.next_stream + k) % count;
            let depth = self.streams[s].depth();
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
        let s = self.least_busy()?;
        // With nothing else to do, a stream continues another's chain where that needs nothing but
        // a thread.
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
}

fn is_urgent(op: &Op) -> bool {
    matches!(op, Op::Call(call) if call.is_urgent())
}
