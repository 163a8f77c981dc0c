//! Small steps, run where they stand: by the engine as it takes them up, or by an awaiting poll.
//!
//! A small node whose operands are there, or are small themselves, is claimed, computed and
//! completed in one go, together with the temporaries that only it can reach. No books, no stream,
//! no hand-over to another thread. Everything here is bounded: depth, number of nodes, and each
//! node's estimated time.

#![allow(unsafe_code)]

use super::port::Port;
use crate::completion::{DETACHED, ENTERED, Phase, QUEUED};
use crate::error::{Error, ErrorKind};
use crate::graph::fuse::Group;
use crate::graph::node::{Inputs, Node, NodeHandle, NodeLink, Op, free, is_last_reader};
use crate::graph::value::Value;
use crate::host::block::run_node;
use crate::host::step::{Host, run_group, run_tiny};
use smallvec::SmallVec;
use std::time::Instant;

/// Most ancestors that are run for the sake of one node.
const DEPTH: u32 = 8;

/// What has been done, to be added to the counters.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    /// Links that have been let go, released together at the end: ops in a row share operands, and each
    /// release touches a count that the caller is just counting up.
    /// Few lie in here: a poll lets go of one or two, and would pay an allocation for them (9 % of an awaited op).
    pub freed: SmallVec<[NodeLink; 4]>,
    pub started: u64,
}

impl Tally {
    /// Lets go of what small steps have read.
    pub fn settle(&mut self) {
        free(self.freed.drain(..));
    }
}

/// What runs small steps: the device and where to compute.
pub(crate) struct Bench<'a> {
    pub port: &'static Port,
    pub host: &'a Host<'a>,
    /// Longest step that counts as small, in estimated nanoseconds.
    pub limit_ns: u32,
    /// The engine may have looked at a node while it was claimed here: ask it to look again.
    pub look_again: bool,
}

/// A node as its holder has it.
#[derive(Clone, Copy)]
pub(crate) enum Held<'a> {
    Handle(&'a NodeHandle),
    Link(&'a NodeLink),
}

impl<'a> Held<'a> {
    fn node(self) -> &'a Node {
        match self {
            Held::Handle(handle) => handle,
            Held::Link(link) => link,
        }
    }
    fn link(self) -> NodeLink {
        match self {
            Held::Handle(handle) => handle.link(),
            Held::Link(link) => link.clone(),
        }
    }
}

/// A claim, while its node is computed. Should the engine itself panic meanwhile, the node fails, and
/// nobody waits for ever.
struct Claimed<'a>(&'a Node, &'static Port);

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if self.0.completion.state().phase() == Phase::Writing {
            let error = self.0.fail(ErrorKind::Kernel, "the engine panicked while running it");
            self.1.finish(self.0, Err(error));
        }
    }
}

enum Not {
    /// Some operand is not there yet.
    Yet,
    /// An operand failed.
    Failed(Error),
}

