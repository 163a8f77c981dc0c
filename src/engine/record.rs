//! Recordings: the steps that ran, in the order in which they ended.
//!
//! The places that end work (a submitted step, a small step, a skip) tell the recordings. While no
//! recording is on, that costs them one relaxed load. A recording keeps no node alive, so it
//! changes nothing about skipping, fusing or computing in place. Knows nothing of queues or
//! threads.

#![allow(unsafe_code)]

use super::step::{At, Step};
use crate::dtype::DType;
use crate::graph::claim::Claim;
use crate::graph::node::{Node, NodeLink, Op};
use crate::shape::Shape;
use crate::sync::clock::Instant;
use crate::sync::plain::{AtomicUsize, Ordering::Relaxed};
use crate::sync::{Mutex, lock};
use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Steps that one recording keeps.
const STEPS_MAX: usize = 1 << 16;

/// How a step came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ran {
    /// It ran as the `point`th step of a stream.
    Stream {
        /// Number of the stream.
        stream: usize,
        /// Position on the stream's timeline, from 1.
        point: u64,
    },
    /// The engine ran it immediately at take-up: it was too small for a stream.
    TakeUp,
    /// The poll that awaited it ran it.
    Poll,
    /// It did not run: it had no observer left.
    Skipped,
}

/// An op of a recorded step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordedOp {
    /// Number within the recording, in the order of ending, from 0.
    pub number: usize,
    /// The op's name.
    pub name: String,
    /// What kind of op it is: "elementwise", "reductions", "products", "custom"...
    pub family: &'static str,
    /// The shape of its value.
    pub shape: Shape,
    /// The element type of its value.
    pub dtype: DType,
    /// The caller's line.
    pub location: &'static Location<'static>,
    /// The numbers of the recorded ops that its operands came from; `None` is a value from before
    /// the recording.
    pub inputs: Vec<Option<usize>>,
    /// Whether its value was written to memory. That of a fused temporary is not.
    pub written: bool,
}

/// Ops that ran as one step, or a single op that was skipped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordedStep {
    /// The ops, each after its inputs; more than one if they were fused.
    pub ops: Vec<RecordedOp>,
    /// How it came to its end.
    pub ran: Ran,
    /// Points of other streams that it waited for, as (stream, point).
    pub waits: Vec<(usize, u64)>,
    /// When it began, since the recording began. A skipped op begins and ends at the same time.
    pub began: Duration,
    /// When it ended, since the recording began.
    pub ended: Duration,
    /// Whether both times were measured by the GPU. Otherwise they are the host's: of the launch or
    /// begin, and of the seen completion or end.
    pub by_device: bool,
}

/// An await that has ended: of a value, a read, or a whole device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordedAwait {
    /// The awaited thing: `await`, `to_vec`, `waitall`...
    pub what: &'static str,
    /// Where it was awaited.
    pub site: &'static Location<'static>,
    /// Number of the recorded op whose value ended it.
    pub op: Option<usize>,
    /// The awaiting task, counted from 0 in the order of their first awaits that ended. Tasks are
    /// told apart by their wakers and names.
    pub task: usize,
    /// The task's name, if [`named`](crate::recording::named) gave it one.
    pub name: Option<Arc<str>>,
    /// When it began to wait, since the recording began.
    pub began: Duration,
    /// When it ended.
    pub ended: Duration,
    /// Ops that were queued or running on the device when it began.
    pub queued: usize,
    /// Whether the device had no work left when it ended.
    pub ran_dry: bool,
}

/// The steps that a device ran during the recording, and the awaits.
///
/// [`to_html`](Self::to_html), [`to_svg`](Self::to_svg) and
/// [`to_chrome_json`](Self::to_chrome_json) draw it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recording {
    /// Name of the device.
    pub device: String,
    /// Its steps, in the order in which they ended.
    pub steps: Vec<RecordedStep>,
    /// The awaits that had to wait, in the order in which they ended.
    pub awaits: Vec<RecordedAwait>,
}

/// An await as the awaiting poll sees it.
pub(crate) struct Awaited<'a> {
    pub what: &'static str,
    pub site: &'static Location<'static>,
    pub node: &'a Node,
    /// Tells the task from others.
    pub task: usize,
    pub name: Option<Arc<str>>,
    pub began: Instant,
    pub queued: usize,
    pub ran_dry: bool,
}

/// A recording in progress.
struct Reel {
    id: usize,
    since: Instant,
    steps: Vec<RecordedStep>,
    /// The steps whose times are still to come, in the order of their launches.
    launched: VecDeque<usize>,
    awaits: Vec<RecordedAwait>,
    /// Tasks, by their wakers and names.
    tasks: HashMap<(usize, Option<Arc<str>>), usize>,
    /// The last op that was recorded at an address. Nodes come and go, so the location is compared
    /// too.
    numbers: HashMap<usize, (usize, &'static Location<'static>)>,
    ops: usize,
}

