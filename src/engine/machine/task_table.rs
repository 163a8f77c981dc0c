//! The task table: how a node enters it, what waits for what, how it leaves, and the epochs that
//! end a `waitall`. Called by the machine's events; knows nothing of streams.

use super::{Entry, Epoch, Machine, Stage};
use crate::completion::{ENTERED, Phase, QUEUED, TRACED};
use crate::engine::port::Port;
use crate::graph::claim::refuse_traced;
use crate::graph::node::{NodeLink, free};
use crate::graph::value::Value;
use crate::sync::lock;
use smallvec::SmallVec;

impl Machine {
    /// Makes an entry of a pending node; `None` where somebody has claimed it already.
    pub(super) fn add(&mut self, node: NodeLink) -> Option<u32> {
        if !std::ptr::eq(node.home as *const _ as *const (), self.port as *const Port as *const ())
        {
            return None;
        }
        if node.completion.set(ENTERED).phase() != Phase::Pending {
            return None;
        }
        Some(self.insert(node, Stage::Waiting))
    }

    pub(super) fn insert(&mut self, node: NodeLink, stage: Stage) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        let e = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        node.set_entry(Some(e));
        let had_its_turn = self.turn == node.address() || !node.completion.state().has(QUEUED);
        self.entries[e as usize] = Some(Entry {
            node,
            stage,
            blocked: 0,
            since: self.now,
            chain: None,
            consumers: SmallVec::new(),
            edges: SmallVec::new(),
            wants: 0,
            root: false,
            epoch: None,
            generation: self.generation,
            deferred: false,
            registration: None,
            source: None,
        });
        if had_its_turn {
            self.count_in(e);
        }
        e
    }

    /// An entry belongs to the epoch in which its node is looked at for the first time.
    pub(super) fn count_in(&mut self, e: u32) {
        let now = self.epoch();
        if self.entry(e).epoch.is_none() {
            self.entry(e).epoch = Some(now);
            self.epochs[(now - self.first_epoch) as usize].open += 1;
        }
    }

    /// An entry for a node that somebody else computes now; `None` where it has just ended.
    pub(super) fn outside_entry(&mut self, node: NodeLink) -> Option<u32> {
        if node.completion.state().has(TRACED) {
            // A thread of a region's closure has asked for it: that closure may wait for the
            // thread.
            refuse_traced(&node);
        }
        let (waker, mut registration) = (self.waker(&node), None);
        if node.completion.register(&mut registration, &waker) {
            return None;
        }
        let e = self.insert(node, Stage::Outside);
        self.entry(e).registration = registration;
        Some(e)
    }

    /// The same for a node that somebody observes.
    pub(super) fn wait_outside(&mut self, node: NodeLink) {
        if let Some(e) = self.outside_entry(node) {
            self.entry(e).root = true;
        }
    }

    pub(super) fn end_outside(&mut self, e: u32, now: u64) {
        let consumers = std::mem::take(&mut self.entry(e).consumers);
        self.unblock(&consumers);
        self.remove(e);
        self.settle_unblocked(now, false);
    }

    /// Who reads from these entries and is none of them, an edge each.
    pub(super) fn consumers_outside(&self, entries: &[u32]) -> SmallVec<[u32; 4]> {
        let live = entries.iter().filter_map(|&e| self.entries[e as usize].as_ref());
        live.flat_map(|x| x.consumers.iter().copied()).filter(|c| !entries.contains(c)).collect()
    }

    pub(super) fn unblock(&mut self, consumers: &[u32]) {
        for &c in consumers {
            let x = self.entry(c);
            x.blocked -= 1;
            if x.blocked == 0 {
                self.unblocked.push(c);
            }
        }
    }

    /// Takes an entry out; its node is complete, cancelled, or somebody else's.
    pub(super) fn remove(&mut self, e: u32) {
        let Some(x) = self.entries[e as usize].take() else { return };
        self.vacant.push(e);
        if let Some(registration) = x.registration {
            x.node.completion.deregister(registration);
        }
        if let Some(waker) = x.source {
            let node = lock(&waker.0).take();
            free(node);
        }
        x.node.set_entry(None);
        if let Some(epoch) = x.epoch {
            self.epochs[(epoch - self.first_epoch) as usize].open -= 1;
        }
        self.close_epochs();
        free([x.node]);
    }

    /// Takes a node that nobody wants any more out of the task table, and its ancestors where only
    /// it wanted them.
    pub(super) fn cancel(&mut self, e: u32) {
        let mut stack = vec![e];
        while let Some(e) = stack.pop() {
            let x = self.entry(e);
            if matches!(x.stage, Stage::Submitted(_)) || x.root || x.wants > 0 {
                continue;
            }
            let node = x.node.clone();
            while let Some((i, place)) = self.entry(e).edges.pop() {
                if self.cut(e, i, place) {
                    stack.push(i);
                }
            }
            node.completion.clear(ENTERED);
            self.remove(e);
        }
    }

    /// Takes the edge at this place of an input's consumers away; true where nobody wants the input
    /// any more. Inputs that have ended are out of the task table, and their edges with them.
    fn cut(&mut self, e: u32, i: u32, place: u32) -> bool {
        let Some(y) = self.entries[i as usize].as_mut() else { return false };
        if y.consumers.get(place as usize) != Some(&e) {
            return false;
        }
        y.consumers.swap_remove(place as usize);
        y.wants -= 1;
        let unwanted = y.wants == 0 && !y.root;
        let last = y.consumers.len() as u32;
        if let Some(&moved) = y.consumers.get(place as usize)
            && let Some(x) = self.entries[moved as usize].as_mut()
            && let Some(edge) = x.edges.iter_mut().find(|edge| **edge == (i, last))
        {
            edge.1 = place;
        }
        unwanted
    }

    /// A `waitall` was asked for.
    pub(super) fn mark(&mut self, marker: NodeLink) {
        if let Some(epoch) = self.epochs.back_mut() {
            epoch.markers.push(marker);
        }
        self.epochs.push_back(Epoch::default());
        self.close_epochs();
    }

    /// Ends the `waitall`s before which nothing is open.
    fn close_epochs(&mut self) {
        while self.epochs.len() > 1 && self.epochs[0].open == 0 {
            let epoch = self.epochs.pop_front().unwrap_or_default();
            self.first_epoch += 1;
            for marker in epoch.markers {
                marker.completion.claim(Phase::Claimed, 0);
                // It is made from nothing.
                self.port.conclude(&marker, || Some(Ok(Value::nothing())), || ());
            }
        }
    }
}
