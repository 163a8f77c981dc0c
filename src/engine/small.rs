//! Small ops: the engine runs one as it visits it, or the poll that awaits it does.
//!
//! A small node whose operands are there, or are small themselves, is claimed, computed and
//! completed in one go, together with the temporaries that only it can reach. It has no entry, no
//! stream and no hand-over to another thread. Depth, number of nodes and each node's estimated time
//! are bounded.

#![allow(unsafe_code)]

use super::port::Port;
use super::port::publish::By;
use super::pressure::Pressure;
use super::run::{run_group, run_node};
use super::scheduler::RunSmall;
use crate::backend::Immediate;
use crate::concurrent::completion::{AWAITED, DETACHED, ENTERED, Phase, QUEUED};
use crate::concurrent::counted::Lent;
use crate::error::{Error, ErrorKind};
use crate::graph::claim::Claim;
use crate::graph::fuse::Group;
use crate::graph::node::{Inputs, Node, NodeHandle, NodeLink, Op, free, pops};
use crate::graph::program::Reg;
use crate::graph::value::Value;
use crate::sync::clock::Instant;
use crate::sync::{Ordering::SeqCst, fence};
use smallvec::SmallVec;

/// The most ancestors in a row that are run for the sake of one node: tiny ones, of a few elements.
const DEPTH: u32 = 64;
/// An ancestor that is not tiny counts as so many.
const DEPTH_OF_A_GROUP: u32 = 8;
/// The most ancestors in all.
const ANCESTORS: u32 = 256;

/// The running of small ops on a device, and the account of it.
pub(crate) struct SmallOps<B> {
    port: &'static Port,
    backend: B,
    /// The longest op that counts as small, in estimated nanoseconds.
    limit_ns: u32,
    /// A poll runs the ops. The engine may have visited a node while it was claimed here, so a node
    /// that is given back is scheduled again.
    by_poll: bool,
    /// Links that have been let go, released together at the end: ops in a row share operands, and
    /// each release touches a count that the caller is just counting up. Few lie in here: a poll
    /// lets go of one or two, and would pay an allocation for them (9 % of an awaited op).
    freed: SmallVec<[NodeLink; 4]>,
    /// How many more ops may be run for the sake of the first one.
    left: u32,
    /// A task that begins to wait for room now sees the ops that were counted off.
    in_order: bool,
}

/// A node, by the kind of hold on it.
#[derive(Clone, Copy)]
enum Held<'a> {
    /// The node that a poll awaits.
    Lent(Lent<'a, Node>),
    Link(&'a NodeLink),
}

impl<'a> Held<'a> {
    fn node(self) -> &'a Node {
        match self {
            Held::Lent(lent) => lent.handle(),
            Held::Link(link) => link,
        }
    }
    fn link(self) -> NodeLink {
        match self {
            Held::Lent(lent) => lent.handle().link(),
            Held::Link(link) => link.clone(),
        }
    }
}

/// A claim, while its node is computed. If the engine itself panics meanwhile, the node fails, and
/// nobody waits for ever.
struct Claimed<'a>(&'a Node, &'static Port);

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if self.0.completion.state().phase() == Phase::Writing {
            let error = self.0.fail(ErrorKind::Kernel, "the engine panicked while running it");
            // SAFETY: the claimer did not come to write the node.
            unsafe { self.1.finish(self.0, Err(error)) };
        }
    }
}

enum Not {
    /// Some operand is not there yet.
    Yet,
    /// An operand failed.
    Failed(Error),
}

impl<B: Immediate> RunSmall for SmallOps<B> {
    fn run(&mut self, node: &NodeLink) -> bool {
        self.run_held(Held::Link(node))
    }
    fn settle(&mut self) {
        free(pops(&mut self.freed));
    }
}

impl<B: Immediate> SmallOps<B> {
    /// For the engine.
    pub fn new(port: &'static Port, backend: B, limit_ns: u32) -> SmallOps<B> {
        let freed = SmallVec::new();
        SmallOps { port, backend, limit_ns, by_poll: false, freed, left: 0, in_order: true }
    }