/// The recordings of a device that are in progress.
#[derive(Default)]
pub(crate) struct Recordings {
    open: AtomicUsize,
    reels: Mutex<(usize, Vec<Reel>)>,
}

fn address(node: &Node) -> usize {
    node as *const Node as usize
}

impl Recordings {
    /// Begins a recording and names it.
    pub fn start(&self) -> usize {
        let (next, reels) = &mut *lock(&self.reels);
        *next += 1;
        reels.push(Reel {
            id: *next,
            since: Instant::now(),
            steps: Vec::new(),
            launched: VecDeque::new(),
            awaits: Vec::new(),
            tasks: HashMap::new(),
            numbers: HashMap::new(),
            ops: 0,
        });
        self.open.store(reels.len(), Relaxed);
        *next
    }

    /// Ends a recording.
    pub fn stop(&self, id: usize) -> (Vec<RecordedStep>, Vec<RecordedAwait>) {
        let (_, reels) = &mut *lock(&self.reels);
        let found = reels.iter().position(|r| r.id == id).map(|i| reels.swap_remove(i));
        self.open.store(reels.len(), Relaxed);
        found.map_or_else(Default::default, |reel| (reel.steps, reel.awaits))
    }

    /// True while a recording is on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.open.load(Relaxed) != 0
    }

    /// The time, while a recording is on: taken as work begins.
    #[inline]
    pub fn now(&self) -> Option<Instant> {
        self.is_on().then(Instant::now)
    }

    /// An await that had to wait has ended.
    #[cold]
    pub fn awaited(&self, awaited: Awaited<'_>) {
        let (_, reels) = &mut *lock(&self.reels);
        for reel in reels.iter_mut().filter(|r| r.awaits.len() < STEPS_MAX) {
            let count = reel.tasks.len();
            let task = *reel.tasks.entry((awaited.task, awaited.name.clone())).or_insert(count);
            let number =
                reel.numbers.get(&address(awaited.node)).filter(|n| n.1 == awaited.node.at);
            reel.awaits.push(RecordedAwait {
                what: awaited.what,
                site: awaited.site,
                op: number.map(|n| n.0),
                task,
                name: awaited.name.clone(),
                began: awaited.began.saturating_duration_since(reel.since),
                ended: reel.since.elapsed(),
                queued: awaited.queued,
                ran_dry: awaited.ran_dry,
            });
        }
    }

    /// Records a submitted step that is about to be published. Without a begin time it was only
    /// launched, and [`landed`](Self::landed) follows.
    #[cold]
    pub fn step(&self, step: &Step, began: Option<Instant>) {
        let nodes: Vec<(&NodeLink, bool)> =
            step.nodes().enumerate().map(|(i, n)| (n, step.work().writes(i))).collect();
        let At { stream, point } = step.at;
        let waits = step.waits.iter().map(|w| (w.stream as usize, w.point)).collect();
        let ran = Ran::Stream { stream: stream as usize, point };
        // SAFETY: a borrowed step does not let its inputs go.
        unsafe { self.add(nodes.iter().map(|(n, w)| (&***n, *w)), ran, waits, began) };
    }

    /// Completes a step that was recorded when it was launched: the time of the launch, and the
    /// device's own times, if there are any.
    #[allow(dead_code)] // For devices whose streams run by themselves.
    #[cold]
    pub fn landed(&self, at: At, launched: Instant, times: Option<(Instant, Instant)>) {
        let (_, reels) = &mut *lock(&self.reels);
        let ran = Ran::Stream { stream: at.stream as usize, point: at.point };
        for reel in reels.iter_mut() {
            // Only steps in flight are searched: once a recording is full, a step costs nothing.
            let Some(at) = reel.launched.iter().position(|&i| reel.steps[i].ran == ran) else {
                continue;
            };
            let Some(i) = reel.launched.remove(at) else { continue };
            let (since, step) = (reel.since, &mut reel.steps[i]);
            let (began, ended) = times.unwrap_or_else(|| (launched, Instant::now()));
            step.began = began.saturating_duration_since(since);
            step.ended = ended.saturating_duration_since(since).max(step.began);
            step.by_device = times.is_some();
        }
    }

    /// Records a small step that is about to be published; its last node is written to memory.
    ///
    /// # Safety
    /// The caller has claimed all of them.
    #[cold]
    pub unsafe fn small<'a>(
        &self,
        temporaries: impl Iterator<Item = &'a Node>,
        last: &'a Node,
        by_poll: bool,
        began: Option<Instant>,
    ) {
        let nodes = temporaries.map(|n| (n, false)).chain([(last, true)]);
        let ran = if by_poll { Ran::Poll } else { Ran::TakeUp };
        // SAFETY: the caller's promise.
        unsafe { self.add(nodes, ran, Vec::new(), began) };
    }

    /// A node ran by itself.
    pub fn lone(&self, claim: &Claim<'_>, by_poll: bool, began: Option<Instant>) {
        // SAFETY: the claim keeps its inputs where they are.
        unsafe { self.small(std::iter::empty(), claim.node(), by_poll, began) };
    }

    /// Records a node that is freed without having run.
    ///
    /// # Safety
    /// The caller owns the node alone.
    #[cold]
    pub unsafe fn skip(&self, node: &Node) {
        // SAFETY: the caller's promise.
        unsafe { self.add([(node, false)].into_iter(), Ran::Skipped, Vec::new(), None) };
    }

    /// # Safety
    /// The nodes' inputs stay in place during the call.
    unsafe fn add<'a>(
        &self,
        nodes: impl Iterator<Item = (&'a Node, bool)>,
        ran: Ran,
        waits: Vec<(usize, u64)>,
        began: Option<Instant>,
    ) {
        let nodes: Vec<(&Node, bool)> =
            nodes.filter(|(n, _)| !matches!(n.op, Op::Marker)).collect();
        if nodes.is_empty() {
            return;
        }
        let (_, reels) = &mut *lock(&self.reels);
        for reel in reels.iter_mut().filter(|r| r.steps.len() < STEPS_MAX) {
            // SAFETY: the caller's promise.
            let ops =
                nodes.iter().map(|&(node, written)| unsafe { reel.op(node, written) }).collect();
            reel.note(ops, ran, waits.clone(), began);
        }
    }
}

