//! One step on its lane: its operands as they are now, its launches, what it made, and what it lets
//! go of.
//!
//! Called by the device's thread for each lane in turn. Nothing here waits; what cannot be queued
//! yet is given back.

use super::{COVERED_AFTER, COVERED_AFTER_NS, PutOff, Worker, named};
use crate::backend::Results;
use crate::concurrent::completion::DETACHED;
use crate::cuda::device::index_check::{Doubts, Known, doubt_too};
use crate::cuda::device::libraries::nvtx;
use crate::cuda::device::step::{Landing, Operand, Queued};
use crate::cuda::device::timing::Timed;
use crate::cuda::device::{Trouble, Until, describe};
use crate::cuda::worker::flight::{Flight, put};
use crate::engine::step::Step;
use crate::error::ErrorKind;
use crate::graph::node::{NodeLink, Op, Otherwise, free, readers};
use crate::graph::work::Work;
use crate::sync::lock;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

impl Worker {
    /// Queues a step; gives it back where it has to be put off.
    pub(super) fn submit(&mut self, lane: usize, mut step: Step) -> Result<Option<Step>, Trouble> {
        let last_try =
            self.queues[lane].put_off == Some(PutOff::LastOfMemory) && self.has_all_memory();
        if last_try {
            // All of it is back, and nothing runs.
            self.gear.context.pool.trim();
        }
        // Before it is tried: what is made meanwhile may be what it needs.
        let made = self.gear.launcher.background.made();
        let mut doubts = Doubts::new();
        self.gear.timing.arm(self.shared.port.recordings.is_on())?;
        let range =
            if self.shared.manner.nvtx { nvtx::range(step.nodes().map(named)) } else { None };
        let inputs = step.inputs();
        let attempt = match step.work() {
            Work::Node(node) if matches!(node.op, Op::Call(_) | Op::Part(_)) => {
                self.region(lane, node, inputs, &mut doubts, last_try)
            }
            work => {
                let of_group =
                    if let Work::Group { group, .. } = work { group.inputs.len() } else { 0 };
                let operands: SmallVec<[Operand; 4]> = (0..of_group + inputs.len())
                    .map(|k| work.operand(inputs, k))
                    .map(|(input, held)| self.operand(input, held, &mut doubts))
                    .collect();
                // It tells what failed from what did not, so it waits until nothing is in doubt.
                let waits = matches!(work, Work::Node(node) if matches!(node.op, Op::Predicated(Otherwise::Number(_) | Otherwise::Second)));
                match waits && !doubts.is_empty() {
                    true => Err(Trouble::Later(Until::Moved)),
                    false => self.gear.work(lane, work, inputs, &operands, last_try),
                }
            }
        };
        drop(range);
        let queued = match attempt {
            Ok(queued) => queued,
            Err(Trouble::Later(until)) => {
                let why = match until {
                    Until::Made => PutOff::Making(made),
                    Until::Moved => PutOff::Moving,
                };
                self.put_off(lane, why);
                return Ok(Some(step));
            }
            Err(Trouble::OutOfMemory { .. }) => {
                let mut why = self.queues[lane]
                    .put_off
                    .filter(|why| why.is_of_memory())
                    .unwrap_or(PutOff::Memory);
                if self.has_all_memory() {
                    // Nothing runs: graphs go.
                    why = PutOff::LastOfMemory;
                    self.gear.drop_graphs();
                    self.gear.free_returned()?;
                }
                // What lanes keep is of use to no other lane.
                self.gear.pool.give_back(&self.gear.lanes)?;
                self.put_off(lane, why);
                return Ok(Some(step));
            }
            Err(trouble) => return Err(trouble),
        };
        let Queued { results, doubt, landing } = queued;
        self.queues[lane].put_off = None;
        self.queues[lane].point = step.at.point;
        doubts.extend(doubt);
        self.note_results(&step, results, &doubts);
        if self.shared.port.recordings.is_on() {
            // Its times follow when it is through.
            self.shared.port.recordings.step(&step, None);
        }
        let observed = step.nodes().any(|n| n.counts().handles > 0);
        let (cost_ns, waits) = (step.cost_ns, self.gear.lanes.waits);
        self.shared.port.counters.events.store(waits, Relaxed);
        self.let_go(&mut step);
        let names = self
            .shared
            .manner
            .sync
            .then(|| step.nodes().next().map(|n| n.fail(ErrorKind::DeviceLost, "")));
        let timed = self.gear.timing.end(self.gear.lanes.raw(lane))?;
        self.depart(lane, Some(step), landing, timed);

        // A GPU takes about a hundredth of one core's time, and some microseconds for anything.
        let queue = &mut self.queues[lane];
        queue.since_event += 1;
        queue.since_event_ns += 2_000 + cost_ns / 64;
        let enough = observed && queue.since_event_ns >= COVERED_AFTER_NS
            || queue.since_event >= COVERED_AFTER;
        if enough || names.is_some() {
            self.cover(lane)?;
        }
        if let Some(Some(culprit)) = names {
            self.send_reapers();
            if let Err(fault) = self.gear.lanes.raw(lane).sleep() {
                let (op, at) = (culprit.op(), culprit.location());
                let place = format!("{}:{}", at.file(), at.line());
                self.shared.lose(format_args!("{} while running {op} ({place})", describe(fault)));
            }
        }
        Ok(None)
    }