    /// For a poll.
    pub fn of_poll(port: &'static Port, backend: B, limit_ns: u32) -> SmallOps<B> {
        SmallOps { by_poll: true, ..SmallOps::new(port, backend, limit_ns) }
    }

    /// Runs the node that a poll awaits, if it is small and can be run now; true where it is
    /// complete afterwards.
    #[inline]
    pub fn run_awaited(&mut self, node: &mut NodeHandle) -> bool {
        let done = self.run_held(Held::Lent(node.into()));
        if done {
            self.port.take_back_all(&self.freed);
        }
        if !self.in_order {
            fence(SeqCst);
        }
        self.port.pressure.wake_if_below();
        self.settle();
        done
    }

    fn run_held(&mut self, node: Held<'_>) -> bool {
        self.left = ANCESTORS;
        self.run_at(node, DEPTH)
    }

    fn by<'a>(&self, held: Held<'a>) -> By<'a> {
        match held {
            Held::Lent(lent) => By::Poll(Some(lent)),
            Held::Link(_) if self.by_poll => By::Poll(None),
            Held::Link(_) => By::Engine,
        }
    }

    fn run_at(&mut self, held: Held<'_>, depth: u32) -> bool {
        let node = held.node();
        if node.cost_ns() > self.limit_ns
            || matches!(node.op, Op::Source(_) | Op::Marker | Op::Given)
        {
            return node.completion.state().is_complete();
        }
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        let Some(claim) = node.claim() else { return node.completion.state().is_complete() };
        let claimed = Claimed(node, self.port);
        let done = self.run_claimed(held, claim, depth);
        std::mem::forget(claimed);
        done
    }

    fn run_claimed(&mut self, held: Held<'_>, mut claim: Claim<'_>, depth: u32) -> bool {
        let node = held.node();
        // A few elements are computed op by op: to see that two ops are one group, and to make a
        // program of them, takes longer than both.
        if self.backend.is_tiny(node) {
            if !self.are_there(claim.inputs(), depth.saturating_sub(1)) {
                self.unclaim(held, claim, &[]);
                return false;
            }
            let began = self.port.recordings.now();
            if self.backend.run_tiny(&mut claim) {
                if self.port.recordings.is_on() {
                    self.port.recordings.lone(&claim, self.by_poll, began);
                }
                super::events::small(&self.port.profile.name, &claim, 0, self.by_poll);
                claim.let_go_each(|link| self.freed.push(link));
                self.in_order = self.port.publish_small(1, 0, self.by(held), |alone| match alone {
                    // SAFETY: nobody has waited, since nobody else can reach it.
                    true => unsafe { claim.publish_alone() },
                    false => claim.publish(),
                });
                return true;
            }
        }
        self.run_group(held, claim, depth.saturating_sub(DEPTH_OF_A_GROUP))
    }

    /// Runs a claimed node that is more than a few elements. A function of its own, for the sake of
    /// the stack: tiny ones call each other.
    #[inline(never)]
    fn run_group(&mut self, held: Held<'_>, claim: Claim<'_>, depth: u32) -> bool {
        let node = held.node();
        let mut began = self.port.recordings.now();
        let mut group: Group<&Node> = Group::new();
        let fill = matches!(node.op, Op::Fill(_));
        let result = if node.op.is_elementwise() && !fill {
            match self.gather(node, depth, &mut group) {
                Ok(()) => {
                    began = self.port.recordings.now();
                    let last = (group.members.len() - 1) as u8;
                    let mut results = run_group(&group, &[last], self.backend);
                    results.pop().unwrap_or_else(|| unreachable!("one result was asked for"))
                }
                Err(Not::Failed(error)) => Err(error),
                Err(Not::Yet) => {
                    self.unclaim(held, claim, &group.members);
                    return false;
                }
            }
        } else {
            if !self.are_there(claim.inputs(), depth) {
                self.unclaim(held, claim, &[]);
                return false;
            }
            began = self.port.recordings.now();
            run_node(node, claim.inputs(), self.backend)
        };
        let freed = self.publish(held, claim, &group, result, began);
        // The group borrows the temporaries that are freed now.
        drop(group);
        self.freed.extend(freed);
        true
    }

    /// True where all of these are there. Small ones may be run just now for that.
    fn are_there(&mut self, inputs: &[NodeLink], depth: u32) -> bool {
        inputs.iter().all(|input| {
            input.completion.state().is_complete()
                || depth > 0 && self.is_ours(input) && self.run_at(Held::Link(input), depth)
        })
    }

    fn is_ours(&self, node: &Node) -> bool {
        std::ptr::eq(node.home as *const _ as *const (), self.port as *const Port as *const ())
    }

    /// Adds a claimed elementwise node to the group, its temporaries before it.
    fn gather<'n>(
        &mut self,
        node: &'n Node,
        depth: u32,
        group: &mut Group<&'n Node>,
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
                    if let Err(not) =
                        self.gather(input, depth.saturating_sub(DEPTH_OF_A_GROUP), group)
                    {
                        if group.member(input).is_none() {
                            // SAFETY: claimed by us, a moment ago.
                            unsafe { input.completion.unclaim() };
                        }
                        return Err(not);
                    }
                } else if !self.run_at(Held::Link(input), depth) {
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
        if !input.op.is_elementwise()
            || input.shape != node.shape
            || input.cost_ns() > self.limit_ns
        {
            return false;
        }
        let counts = input.counts();
        let edges = inputs.iter().filter(|i| i.address() == input.address()).count() as u32;
        // A link of the intake cannot be told from another reader's: a queued node runs by itself.
        // The engine sees to a detached one.
        counts.handles == 0 && counts.links <= edges && !input.completion.state().has(DETACHED)
    }

    /// Gives claims back: others may take the nodes up again.
    fn unclaim(&self, held: Held<'_>, claim: Claim<'_>, members: &[(&Node, Reg)]) {
        let node = held.node();
        for (member, _) in members {
            if !std::ptr::eq(*member, node) {
                // Only `node` can reach it, so nobody has looked for it.
                // SAFETY: claimed by us in `gather`.
                unsafe { member.completion.unclaim() };
            }
        }
        // Before others can have the node: a link that is made later could be told from a reader's
        // no more.
        let link = self.by_poll.then(|| held.link());
        let before = claim.unclaim();
        match link {
            // A task that began to await the node meanwhile found it claimed, and did not schedule
            // it.
            Some(link) if before.has(AWAITED) => self.port.schedule_awaited(link),
            Some(link) if !before.has(QUEUED) => self.port.schedule(link),
            _ => {}
        }
    }

    /// Writes the result, marks the temporaries, lets go of the inputs.
    fn publish(
        &mut self,
        held: Held<'_>,
        mut claim: Claim<'_>,
        group: &Group<&Node>,
        result: Result<Value, Error>,
        began: Option<Instant>,
    ) -> Inputs {
        let node = claim.node();
        if self.port.recordings.is_on() {
            let temporaries =
                group.members.iter().map(|(m, _)| *m).filter(|m| !std::ptr::eq(*m, node));
            // SAFETY: all are claimed by us.
            unsafe { self.port.recordings.small(temporaries, node, self.by_poll, began) };
        }
        super::events::small(
            &self.port.profile.name,
            &claim,
            group.members.len().saturating_sub(1),
            self.by_poll,
        );
        let mut freed = Inputs::new();
        let mut ended = 1;
        let mut weight = Pressure::weight(node.bytes());
        for (member, _) in &group.members {
            if !std::ptr::eq(*member, node) {
                // SAFETY: claimed by us in `gather`.
                unsafe {
                    freed.extend(member.let_go());
                    member.completion.fuse();
                }
                ended += 1;
                weight = weight.saturating_add(Pressure::weight(member.bytes()));
            }
        }
        freed.extend(claim.let_go());
        self.port.count_failure(&result);
        let end = |_| self.port.end_claimed(claim, result);
        self.in_order = self.port.publish_small(ended, weight, self.by(held), end);
        freed
    }
}
