//! The scheduler: the state under a device's lock. It visits queued nodes, a bounded number at a
//! time.
//!
//! The thread that attends to a device's intake calls the scheduler, and has the machine's steps
//! run. Knows neither threads nor streams.

use super::intake::Batch;
use super::machine::{Machine, Visit};
use super::port::Port;
use crate::graph::node::{Node, NodeLink, Op};

/// Nodes looked at before the lock is offered to others.
pub(crate) const VISITS_AT_ONCE: usize = 64;
/// Nodes of a batch turned round before the lock is offered to others.
const TURNED_AT_ONCE: usize = 4096;

/// What a device does with a node on the spot, without an entry or a stream.
pub(crate) trait OnTheSpot {
    /// Completes a node if that is worth while and can be done now; true where it is complete then.
    fn run(&mut self, node: &NodeLink) -> bool;

    /// Lets go of what was read on the way.
    fn settle(&mut self) {}
}

pub(crate) struct Scheduler {
    pub machine: Machine,
    /// Taken from the intake and not looked at yet.
    batch: Batch<Node>,
}

impl Scheduler {
    pub fn new(port: &'static Port) -> Scheduler {
        Scheduler { machine: Machine::new(port, port.limits), batch: Batch::empty() }
    }

    /// Nothing is left of what was taken from the intake.
    pub fn is_clear(&self) -> bool {
        self.batch.is_empty()
    }

    /// Looks at what somebody awaits, and at up to `visits` nodes in their turn; false where there
    /// is nothing to look at.
    pub fn visit_queued(
        &mut self,
        port: &Port,
        visits: usize,
        now: impl FnOnce() -> u64,
        spot: &mut impl OnTheSpot,
    ) -> bool {
        if self.batch.is_empty() {
            self.batch = port.take_queued();
        }
        let awaited = port.take_awaited();
        if self.batch.is_empty() && awaited.is_empty() {
            return false;
        }
        let now = now();
        if port.is_ended() {
            self.end();
        }
        for node in awaited {
            let visit = self.machine.visit_early(node);
            self.follow(visit, now, spot);
        }
        // Of a long batch only a piece, so that what is awaited meanwhile is not late.
        let visits = if self.batch.turn(TURNED_AT_ONCE) { visits } else { 0 };
        for _ in 0..visits {
            let Some(node) = self.batch.next() else { break };
            if let Op::Marker = node.op {
                // Whoever has waited for all finds all of it in the counters.
                spot.settle();
            }
            let visit = self.machine.visit(node, now);
            self.follow(visit, now, spot);
        }
        spot.settle();
        true
    }

    fn follow(&mut self, visit: Visit, now: u64, spot: &mut impl OnTheSpot) {
        let Visit::New(node) = visit else { return };
        if self.machine.is_ended() {
            self.machine.refuse(node);
        } else if let Op::Source(_) = node.op {
            self.machine.enter_source(node);
        } else if !spot.run(&node) {
            self.machine.enter(node, now, &mut |n| spot.run(n));
        }
    }

    /// The device has ended, and everything in the task table with it.
    pub fn end(&mut self) {
        if !self.machine.is_ended() {
            self.machine.end();
        }
    }
}
