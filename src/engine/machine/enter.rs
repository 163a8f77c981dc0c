//! Entering and leaving the task table: a wanted node enters with the ancestors that it
//! needs, and an entry leaves when its node has ended or is unwanted.
//!
//! Called by the machine's events. Knows nothing of streams.

use super::task_table::{Entry, EntryId, Stage};
use super::wakers::{NodeWaker, SourceWaker};
use super::{Machine, is_wanted};
use crate::concurrent::completion::{AWAITED, ENTERED, Phase, QUEUED, TRACED};
use crate::engine::port::Port;
use crate::graph::claim::refuse_traced;
use crate::graph::node::{NodeLink, Op, free};
use crate::graph::value::Value;
use smallvec::SmallVec;
use std::sync::Arc;
use std::task::Waker;

/// The most nodes that enter before their turn under one lock. The rest of a longer chain waits for
/// its turn, which is sure to come; otherwise a whole long queue could enter under one lock.
const EARLY_AT_ONCE: usize = 256;

impl Machine {
    /// Enters a wanted node into the task table, with its ancestors. `small` runs a small node
    /// immediately if possible, and returns whether it did.
    pub fn enter(&mut self, node: NodeLink, now: u64, small: &mut dyn FnMut(&NodeLink) -> bool) {
        self.now = now;
        // The node was claimed briefly if `small` tried it. Dropping the last handle of a claimed
        // node does not schedule it, so the observers are counted again.
        if !is_wanted(&node) {
            return;
        }
        let is_awaited = node.completion.state().has(AWAITED);
        match self.add(node.clone()) {
            Some(id) => {
                self.table.entry_mut(id).is_observed = true;
                self.resolve(vec![id], small);
            }
            None => self.wait_outside(node),
        }
        if is_awaited {
            self.release_delayed();
        }
        self.settle_unblocked(now, is_awaited);
    }

    /// Enters a source's node into the task table. Its future is polled until a visit finds the
    /// value.
    pub fn enter_source(&mut self, node: NodeLink) {
        if let Some(id) = self.add(node) {
            let entry = self.table.entry_mut(id);
            entry.is_observed = true;
            entry.stage = Stage::Outside;
            self.ask_source(id);
        }
    }

    /// Has the future of an entered source polled.
    pub(super) fn ask_source(&mut self, id: EntryId) {
        let port = self.port;
        let entry = self.table.entry_mut(id);
        let node = entry.node.clone();
        let waker =
            entry.source.get_or_insert_with(|| Arc::new(SourceWaker::new(node.clone(), port)));
        port.ask_source(node, Waker::from(waker.clone()));
    }

    /// Adds an entry for a pending node; `None` if the node is already claimed.
    fn add(&mut self, node: NodeLink) -> Option<EntryId> {
        if !std::ptr::eq(node.home as *const _ as *const (), self.port as *const Port as *const ())
        {
            return None;
        }
        if node.completion.set(ENTERED).phase() != Phase::Pending {
            return None;
        }
        Some(self.insert(node, Stage::Waiting))
    }

    fn insert(&mut self, node: NodeLink, stage: Stage) -> EntryId {
        let had_its_turn = self.turn == node.address() || !node.completion.state().has(QUEUED);
        let id = self.table.insert(node, stage, self.now);
        if had_its_turn {
            self.count_in(id);
        }
        id
    }

    /// Counts an entry in the epoch in which its node is first visited.
    pub(super) fn count_in(&mut self, id: EntryId) {
        let entry = self.table.entry_mut(id);
        if entry.epoch.is_none() {
            entry.epoch = Some(self.epochs.join());
        }
    }

    /// An entry for a node that is computed elsewhere; `None` if the node has just ended.
    fn outside_entry(&mut self, node: NodeLink) -> Option<EntryId> {
        if node.completion.state().has(TRACED) {
            // A thread started by a region's closure has called an op on the node, and the closure
            // may wait for that thread.
            refuse_traced(&node);
        }
        let waker = Waker::from(Arc::new(NodeWaker(node.clone(), self.port)));
        let mut registration = None;
        if node.completion.register(&mut registration, &waker) {
            return None;
        }
        let id = self.insert(node, Stage::Outside);
        self.table.entry_mut(id).registration = registration;
        Some(id)
    }

    /// The same for an observed node.
    pub(super) fn wait_outside(&mut self, node: NodeLink) {
        if let Some(id) = self.outside_entry(node) {
            self.table.entry_mut(id).is_observed = true;
        }
    }