impl Bench<'_> {
    /// Runs a node if it is small and can be run now; true where it is complete afterwards.
    pub fn run(&self, node: Held<'_>, tally: &mut Tally) -> bool {
        self.run_at(node, DEPTH, tally)
    }

    fn run_at(&self, held: Held<'_>, depth: u32, tally: &mut Tally) -> bool {
        let node = held.node();
        if node.cost_ns > self.limit_ns || matches!(node.op, Op::Source(_) | Op::Marker | Op::Given) {
            return node.completion.state().is_complete();
        }
        if !node.completion.claim(Phase::Writing, ENTERED) {
            return node.completion.state().is_complete();
        }
        let claimed = Claimed(node, self.port);
        let done = self.run_claimed(held, depth, tally);
        std::mem::forget(claimed);
        done
    }

    fn run_claimed(&self, held: Held<'_>, depth: u32, tally: &mut Tally) -> bool {
        let node = held.node();
        // SAFETY: the node is claimed by us.
        let inputs = unsafe { node.inputs() };
        let mut began = self.port.recordings.now();
        if run_tiny(node, inputs, self.host) {
            if self.port.recordings.is_on() {
                // SAFETY: the node is claimed by us.
                unsafe { self.port.recordings.small(std::iter::empty(), node, self.look_again, began) };
            }
            super::events::small(&self.port.name, node, 0, self.look_again);
            // SAFETY: as above.
            tally.freed.extend(unsafe { node.let_go() });
            self.port.publish_small(1, 0, !self.look_again, || node.completion.publish());
            tally.started += 1;
            return true;
        }
        let mut group: Group<&Node> = Group::new();
        let fill = matches!(node.op, Op::Fill(_));
        let result = if node.op.is_elementwise() && !fill {
            match self.gather(node, depth, &mut group, tally) {
                Ok(()) => {
                    began = self.port.recordings.now();
                    let last = (group.members.len() - 1) as u8;
                    let mut results = run_group(&group, &[last], None, |_| false, self.host);
                    results.pop().unwrap_or_else(|| unreachable!("one result was asked for"))
                }
                Err(Not::Failed(error)) => Err(error),
                Err(Not::Yet) => {
                    self.unclaim(held, &group);
                    return false;
                }
            }
        } else {
            // SAFETY: the node is claimed by us.
            let inputs = unsafe { node.inputs() };
            let ready = inputs.iter().all(|input| {
                input.completion.state().is_complete()
                    || depth > 0 && self.is_ours(input) && self.run_at(Held::Link(input), depth - 1, tally)
            });
            if !ready {
                self.unclaim(held, &group);
                return false;
            }
            began = self.port.recordings.now();
            run_node(node, inputs, |i| is_last_reader(&inputs[i]), self.host)
        };
        let freed = self.publish(node, &group, result, began, tally);
        // The group borrows the temporaries that are freed now.
        drop(group);
        tally.freed.extend(freed);
        true
    }

    fn is_ours(&self, node: &Node) -> bool {
        std::ptr::eq(node.home as *const _ as *const (), self.port as *const Port as *const ())
    }

    /// Adds a claimed elementwise node to the group, its temporaries before it.
    fn gather<'n>(
        &self,
        node: &'n Node,
        depth: u32,
        group: &mut Group<&'n Node>,
        tally: &mut Tally,
    ) -> Result<(), Not> {
        // SAFETY: the node is claimed by us.
        let inputs: &'n [NodeLink] = unsafe { node.inputs() };
        let mut operands: SmallVec<[&'n Node; 3]> = SmallVec::new();
        for input in inputs {
            let state = input.completion.state();
            let there = state.is_complete() || group.member(input).is_some();
            if !there {
                if depth == 0 || !self.is_ours(input) {
                    return Err(Not::Yet);
                }
                let absorbed = self.is_temporary(node, input, inputs)
                    && group.has_room()
                    && input.completion.claim(Phase::Writing, ENTERED);
                if absorbed {
                    if let Err(not) = self.gather(input, depth - 1, group, tally) {
                        if group.member(input).is_none() {
                            input.completion.unclaim();
                        }
                        return Err(not);
                    }
                } else if !self.run_at(Held::Link(input), depth - 1, tally) {
                    return Err(Not::Yet);
                }
            }
            if let Some(error) = input.error() {
                return Err(Not::Failed(error.clone()));
            }
            operands.push(input);
        }
        group.add(&node, &operands);
        Ok(())
    }

    /// True where only `node` can reach `input`, and it computes over the same shape.
    fn is_temporary(&self, node: &Node, input: &NodeLink, inputs: &[NodeLink]) -> bool {
        if !input.op.is_elementwise() || input.shape != node.shape || input.cost_ns > self.limit_ns {
            return false;
        }
        let counts = input.counts();
        let edges = inputs.iter().filter(|i| i.address() == input.address()).count() as u32;
        // A link of the queue cannot be told from another reader's: one that is queued runs by itself. A
        // detached one is the engine's to look after.
        counts.handles == 0 && counts.links <= edges && !input.completion.state().has(DETACHED)
    }

    /// Gives claims back: others may take the nodes up again.
    fn unclaim(&self, held: Held<'_>, group: &Group<&Node>) {
        let node = held.node();
        for (member, _) in &group.members {
            if !std::ptr::eq(*member, node) {
                // Only `node` can reach it, so nobody has looked for it.
                member.completion.unclaim();
            }
        }
        let before = node.completion.unclaim();
        if self.look_again && !before.has(QUEUED) {
            self.port.look(held.link());
        }
    }

    /// Writes the result, marks the temporaries, lets go of what they were made from.
    fn publish(
        &self,
        node: &Node,
        group: &Group<&Node>,
        result: Result<Value, Error>,
        began: Option<Instant>,
        tally: &mut Tally,
    ) -> Inputs {
        if self.port.recordings.is_on() {
            let temporaries = group.members.iter().map(|(m, _)| *m).filter(|m| !std::ptr::eq(*m, node));
            // SAFETY: all are claimed by us.
            unsafe { self.port.recordings.small(temporaries, node, self.look_again, began) };
        }
        super::events::small(&self.port.name, node, group.members.len().saturating_sub(1), self.look_again);
        let mut freed = Inputs::new();
        let mut ended = 1;
        let mut weight = weight(node);
        for (member, _) in &group.members {
            if !std::ptr::eq(*member, node) {
                // SAFETY: claimed by us in `gather`.
                freed.extend(unsafe { member.let_go() });
                member.completion.fuse();
                ended += 1;
                weight = weight.saturating_add(self::weight(member));
            }
        }
        // SAFETY: claimed by us.
        freed.extend(unsafe { node.let_go() });
        self.port.publish_small(ended, weight, !self.look_again, || self.port.finish(node, result));
        tally.started += 1;
        freed
    }
}

pub(crate) fn weight(node: &Node) -> usize {
    super::pressure::Pressure::weight(node.bytes())
}
