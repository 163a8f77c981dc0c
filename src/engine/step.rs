//! A step: what a backend is given to run at once, on which stream, after what.

use crate::graph::fuse::Group;
use crate::graph::node::NodeLink;
use smallvec::SmallVec;

/// A point on a stream's timeline: the stream has run its first `point` steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    pub stream: u16,
    pub point: u64,
}

/// What is computed.
#[allow(clippy::large_enum_variant)] // Moved once, and rarely; a box would cost more.
pub(crate) enum Work {
    /// A fused program; `written` names the members whose values are written out.
    Group {
        group: Group<NodeLink>,
        written: SmallVec<[u8; 2]>,
        /// A reduction at the end, and the member that it reduces.
        end: Option<(NodeLink, u8)>,
    },
    /// One node.
    Node(NodeLink),
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
        let (head, members, last) = match &self.work {
            Work::Group { group, end, .. } => {
                (group.head.as_ref(), &group.members[..], end.as_ref().map(|(n, _)| n))
            }
            Work::Node(node) => (None, &[][..], Some(node)),
        };
        head.into_iter().chain(members).map(|(n, _)| n).chain(last)
    }

    /// True where the `i`th of its nodes gets a value.
    pub fn writes(&self, i: usize) -> bool {
        match &self.work {
            Work::Group { group, written, .. } => match i.checked_sub(group.head.is_some() as usize) {
                Some(k) => k >= group.members.len() || written.contains(&(k as u8)),
                None => false,
            },
            Work::Node(_) => true,
        }
    }
}