    /// A step has to be tried again. What was queued of it (an operand's copy, say) is a flight by
    /// itself: others may come after it before the step does.
    fn put_off(&mut self, lane: usize, why: PutOff) {
        self.queues[lane].put_off = Some(why);
        if self.gear.lanes.is_begun(lane) {
            self.depart(lane, None, None, None);
        }
    }

    /// A flight is queued.
    pub(in crate::cuda::worker) fn depart(
        &mut self,
        lane: usize,
        step: Option<Step>,
        landing: Option<Landing>,
        timed: Option<Timed>,
    ) {
        let (mark, cargo) = self.gear.depart(lane);
        let flight = Flight { at: mark.at, step, cargo, landing, launched: Instant::now(), timed };
        self.shared.lanes[lane].sky().flights.push_back(flight);
    }

    /// An operand as it is now, complete or only queued. `held` are the links to it that there are
    /// for this step's sake.
    pub(in crate::cuda::worker) fn operand(
        &self,
        input: &NodeLink,
        held: u32,
        doubts: &mut Doubts,
    ) -> Operand {
        let made = input
            .entry()
            .and_then(|entry| lock(&self.shared.table).get(entry as usize).cloned().flatten());
        let complete = input.completion.get();
        let (in_table, is_complete) = (made.is_some(), complete.is_some());
        let value = match (complete, made) {
            (Some(result), _) => result.clone(),
            (None, Some(made)) => {
                doubt_too(doubts, &made.doubts);
                made.result
            }
            (None, None) => match input.completion.get() {
                Some(result) => result.clone(),
                None => {
                    Err(input.fail(ErrorKind::Kernel, "its value was gone before its reader came"))
                }
            },
        };
        let counts = readers(input);
        // While its step is in the task table, they hold a link to it, and so does the step.
        let ours = if in_table { 2 } else { 0 };
        let last = counts.handles == 0 && counts.links == held + ours;
        let owners = 1 + in_table as usize + is_complete as usize;
        Operand { value, spare: last.then_some(owners) }
    }

    /// Notes what each of a step's entries was given.
    fn note_results(&self, step: &Step, results: Results, doubts: &Doubts) {
        let mut results = results.into_iter();
        for (k, &entry) in step.entries.iter().enumerate() {
            let made = if step.work().writes(k) { results.next() } else { None };
            let made = made.map(|result| Known { result, doubts: doubts.clone() });
            put(&self.shared.table, entry, made);
        }
    }

    /// Lets go of what a queued step has read: its memory is now free in stream order, unless
    /// somebody else wants it.
    fn let_go(&self, step: &mut Step) {
        let links = step.let_go();
        let mut queued: SmallVec<[(u32, NodeLink); 4]> = SmallVec::new();
        for link in &links {
            if let Some(entry) = link.entry()
                && !queued.iter().any(|(e, _)| *e == entry)
            {
                queued.push((entry, link.clone()));
            }
        }
        free(links);
        for (entry, link) in queued {
            let counts = readers(&link);
            let made = lock(&self.shared.table).get(entry as usize).cloned().flatten();
            // The task table's, its step's, and ours: nobody can come to look at the value any
            // more. An error stays, for the log of what is detached.
            let gone = counts.handles == 0 && counts.links == 3;
            if gone
                && made.is_some_and(|m| {
                    m.result.is_ok()
                        && (m.doubts.is_empty() || !link.completion.state().has(DETACHED))
                })
            {
                put(&self.shared.table, entry, None);
            }
        }
    }
}
