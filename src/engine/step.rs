//! A step: what a device is given to run at once, on which stream, after what.

use crate::graph::node::{NodeLink, Op, ViewOp};
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
    /// What other streams have to have reached before this step may run.
    pub waits: SmallVec<[At; 2]>,
    pub work: Work,
    /// The step's nodes in the engine's books.
    pub entries: SmallVec<[u32; 2]>,
    /// Bytes of the results.
    pub bytes: usize,
    /// Estimated time on one thread.
    #[allow(dead_code)] // For traces.
    pub cost_ns: u64,
}

impl Step {
    /// Every node that the step ends, in the order of the data.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeLink> {
        self.work.nodes()
    }

    /// One op that touches no element: another look at a value, or the value itself.
    pub fn is_without_kernel(&self) -> bool {
        let Work::Node(node) = &self.work else { return false };
        matches!(node.op, Op::Gate(_) | Op::View(_)) && !matches!(node.op, Op::View(ViewOp::Reshape))
    }
}