    /// Finds the inputs of new entries, and enters inputs that are not complete.
    pub(super) fn resolve(
        &mut self,
        mut stack: Vec<EntryId>,
        small: &mut dyn FnMut(&NodeLink) -> bool,
    ) {
        let mut early = EARLY_AT_ONCE;
        while let Some(id) = stack.pop() {
            let entry = self.table.entry_mut(id);
            if entry.epoch.is_none() {
                if early == 0 {
                    entry.is_deferred = true;
                    continue;
                }
                early -= 1;
            }
            let inputs: SmallVec<[NodeLink; 3]> = entry.inputs().iter().cloned().collect();
            for node in inputs {
                if self.is_there(&node) || node.entry().is_none() && small(&node) {
                    continue;
                }
                let Some(input) = self.entry_for_input(node, &mut stack) else { continue };
                let is_submitted = matches!(self.table.entry(input).stage, Stage::Submitted(_));
                self.table.connect(input, id);
                let is_blocked = !(is_submitted && self.limits.ahead);
                self.table.entry_mut(id).blocked += is_blocked as u32;
            }
            if self.table.entry(id).blocked == 0 {
                self.unblocked.push(id);
            }
        }
    }

    /// True if an input is complete. An input that is published by a step that has not finished
    /// counts as incomplete: the step's own links would prevent an overwrite of its buffer.
    fn is_there(&self, node: &NodeLink) -> bool {
        let is_closing = || {
            let submitted =
                |input: EntryId| matches!(self.table.entry(input).stage, Stage::Submitted(_));
            !self.limits.ahead && node.entry().is_some_and(submitted)
        };
        node.completion.state().is_complete() && !is_closing()
    }

    /// The entry of an input, created if there is none. A new entry whose own inputs have to be
    /// found goes onto the stack. `None` if the input has just completed.
    fn entry_for_input(&mut self, node: NodeLink, stack: &mut Vec<EntryId>) -> Option<EntryId> {
        if let Some(id) = node.entry() {
            return Some(id);
        }
        let Some(id) = self.add(node.clone()) else { return self.outside_entry(node) };
        if let Op::Source(_) = node.op {
            // The source had no observer when it was visited: it has to be polled now.
            self.table.entry_mut(id).stage = Stage::Outside;
            self.port.schedule(node);
        } else {
            stack.push(id);
        }
        Some(id)
    }

    /// One input of each of these entries has completed.
    pub(super) fn unblock(&mut self, consumers: &[EntryId]) {
        for &id in consumers {
            let entry = self.table.entry_mut(id);
            entry.blocked -= 1;
            if entry.blocked == 0 {
                self.unblocked.push(id);
            }
        }
    }

    /// A node that was computed elsewhere has ended.
    pub(super) fn end_outside(&mut self, id: EntryId, now: u64) {
        let consumers = std::mem::take(&mut self.table.entry_mut(id).consumers);
        self.unblock(&consumers);
        self.remove(id);
        self.settle_unblocked(now, false);
    }

    /// Removes an entry; its node is complete, cancelled, or computed elsewhere.
    pub(super) fn remove(&mut self, id: EntryId) {
        self.take_out(id);
        self.close_epochs();
    }

    /// [`remove`](Self::remove), with no look at the `waitall`s that may end then.
    pub(super) fn take_out(&mut self, id: EntryId) {
        let Some(Entry { node, registration, source, epoch, .. }) = self.table.remove(id) else {
            return;
        };
        if let Some(registration) = registration {
            node.completion.deregister(registration);
        }
        if let Some(waker) = source {
            free(waker.take());
        }
        if let Some(epoch) = epoch {
            self.epochs.leave(epoch);
        }
        free([node]);
    }

    /// Removes an unwanted entry, and the ancestors that only it needs.
    pub(super) fn cancel(&mut self, id: EntryId) {
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            let entry = self.table.entry(id);
            if matches!(entry.stage, Stage::Submitted(_)) || !entry.is_unwanted() {
                continue;
            }
            let node = entry.node.clone();
            while let Some(edge) = self.table.entry_mut(id).edges.pop() {
                if self.table.cut(id, edge) {
                    stack.push(edge.input);
                }
            }
            node.completion.clear(ENTERED);
            self.remove(id);
        }
    }

    /// A `waitall` was called.
    pub(super) fn mark(&mut self, marker: NodeLink) {
        self.epochs.mark(marker);
        self.close_epochs();
    }

    /// Ends the `waitall`s before which nothing is left.
    pub(super) fn close_epochs(&mut self) {
        while let Some(markers) = self.epochs.close() {
            for marker in markers {
                marker.completion.claim(Phase::Claimed, 0);
                // A marker has no inputs.
                self.port.conclude(&marker, || Some(Ok(Value::nothing())), || ());
            }
        }
    }
}
