//! Scheduling a node: the engine is asked to visit it, and a poll takes a node back after running
//! it.
//!
//! Called by threads that make, drop or await a value, and by the worker that attends to the
//! intake. Knows nothing of the outcome of a visit.

#![allow(unsafe_code)]

use super::{BACKLOG, Port, Queued};
use crate::completion::{Phase, QUEUED};
use crate::counted::{Counts, Lent};
use crate::engine::intake::Batch;
use crate::engine::limits::INLINE_NS;
use crate::engine::pressure::Turn;
use crate::graph::node::{Node, NodeLink, Op};
use crate::sync::{
    Ordering::{Relaxed, SeqCst},
    lock,
};
use std::task::Waker;

/// Most nodes that a poll takes back beside its own: each is sought among all that it has run.
const TAKEN_BACK_MAX: usize = 16;

impl Port {
    /// Asks the engine to look at a node (again). Nothing where it is asked already.
    pub fn schedule(&'static self, node: NodeLink) {
        let before = node.completion.set(QUEUED);
        if !before.has(QUEUED) {
            self.push(Queued(node));
        }
        // What is in the task table may wait for its end.
        if before.is_complete() {
            self.hurry(true);
        }
    }

    /// True where the queue is below its limits; else the waker is put on the list under `id`.
    pub fn is_ready(&self, id: &mut Option<u64>, waker: &Waker) -> bool {
        self.is_forked() || self.pressure.ready(id, waker) || {
            self.intake.meet();
            self.pressure.ready(id, waker)
        }
    }

    /// How a queued request for a permit stands; a granted one leaves the line.
    pub fn turn(&self, key: u64, waker: &Waker) -> Turn {
        match self.pressure.turn(key, waker) {
            Turn::Granted => Turn::Granted,
            Turn::Waiting if self.is_forked() => Turn::Granted,
            Turn::Waiting => {
                self.intake.meet();
                self.pressure.turn(key, waker)
            }
        }
    }

    /// Asks for a look at a node that somebody awaits. In a long queue its turn may be far off:
    /// then it is named beside the queue.
    pub fn schedule_awaited(&'static self, node: NodeLink) {
        if !node.completion.set(QUEUED).has(QUEUED) {
            self.push(Queued(node));
        } else if self.pressure.queued().0 > BACKLOG {
            lock(&self.awaited).push(node);
            // SeqCst: as a push, see `Intake::push`.
            self.has_awaited.store(true, SeqCst);
            self.attend();
        }
        self.hurry(true);
    }

    /// What is to be looked at before its turn.
    #[inline]
    pub fn take_awaited(&self) -> Vec<NodeLink> {
        if !self.has_awaited.load(Relaxed) {
            return Vec::new();
        }
        let mut awaited = lock(&self.awaited);
        self.has_awaited.store(false, SeqCst);
        std::mem::take(&mut *awaited)
    }

    /// Something is in the intake that no poll will run, be it most of the time: whoever attends is
    /// to look at once. (Beside a push a take may miss it; then the look is as late as at what
    /// polls run.)
    #[inline]
    pub fn is_in_hurry(&self) -> bool {
        self.hurry.load(Relaxed)
    }

    fn hurry(&self, whether: bool) {
        // Read before it is written: what is there in many copies stays so.
        if self.is_in_hurry() != whether {
            self.hurry.store(whether, Relaxed);
        }
    }

    /// Takes what is in the intake.
    pub fn take_queued(&self) -> Batch<Node> {
        if !self.intake.is_empty() {
            self.hurry(false);
        }
        self.intake.take()
    }

    /// Something is to be looked at.
    #[inline]
    pub fn has_queued(&self) -> bool {
        !self.intake.is_empty() || self.has_awaited.load(SeqCst)
    }

    /// True where nobody else can reach a node that a poll has run, but by the intake, and nobody
    /// has waited for it.
    #[inline]
    pub fn is_alone(&self, node: Lent<'_, Node>) -> bool {
        let node = node.handle();
        // First the counts: whoever has let an owner go has set its flags before.
        let counts = node.counts();
        let state = node.completion.state();
        state.has(QUEUED) && state.ends_unseen() && counts == Counts { handles: 1, links: 1 }
    }

    /// Takes such a node back; false where it does not lie on top of the intake.
    ///
    /// An awaited loop then never leaves its core: without this the engine fetches every node from
    /// it, only to find it done, and the caller fetches the memory back.
    ///
    /// # Safety
    /// The node [is alone](Self::is_alone).
    #[inline]
    pub unsafe fn take_back(&'static self, node: Lent<'_, Node>) -> bool {
        let node = node.handle();
        // SAFETY: nobody else has an owner of the node but the intake, or who has just taken it
        // from there; and nobody but an owner pushes. (A waker that asks for a look holds a
        // link.)
        let Some(link) = (unsafe { self.intake.take_back(node.address()) }) else { return false };
        // SAFETY: so now both of its owners are here.
        unsafe {
            node.completion.unmark(QUEUED);
            link.drop_alone(Counts { handles: 1, links: 0 });
        }
        true
    }

    /// Takes back what has ended, lies on top of the intake, and can be reached by these links
    /// alone: a poll has run it for another node's sake. (A chain of eight took 2.0 us instead of
    /// 1.3 where that was left to the engine, and a line takes 0.36 us to another core and back.)
    #[inline]
    pub fn take_back_all(&'static self, freed: &[NodeLink]) {
        for _ in 0..TAKEN_BACK_MAX {
            // What came last lies on top, and was let go last.
            let Some(link) = freed.iter().rev().find(|link| self.intake.is_on_top(link.address()))
            else {
                break;
            };
            let links =
                freed.iter().filter(|other| other.address() == link.address()).count() as u32;
            let mine = Counts { handles: 0, links };
            let state = link.completion.state();
            // Beside an operand that failed another may be pending still: that is the engine's.
            let ended = state.is_complete() || state.phase() == Phase::Fused;
            if !ended
                || !state.has(QUEUED)
                || link.counts() != (Counts { links: links + 1, ..mine })
            {
                break;
            }
            // SAFETY: as above; `link` keeps it alive.
            let Some(taken) = (unsafe { self.intake.take_back(link.address()) }) else { break };
            // SAFETY: so now all of its owners are here, and are this thread's alone.
            unsafe {
                taken.completion.unmark(QUEUED);
                taken.drop_alone(mine);
            }
        }
    }

    /// Has the engine look at a node.
    #[inline]
    pub fn push(&'static self, queued: Queued) {
        let node: &Node = &queued.0;
        let in_hurry = node.cost_ns > INLINE_NS || matches!(node.op, Op::Marker | Op::Source(_));
        // SAFETY: there is one `Queued` for each time that the flag is set, and until it is
        // cleared, by who takes the node out again, nobody sets it.
        unsafe { self.intake.push(queued.0) };
        if in_hurry {
            self.hurry(true);
        }
        self.attend();
    }

    /// Makes sure that somebody looks at the intake.
    #[inline]
    pub fn attend(&'static self) {
        if !self.attendance.is_attended() {
            self.call();
        }
    }

    #[cold]
    fn call(&'static self) {
        match self.attendance.appoint() {
            Some(worker) => self.runner.wake(worker),
            None => self.runner.start(self),
        }
    }
}
