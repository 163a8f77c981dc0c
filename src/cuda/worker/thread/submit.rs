//! One step on its lane: its operands as they are now, its launches, its results, and the operands
//! that it lets go of.
//!
//! The device's thread calls it for each lane in turn. Nothing here waits; a step that cannot be
//! queued yet goes back to the caller.

use super::{COVERED_AFTER, COVERED_AFTER_NS, Deferral, Worker, named};
use crate::backend::Results;
use crate::concurrent::completion::DETACHED;
use crate::cuda::device::background::Wanted;
use crate::cuda::device::index_check::{IndexChecks, Known, add_checks};
use crate::cuda::device::libraries::nvtx;
use crate::cuda::device::step::{HostCopy, Operand, Queued};
use crate::cuda::device::timing::Timed;
use crate::cuda::device::{Trouble, Until, describe};
use crate::cuda::worker::submissions::{Submission, put};
use crate::engine::events::{self, Launched};
use crate::engine::step::Step;
use crate::error::ErrorKind;
use crate::graph::asker::steps_are_seen;
use crate::graph::node::{NodeLink, Op, Otherwise, free, readers};
use crate::graph::work::Work;
use crate::sync::lock;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

impl Worker {
    /// Queues a step; gives it back where it has to be deferred.
    pub(super) fn submit(&mut self, lane: usize, mut step: Step) -> Result<Option<Step>, Trouble> {
        let last_try = match &self.queues[lane].deferred {
            Some(Deferral::GivenBack) if self.has_all_memory() => {
                // Other devices may work on the same GPU, and the driver may wait for them.
                let trimmed = self.context.trim_pool(Wanted::Now, || ());
                self.defer(lane, Deferral::Trimming(trimmed));
                return Ok(Some(step));
            }
            Some(Deferral::Trimming(trimmed)) => trimmed.is_there() && self.has_all_memory(),
            _ => false,
        };
        // Before the try: a thing that is made meanwhile may be the missing one.
        let made = self.context.launcher.background.made();
        let mut checks = IndexChecks::new();
        self.context.timing.arm(self.shared.port.recordings.is_on() || steps_are_seen())?;
        let range =
            if self.shared.settings.nvtx { nvtx::range(step.nodes().map(named)) } else { None };
        let inputs = step.inputs();
        let attempt = match step.work() {
            Work::Node(node) if matches!(node.op, Op::Call(_) | Op::Part(_)) => {
                self.region(lane, node, inputs, &mut checks, last_try)
            }
            work => {
                let of_group =
                    if let Work::Group { group, .. } = work { group.inputs.len() } else { 0 };
                let operands: SmallVec<[Operand; 4]> = (0..of_group + inputs.len())
                    .map(|k| work.operand(inputs, k))
                    .map(|(input, held)| self.operand(input, held, &mut checks))
                    .collect();
                // The result says which operands failed, so the step waits until no index check is
                // open.
                let waits = matches!(work, Work::Node(node) if tells_failures(&node.op));
                match waits && !checks.is_empty() {
                    true => Err(Trouble::Later(Until::Moved)),
                    false => self.context.work(lane, work, inputs, &operands, last_try),
                }
            }
        };
        drop(range);
        let queued = match attempt {
            Ok(queued) => queued,
            Err(Trouble::Later(until)) => {
                let why = match until {
                    Until::Made => Deferral::Making(made),
                    Until::Moved => Deferral::Moving,
                };
                self.defer(lane, why);
                return Ok(Some(step));
            }
            Err(Trouble::OutOfMemory { .. }) => {
                let mut why = Deferral::Memory;
                if self.has_all_memory() {
                    // Nothing runs: graphs go.
                    why = Deferral::GivenBack;
                    self.context.drop_graphs();
                    self.context.free_returned()?;
                }
                // Memory that a lane keeps is of use to no other lane.
                self.context.pool.give_back(&self.context.lanes)?;
                self.defer(lane, why);
                return Ok(Some(step));
            }
            Err(trouble) => return Err(trouble),
        };
        let Queued { results, check, host_copy } = queued;
        self.queues[lane].deferred = None;
        self.queues[lane].point = step.at.point;
        checks.extend(check);
        self.note_results(&step, results, &checks);
        if self.shared.port.recordings.is_on() {
            // Its times follow when it is through.
            self.shared.port.recordings.step(&step, None);
        }
        let observed = step.nodes().any(|n| n.counts().handles > 0);
        let (cost_ns, waits) = (step.cost_ns, self.context.lanes.waits);
        self.shared.port.counters.events.store(waits, Relaxed);
        // While it knows who asked.
        let span = events::launched(&self.shared.port.profile.name, &step);
        self.let_go(&mut step);
        let names = self
            .shared
            .settings
            .sync
            .then(|| step.nodes().next().map(|n| n.fail(ErrorKind::DeviceLost, "")));
        let timed = self.context.timing.end(self.context.lanes.raw(lane))?;
        self.depart(lane, Some((step, span)), host_copy, timed);

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
            if let Err(fault) = self.context.lanes.raw(lane).sleep() {
                let (op, at) = (culprit.op(), culprit.location());
                let place = format!("{}:{}", at.file(), at.line());
                self.shared.lose(format_args!("{} while running {op} ({place})", describe(fault)));
            }
        }
        Ok(None)
    }

    /// A step has to be tried again. Work that it has queued (an operand's copy, say) is a
    /// submission by itself: others may come after it before the step does.
    fn defer(&mut self, lane: usize, why: Deferral) {
        self.queues[lane].deferred = Some(why);
        if self.context.lanes.is_begun(lane) {
            self.depart(lane, None, None, None);
        }
    }

    /// A submission is queued.
    pub(in crate::cuda::worker) fn depart(
        &mut self,
        lane: usize,
        step: Option<(Step, Launched)>,
        host_copy: Option<HostCopy>,
        timed: Option<Timed>,
    ) {
        let (mark, retained) = self.context.depart(lane);
        let launched = Instant::now();
        let (step, span) = step.unzip();
        let submission =
            Submission { at: mark.at, step, retained, host_copy, launched, timed, span };
        self.shared.lanes[lane].in_flight().submissions.push_back(submission);
    }

    /// An operand as it is now, complete or only queued. `held` are the links to it that there are
    /// for this step's sake.
    pub(in crate::cuda::worker) fn operand(
        &self,
        input: &NodeLink,
        held: u32,
        checks: &mut IndexChecks,
    ) -> Operand {
        let made = input
            .entry()
            .and_then(|entry| lock(&self.shared.table).get(entry as usize).cloned().flatten());
        let complete = input.completion.get();
        let (in_table, is_complete) = (made.is_some(), complete.is_some());
        let value = match (complete, made) {
            (Some(result), _) => result.clone(),
            (None, Some(made)) => {
                add_checks(checks, &made.checks);
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

    /// Notes the result of each of a step's entries.
    fn note_results(&self, step: &Step, results: Results, checks: &IndexChecks) {
        let mut results = results.into_iter();
        for (k, &entry) in step.entries.iter().enumerate() {
            let made = if step.work().writes(k) { results.next() } else { None };
            let made = made.map(|result| Known { result, checks: checks.clone() });
            put(&self.shared.table, entry, made);
        }
    }

    /// Lets go of the operands of a queued step: their memory is now free in stream order, unless
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
            // more. An error stays, for the log of detached ops.
            let gone = counts.handles == 0 && counts.links == 3;
            if gone
                && made.is_some_and(|m| {
                    m.result.is_ok()
                        && (m.checks.is_empty() || !link.completion.state().has(DETACHED))
                })
            {
                put(&self.shared.table, entry, None);
            }
        }
    }
}

/// True for an op whose result says which operands failed.
fn tells_failures(op: &Op) -> bool {
    matches!(op, Op::Predicated(Otherwise::Number(_) | Otherwise::Second))
}
