//! The scheduler: the state under a device's lock. It visits queued nodes, a bounded number at a
//! time.
//!
//! The thread that attends to a device's intake calls the scheduler, and has the machine's steps
//! run. Knows neither threads nor streams.

use super::intake::Batch;
use super::machine::{Machine, Visit};
use super::port::Port;
use crate::graph::node::{Node, NodeLink, Op};

/// Nodes visited before the lock is offered to others.
pub(crate) const VISITS_AT_ONCE: usize = 64;
/// Nodes of a batch that are reversed before the lock is offered to others.
const TURNED_AT_ONCE: usize = 4096;

/// A device's way to complete a node at once, without an entry or a stream.
pub(crate) trait RunSmall {
    /// Completes a node if that is worthwhile and possible now; true where the node is complete
    /// then.
    fn run(&mut self, node: &NodeLink) -> bool;

    /// Lets go of the operands that were read on the way.
    fn settle(&mut self) {}
}

pub(crate) struct Scheduler {
    pub machine: Machine,
    /// Nodes taken from the intake and not visited yet.
    batch: Batch<Node>,
}

impl Scheduler {
    pub fn new(port: &'static Port) -> Scheduler {
        Scheduler { machine: Machine::new(port, port.profile.limits), batch: Batch::empty() }
    }

    /// True where no node is left of those taken from the intake.
    pub fn is_clear(&self) -> bool {
        self.batch.is_empty()
    }

    /// Visits awaited nodes, and up to `visits` nodes in their turn; false where there is no node
    /// to visit.
    pub fn visit_queued(
        &mut self,
        port: &Port,
        visits: usize,
        now: impl FnOnce() -> u64,
        small: &mut impl RunSmall,
    ) -> bool {
        if self.batch.is_empty() {
            self.batch = port.mailbox.take_queued();
        }
        let awaited = port.mailbox.take_awaited();
        if self.batch.is_empty() && awaited.is_empty() {
            return false;
        }
        let now = now();
        if port.life.is_ended() {
            self.end();
        }
        for node in awaited {
            let visit = self.machine.visit_early(node);
            self.follow(visit, now, small);
        }
        // Of a long batch only a piece, so that a node that is awaited meanwhile is not late.
        let visits = if self.batch.turn(TURNED_AT_ONCE) { visits } else { 0 };
        for _ in 0..visits {
            let Some(node) = self.batch.next() else { break };
            if let Op::Marker = node.op {
                // The awaiter of a `waitall` finds everything in the counters.
                small.settle();
            }
            let visit = self.machine.visit(node, now);
            self.follow(visit, now, small);
        }
        small.settle();
        true
    }

    fn follow(&mut self, visit: Visit, now: u64, small: &mut impl RunSmall) {
        let Visit::New(node) = visit else { return };
        if self.machine.is_ended() {
            self.machine.refuse(node);
        } else if let Op::Source(_) = node.op {
            self.machine.enter_source(node);
        } else if !small.run(&node) {
            self.machine.enter(node, now, &mut |n| small.run(n));
        }
    }

    /// The device has ended, and every entry in the task table with it.
    pub fn end(&mut self) {
        if !self.machine.is_ended() {
            self.machine.end();
        }
    }
}