impl Reel {
    /// Records a step as it ends, or as it is launched if no begin time was taken.
    fn note(
        &mut self,
        ops: Vec<RecordedOp>,
        ran: Ran,
        waits: Vec<(usize, u64)>,
        began: Option<Instant>,
    ) {
        if began.is_none() && matches!(ran, Ran::Stream { .. }) {
            self.launched.push_back(self.steps.len());
        }
        let ended = self.since.elapsed();
        let since = |began: Instant| began.saturating_duration_since(self.since);
        let began = began.map_or(ended, since).min(ended);
        self.steps.push(RecordedStep { ops, ran, waits, began, ended, by_device: false });
    }

    /// # Safety
    /// The node's inputs stay in place during the call.
    unsafe fn op(&mut self, node: &Node, written: bool) -> RecordedOp {
        let number_of = |input: &NodeLink| {
            let number = self.numbers.get(&address(input))?;
            (number.1 == input.at).then_some(number.0)
        };
        // SAFETY: the caller's promise.
        let inputs = unsafe { node.inputs() }.iter().map(number_of).collect();
        let number = self.ops;
        self.ops += 1;
        self.numbers.insert(address(node), (number, node.at));
        RecordedOp {
            number,
            name: node.op.name().to_owned(),
            family: node.op.family(),
            shape: node.shape.clone(),
            dtype: node.dtype,
            location: node.at,
            inputs,
            written,
        }
    }
}

#[cfg(all(test, not(any(futensor_loom, futensor_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_lands_is_looked_for_among_those_under_way_alone() {
        let recordings = Recordings::default();
        let id = recordings.start();
        let ran = |point: u64| Ran::Stream { stream: 0, point };
        {
            let reel = &mut lock(&recordings.reels).1[0];
            for point in 0..STEPS_MAX as u64 {
                reel.note(Vec::new(), ran(point), Vec::new(), None);
            }
            assert_eq!(reel.launched.len(), STEPS_MAX);
        }
        let under_way = || lock(&recordings.reels).1[0].launched.len();
        let launched = Instant::now();
        // The steps of one stream land in order, with steps of another stream in between.
        for point in [0, 1, 7, 2] {
            recordings.landed(At { stream: 0, point }, launched, None);
        }
        assert_eq!(under_way(), STEPS_MAX - 4);
        for point in 0..STEPS_MAX as u64 {
            recordings.landed(At { stream: 0, point }, launched, Some((launched, launched)));
        }
        // The recording is full: later steps are not searched for.
        assert_eq!(under_way(), 0);
        recordings.landed(At { stream: 0, point: 1 << 20 }, launched, None);
        let (steps, _) = recordings.stop(id);
        assert_eq!(steps.len(), STEPS_MAX);
        let by_device = |step: &&RecordedStep| step.by_device;
        assert_eq!(steps.iter().filter(by_device).count(), STEPS_MAX - 4);
    }
}
