//! Scheduling a node: the engine is asked to visit it, and a poll takes a node back after running
//! it.
//!
//! Called by threads that make, drop or await a value, and by the worker that attends to the
//! intake. Knows nothing of the outcome of a visit.

#![allow(unsafe_code)]

use super::{BACKLOG, Port, Queued};
use crate::concurrent::completion::{Phase, QUEUED};
use crate::concurrent::counted::{Counts, Lent};
use crate::engine::pressure::Turn;
use crate::graph::node::{Node, NodeLink};
use std::task::Waker;

/// Most nodes that a poll takes back beside its own. Each is sought among all that the poll has
/// run.
const TAKEN_BACK_MAX: usize = 16;

impl Port {
    /// Asks the engine to visit a node (again). Does nothing if the node is in the intake already.
    pub fn schedule(&'static self, node: NodeLink) {
        let before = node.completion.set(QUEUED);
        if !before.has(QUEUED) {
            self.push(Queued(node));
        }
        // An entry in the task table may wait for this end.
        if before.is_complete() {
            self.mailbox.hurry(true);
        }
    }

    /// True where the queue is below its limits; else the waker goes onto the list under `id`.
    pub fn is_ready(&self, id: &mut Option<u64>, waker: &Waker) -> bool {
        self.life.is_forked() || self.pressure.ready(id, waker) || {
            self.mailbox.intake.meet();
            self.pressure.ready(id, waker)
        }
    }

    /// The state of a queued request for a permit; a granted one leaves the line.
    pub fn turn(&self, key: u64, waker: &Waker) -> Turn {
        match self.pressure.turn(key, waker) {
            Turn::Granted => Turn::Granted,
            Turn::Waiting if self.life.is_forked() => Turn::Granted,
            Turn::Waiting => {
                self.mailbox.intake.meet();
                self.pressure.turn(key, waker)
            }
        }
    }

    /// Asks for a visit of an awaited node. In a long queue the node's turn may be far off: then
    /// the node is named beside the queue.
    pub fn schedule_awaited(&'static self, node: NodeLink) {
        if !node.completion.set(QUEUED).has(QUEUED) {
            self.push(Queued(node));
        } else if self.pressure.queued().0 > BACKLOG {
            self.mailbox.put_awaited(node);
            self.attend();
        }
        self.mailbox.hurry(true);
    }

    /// True of a node that a poll has run, if nobody else can reach it, except through the intake,
    /// and nobody has waited for it.
    #[inline]
    pub fn is_alone(&self, node: Lent<'_, Node>) -> bool {
        let node = node.handle();
        // First the counts: an owner sets flags before it lets go.
        let counts = node.counts();
        let state = node.completion.state();
        state.has(QUEUED) && state.ends_unseen() && counts == Counts { handles: 1, links: 1 }
    }

    /// Takes such a node back; false where the node does not lie on top of the intake.
    ///
    /// So an awaited loop never leaves its core. Else the engine would fetch every node from that
    /// core, only to find the node done, and the caller would fetch the memory back.
    ///
    /// # Safety
    /// The node [is alone](Self::is_alone).
    #[inline]
    pub unsafe fn take_back(&'static self, node: Lent<'_, Node>) -> bool {
        let node = node.handle();
        // SAFETY: nobody else has an owner of the node but the intake, or the worker that has just
        // taken it from there; and only an owner pushes. (A waker that schedules a node holds a
        // link.)
        let Some(link) = (unsafe { self.mailbox.intake.take_back(node.address()) }) else {
            return false;
        };
        // SAFETY: so both of the node's owners are here.
        unsafe {
            node.completion.unmark(QUEUED);
            link.drop_alone(Counts { handles: 1, links: 0 });
        }
        true
    }

    /// Takes back ended nodes that lie on top of the intake and that only these links can reach: a
    /// poll has run them for another node's sake. (A chain of eight took 2.0 us instead of 1.3 when
    /// that was left to the engine, and a line takes 0.36 us to another core and back.)
    #[inline]
    pub fn take_back_all(&'static self, freed: &[NodeLink]) {
        for _ in 0..TAKEN_BACK_MAX {
            // The youngest node lies on top, and was let go last.
            let Some(link) =
                freed.iter().rev().find(|link| self.mailbox.intake.is_on_top(link.address()))
            else {
                break;
            };
            let links =
                freed.iter().filter(|other| other.address() == link.address()).count() as u32;
            let mine = Counts { handles: 0, links };
            let state = link.completion.state();
            // Beside a failed operand another may be pending still: the engine sees to that one.
            let ended = state.is_complete() || state.phase() == Phase::Fused;
            if !ended
                || !state.has(QUEUED)
                || link.counts() != (Counts { links: links + 1, ..mine })
            {
                break;
            }
            // SAFETY: as above; `link` keeps the node alive.
            let Some(taken) = (unsafe { self.mailbox.intake.take_back(link.address()) }) else {
                break;
            };
            // SAFETY: so all of the node's owners are here, and are this thread's alone.
            unsafe {
                taken.completion.unmark(QUEUED);
                taken.drop_alone(mine);
            }
        }
    }

    /// Has the engine visit a node.
    #[inline]
    pub fn push(&'static self, queued: Queued) {
        let node: &Node = &queued.0;
        let in_hurry = node.is_long();
        // SAFETY: there is one `Queued` for each time that the flag is set. The worker that takes
        // the node out clears the flag, and until then nobody sets it.
        unsafe { self.mailbox.intake.push(queued.0) };
        if in_hurry {
            self.mailbox.hurry(true);
        }
        self.attend();
    }

    /// Makes sure that a worker attends to the intake.
    #[inline]
    pub fn attend(&'static self) {
        if !self.mailbox.attendance.is_attended() {
            self.call();
        }
    }

    #[cold]
    fn call(&'static self) {
        match self.mailbox.attendance.appoint() {
            Some(worker) => self.runner.wake(worker),
            None => self.runner.start(self),
        }
    }
}
