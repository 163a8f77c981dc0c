//! The task table: the entries, and the edges between them.
//!
//! An edge leads from an input to a consumer and lies in both entries, so that either end removes
//! the edge at once. An entry's number is given up with the entry and given out again, so a queue
//! keeps an entry's generation beside its number ([`EntryRef`]). Knows nothing of streams, epochs
//! or time.

#![allow(unsafe_code)]

use super::wakers::SourceWaker;
use crate::engine::step::At;
use crate::graph::node::NodeLink;
use smallvec::SmallVec;
use std::sync::Arc;

/// The number of an entry.
pub(super) type EntryId = u32;

/// An entry in a queue; the entry may be gone by the time that the queue comes to it.
#[derive(Clone, Copy)]
pub(super) struct EntryRef {
    pub id: EntryId,
    generation: u32,
}

/// Where an entry stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Some input is neither complete nor submitted.
    Waiting,
    /// Could be submitted, and is delayed until the deadline.
    Delayed,
    /// In a queue, to be submitted when the limits allow it.
    Ready,
    Submitted(At),
    /// Computed elsewhere: a poll runs it, or its source brings it.
    Outside,
}

/// One end of an edge, in the consumer's entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Edge {
    pub input: EntryId,
    /// The edge's place among the input's consumers.
    place: u32,
}

pub(super) struct Entry {
    pub node: NodeLink,
    pub stage: Stage,
    /// Inputs (edges) that are neither complete nor, where steps are submitted ahead, submitted.
    pub blocked: u32,
    /// The time at which the entry came into the table, in nanoseconds.
    pub since: u64,
    /// The stream that the last input was computed on.
    pub chain: Option<u16>,
    /// Entries that have this one as an input, one for each edge.
    pub consumers: SmallVec<[EntryId; 2]>,
    /// This entry's own edges, to its inputs.
    pub edges: SmallVec<[Edge; 2]>,
    /// The number of consumers in the table. They want this entry.
    pub wants: u32,
    /// The node has an observer.
    pub is_observed: bool,
    /// The epoch in which the node was visited. A node that is brought in before its turn has none
    /// until the turn comes: an earlier `waitall` is not to wait for it.
    pub epoch: Option<u64>,
    generation: u32,
    /// The inputs are sought when the node's turn comes: see `EARLY_AT_ONCE`.
    pub is_deferred: bool,
    /// The registration of the table's waker on the node's own list, while the node is computed
    /// elsewhere. The waker holds a link to the node, so the registration ends with the entry, or
    /// the node would keep itself.
    pub registration: Option<u32>,
    /// The one waker that a source is polled with.
    pub source: Option<Arc<SourceWaker>>,
}

impl Entry {
    /// The node's inputs.
    #[inline]
    pub fn inputs(&self) -> &[NodeLink] {
        debug_assert!(!matches!(self.stage, Stage::Outside | Stage::Submitted(_)));
        // SAFETY: the node is pending in the task table, and `ENTERED` keeps polls from claiming
        // it.
        unsafe { self.node.inputs() }
    }

    /// True where neither an observer nor a consumer wants the node.
    #[inline]
    pub fn is_unwanted(&self) -> bool {
        self.wants == 0 && !self.is_observed
    }
}

#[derive(Default)]
pub(super) struct TaskTable {
    slots: Vec<Option<Entry>>,
    /// The numbers of the empty slots.
    vacant: Vec<EntryId>,
    /// The generation of the youngest entry.
    generation: u32,
}

impl TaskTable {
    /// The number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slots.len() == self.vacant.len()
    }

    /// The numbers of all entries.
    pub fn ids(&self) -> Vec<EntryId> {
        (0..self.slots.len() as EntryId).filter(|&id| self.slots[id as usize].is_some()).collect()
    }

    /// An entry for a node that has none.
    pub fn insert(&mut self, node: NodeLink, stage: Stage, since: u64) -> EntryId {
        self.generation = self.generation.wrapping_add(1);
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as EntryId - 1
        });
        node.set_entry(Some(id));
        self.slots[id as usize] = Some(Entry {
            node,
            stage,
            blocked: 0,
            since,
            chain: None,
            consumers: SmallVec::new(),
            edges: SmallVec::new(),
            wants: 0,
            is_observed: false,
            epoch: None,
            generation: self.generation,
            is_deferred: false,
            registration: None,
            source: None,
        });
        id
    }

    /// Takes an entry out; its number is given up.
    pub fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let entry = self.slots[id as usize].take()?;
        self.vacant.push(id);
        entry.node.set_entry(None);
        Some(entry)
    }

    #[inline]
    pub fn get(&self, id: EntryId) -> Option<&Entry> {
        self.slots[id as usize].as_ref()
    }

    #[inline]
    pub fn entry(&self, id: EntryId) -> &Entry {
        self.get(id).expect("a number is given up with its entry")
    }

    #[inline]
    pub fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        self.slots[id as usize].as_mut().expect("a number is given up with its entry")
    }

    #[inline]
    pub fn entry_ref(&self, id: EntryId) -> EntryRef {
        EntryRef { id, generation: self.entry(id).generation }
    }

    /// True where the entry is there and stands at this stage.
    #[inline]
    pub fn is_at(&self, queued: EntryRef, stage: Stage) -> bool {
        self.get(queued.id)
            .is_some_and(|entry| entry.generation == queued.generation && entry.stage == stage)
    }

    /// Adds an edge.
    #[inline]
    pub fn connect(&mut self, input: EntryId, consumer: EntryId) {
        let entry = self.entry_mut(input);
        let place = entry.consumers.len() as u32;
        entry.consumers.push(consumer);
        entry.wants += 1;
        self.entry_mut(consumer).edges.push(Edge { input, place });
    }

    /// Takes an edge off its input's consumers; true where the input is unwanted after that. (An
    /// input that has ended is gone from the table, and the edge with it.)
    pub fn cut(&mut self, consumer: EntryId, edge: Edge) -> bool {
        let Edge { input, place } = edge;
        let Some(entry) = self.slots[input as usize].as_mut() else { return false };
        if entry.consumers.get(place as usize) != Some(&consumer) {
            return false;
        }
        entry.consumers.swap_remove(place as usize);
        entry.wants -= 1;
        let is_unwanted = entry.is_unwanted();
        // The last edge has moved to the free place.
        let from = Edge { input, place: entry.consumers.len() as u32 };
        if let Some(&moved) = entry.consumers.get(place as usize)
            && let Some(entry) = self.slots[moved as usize].as_mut()
            && let Some(edge) = entry.edges.iter_mut().find(|edge| **edge == from)
        {
            edge.place = place;
        }
        is_unwanted
    }

    /// The consumers of these entries that are not among them, one for each edge.
    pub fn consumers_outside(&self, entries: &[EntryId]) -> SmallVec<[EntryId; 4]> {
        let live = entries.iter().filter_map(|&id| self.get(id));
        live.flat_map(|entry| entry.consumers.iter().copied())
            .filter(|consumer| !entries.contains(consumer))
            .collect()
    }
}
