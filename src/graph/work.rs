//! The work of one step. The engine plans it at take-up, a region plans it in advance, and
//! a poll plans it for a small op.

use super::fuse::Group;
use super::node::{Inputs, NodeLink};
use smallvec::SmallVec;

/// A fused program, or a single op.
#[allow(clippy::large_enum_variant)] // Moved once, and rarely; a box would cost more.
pub(crate) enum Work {
    /// A fused program; `written` names the members whose values are written to memory.
    Group {
        group: Group<NodeLink>,
        written: SmallVec<[u8; 2]>,
        /// A reduction at the end, and the member that it reduces.
        end: Option<(NodeLink, u8)>,
    },
    /// One node.
    Node(NodeLink),
}

impl Work {
    /// Its nodes, each after its operands.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeLink> {
        let (head, members, last) = match self {
            Work::Group { group, end, .. } => {
                (group.head.as_ref(), &group.members[..], end.as_ref().map(|(n, _)| n))
            }
            Work::Node(node) => (None, &[][..], Some(node)),
        };
        head.into_iter().chain(members).map(|(n, _)| n).chain(last)
    }

    /// True if the `i`th node gets a value.
    pub fn writes(&self, i: usize) -> bool {
        match self {
            Work::Group { group, written, .. } => {
                match i.checked_sub(group.head.is_some() as usize) {
                    Some(k) => k >= group.members.len() || written.contains(&(k as u8)),
                    None => false,
                }
            }
            Work::Node(_) => true,
        }
    }

    /// The number of nodes that get a value.
    pub fn results(&self) -> usize {
        match self {
            Work::Group { written, end, .. } => written.len() + end.is_some() as usize,
            Work::Node(_) => 1,
        }
    }

    /// Operand `k`, and the number of links to it that exist only for this work. The operands of
    /// the group come first, then the `inputs` of its head or of its single node.
    pub fn operand<'a>(&'a self, inputs: &'a [NodeLink], k: usize) -> (&'a NodeLink, u32) {
        let mut k = k;
        if let Work::Group { group, .. } = self {
            if let Some(input) = group.inputs.get(k) {
                // The members' edges, and the group's own link.
                return (input, group.edges[k] as u32 + 1);
            }
            k -= group.inputs.len();
        }
        (&inputs[k], inputs.iter().filter(|i| i.address() == inputs[k].address()).count() as u32)
    }

    /// All links that it holds.
    pub fn into_links(self) -> Inputs {
        let mut links = Inputs::new();
        match self {
            Work::Group { group, end, .. } => {
                links.extend(group.members.into_iter().map(|(n, _)| n));
                links.extend(group.inputs);
                links.extend(group.head.map(|(n, _)| n));
                links.extend(end.map(|(n, _)| n));
            }
            Work::Node(node) => links.push(node),
        }
        links
    }
}
