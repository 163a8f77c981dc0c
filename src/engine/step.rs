//! A step: the unit that a device runs at once, with its stream and its waits.
//!
//! The owner of a step runs it. The step's nodes were claimed for it, and the step is the proof: no
//! other thread reads their inputs, or lets go of them.

#![allow(unsafe_code)]

use crate::concurrent::completion::Phase;
use crate::graph::asker::Asker;
use crate::graph::node::{Inputs, NodeLink, Op, ViewOp};
use crate::graph::work::Work;
use smallvec::SmallVec;

/// A point on a stream's timeline: the stream has run its first `point` steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    pub stream: u16,
    pub point: u64,
}

pub(crate) struct Step {
    pub at: At,
    /// The points that other streams have to reach before this step may run.
    pub waits: SmallVec<[At; 2]>,
    /// The claimed work. It stays in the step.
    work: Work,
    /// The step's nodes in the engine's task table.
    pub entries: SmallVec<[u32; 2]>,
    /// Bytes of the results.
    pub bytes: usize,
    /// Estimated time on one thread.
    #[allow(dead_code)] // For traces.
    pub cost_ns: u64,
}

impl Step {
    /// Claims the pending nodes of some work for a step of these entries.
    pub fn claim(
        work: Work,
        bytes: usize,
        at: At,
        waits: SmallVec<[At; 2]>,
        entries: SmallVec<[u32; 2]>,
    ) -> Step {
        let (mut cost_ns, mut claimed) = (0, true);
        for node in work.nodes() {
            claimed &= node.completion.claim(Phase::Claimed, 0);
            cost_ns += node.cost_ns() as u64;
        }
        assert!(claimed, "an entered node is the engine's");
        Step { at, waits, work, entries, bytes, cost_ns }
    }

    pub fn work(&self) -> &Work {
        &self.work
    }

    /// True of a call of a region.
    pub fn is_call(&self) -> bool {
        matches!(&self.work, Work::Node(node) if matches!(node.op, Op::Call(_)))
    }

    /// The inputs of the work's head, or of its one node.
    pub fn inputs(&self) -> &[NodeLink] {
        let node = match &self.work {
            Work::Group { group, .. } => group.head.as_ref().map(|(head, _)| head),
            Work::Node(node) => Some(node),
        };
        // SAFETY: claimed for this step, which lets nothing go while it is lent.
        node.map_or(&[], |node| unsafe { node.inputs() })
    }

    /// Who asked for its nodes, until it lets go of their inputs.
    #[allow(dead_code)] // For `tracing`.
    pub fn askers(&self) -> impl Iterator<Item = &Asker> {
        // SAFETY: claimed for this step, which lets nothing go while it is lent.
        self.work.nodes().map(|node| unsafe { node.asker() })
    }

    /// Lets go of the inputs of its nodes, before the nodes have values.
    #[allow(dead_code)] // Hosts let go as they publish.
    pub fn let_go(&mut self) -> Inputs {
        let mut links = Inputs::new();
        for node in self.work.nodes() {
            // SAFETY: claimed for this step, which nobody else has.
            links.extend(unsafe { node.let_go() });
        }
        if let Work::Group { group, .. } = &mut self.work {
            links.extend(std::mem::take(&mut group.inputs));
        }
        links
    }

    /// Every node that the step ends, in the order of the data.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeLink> {
        self.work.nodes()
    }

    /// Every link that the step holds.
    pub fn into_links(self) -> Inputs {
        self.work.into_links()
    }

    /// True of one op that touches no element: a view of a value, or the value itself.
    pub fn is_without_kernel(&self) -> bool {
        let Work::Node(node) = &self.work else { return false };
        matches!(node.op, Op::Predicated(_) | Op::View(_))
            && !matches!(node.op, Op::View(ViewOp::Reshape))
    }
}
