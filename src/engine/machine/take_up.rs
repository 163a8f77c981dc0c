//! From a picked entry to a step, with the ops that fuse with it. This file alone says which values
//! are written out.
//!
//! A group holds elementwise ops over one shape whose inputs are all there. A reduction may end the
//! group: it folds a tile right after the tile was written, so that each element is computed once.
//! A *head* may begin the group: an op (a product, say) that only the group reads. The head is
//! computed just before, and the group works on its memory. A head is not cut into pieces of rows:
//! a result that leaves the cache, 4 MiB and more, comes from a product beside which the pass over
//! it takes a few percent.

use super::Machine;
use super::task_table::{EntryId, Stage};
use crate::concurrent::completion::DETACHED;
use crate::engine::step::{At, Step};
use crate::graph::fuse::Group;
use crate::graph::node::{NodeLink, Op, readers};
use crate::graph::program::OUTPUTS_MAX;
use crate::graph::work::Work;
use crate::sync::Ordering::Relaxed;
use smallvec::SmallVec;

/// How far up the inputs of a member are taken into its group.
const INPUTS_DEPTH: u32 = 6;

impl Machine {
    /// Makes a step of an entry and of what fuses with it.
    pub(super) fn take_up(&mut self, id: EntryId, stream: u16) -> Step {
        let node = self.table.entry(id).node.clone();
        let mut entries: SmallVec<[EntryId; 2]> = SmallVec::new();
        let mut group: Group<NodeLink> = Group::new();
        let mut end = None;
        let fusible = node.op.is_elementwise() && !matches!(node.op, Op::Fill(_));
        if fusible {
            self.include(id, &mut group, &mut entries);
            end = self.grow(&node, &mut group, &mut entries);
        } else {
            entries.push(id);
            if self.limits.epilogues && node.op.takes_epilogue() {
                end = self.follow(&node, &mut group, &mut entries);
            }
        }
        let grouped = fusible || group.head.is_some();
        if fusible && self.written(&group, end.as_ref(), &node).len() > OUTPUTS_MAX {
            // Too many of them are observed: a shorter group, cut where it fits. (The old one goes
            // first: its links would count.)
            drop(std::mem::replace(&mut group, Group::new()));
            let cut = (1..entries.len()).rev().find(|&cut| {
                let part = self.regroup(&entries[..cut]);
                self.written(&part, None, &node).len() <= OUTPUTS_MAX
            });
            entries.truncate(cut.unwrap_or(1));
            group = self.regroup(&entries);
            end = None;
        }
        let at = At { stream, point: self.streams[stream as usize].submitted + 1 };
        self.streams[stream as usize].submitted = at.point;

        // The operands that come from other streams, and are not there yet.
        let mut waits: SmallVec<[At; 2]> = SmallVec::new();
        let mut wait_for = |machine: &Machine, input: &NodeLink| {
            let Some(id) = input.entry() else { return };
            if let Stage::Submitted(on) = machine.table.entry(id).stage
                && on.stream != stream
                && machine.streams[on.stream as usize].completed < on.point
            {
                match waits.iter_mut().find(|w| w.stream == on.stream) {
                    Some(wait) => wait.point = wait.point.max(on.point),
                    None => waits.push(on),
                }
            }
        };
        for input in &group.inputs {
            wait_for(self, input);
        }
        if !fusible {
            for input in self.table.entry(id).inputs() {
                wait_for(self, input);
            }
        }
        if !waits.is_empty() {
            self.port.counters.events.fetch_add(waits.len() as u64, Relaxed);
        }

        // A member's value is written out if anybody else wants it.
        let mut written: SmallVec<[u8; 2]> = SmallVec::new();
        if grouped {
            written = self.written(&group, end.as_ref(), &node);
            let regs = written.iter().map(|&k| group.members[k as usize].1).collect();
            group.program.outputs = regs;
        }

        let mut bytes = 0usize;
        for &id in &entries {
            self.table.entry_mut(id).stage = Stage::Submitted(at);
        }
        for &k in &written {
            bytes = bytes.saturating_add(group.members[k as usize].0.bytes());
        }
        if !grouped {
            bytes = node.bytes();
        }
        let work = if grouped { Work::Group { group, written, end } } else { Work::Node(node) };
        let step = Step::claim(work, bytes, at, waits, entries);
        if self.limits.ahead {
            let outside = self.table.consumers_outside(&step.entries);
            self.unblock(&outside);
        }
        self.in_flight += 1;
        self.in_flight_bytes = self.in_flight_bytes.wrapping_add(bytes);
        let counters = &self.port.counters;
        counters.in_flight.store(self.in_flight, Relaxed);
        counters.started.fetch_add(1, Relaxed);
        counters.fused.fetch_add(step.entries.len() as u64 - 1, Relaxed);
        step
    }

    /// The members whose values anybody may look at. `borrowed` is a member that the caller holds a
    /// link on beside the task table and the group.
    fn written(
        &self,
        group: &Group<NodeLink>,
        end: Option<&(NodeLink, u8)>,
        borrowed: &NodeLink,
    ) -> SmallVec<[u8; 2]> {
        let observed = |k: &usize| {
            let node = &group.members[*k].0;
            let inside =
                self.edges_inside(*k, group, end) + (node.address() == borrowed.address()) as u32;
            is_observed(node, inside)
        };
        (0..group.members.len()).filter(observed).map(|k| k as u8).collect()
    }

    /// The group of these entries alone, in their order.
    fn regroup(&mut self, entries: &[EntryId]) -> Group<NodeLink> {
        let mut group = Group::new();
        for &id in entries {
            self.include(id, &mut group, &mut SmallVec::new());
        }
        group
    }

    /// Adds an entry's node to the group.
    fn include(
        &mut self,
        id: EntryId,
        group: &mut Group<NodeLink>,
        entries: &mut SmallVec<[EntryId; 2]>,
    ) {
        let entry = self.table.entry(id);
        let inputs: SmallVec<[NodeLink; 3]> = entry.inputs().iter().cloned().collect();
        group.add(&entry.node, &inputs);
        entries.push(id);
    }

    /// Takes in consumers that are elementwise over the same shape and have all their inputs. A
    /// reduction ends the group.
    fn grow(
        &mut self,
        first: &NodeLink,
        group: &mut Group<NodeLink>,
        entries: &mut SmallVec<[EntryId; 2]>,
    ) -> Option<(NodeLink, u8)> {
        let mut k = 0;
        let mut end: Option<(EntryId, u8)> = None;
        // Where the group follows a node, that one is an entry and no member.
        let members_from = !first.op.is_elementwise() as usize;
        while k < entries.len() {
            let consumers = self.table.entry(entries[k]).consumers.clone();
            for id in consumers {
                if entries.contains(&id) || end.is_some_and(|(end, _)| end == id) {
                    continue;
                }
                let entry = self.table.entry(id);
                if matches!(entry.node.op, Op::Reduce(_)) {
                    let movable = entry.stage == Stage::Waiting && entry.blocked == 1;
                    if end.is_none() && movable && k >= members_from {
                        end = Some((id, (k - members_from) as u8));
                    }
                } else {
                    self.try_include(id, first, group, entries, INPUTS_DEPTH);
                }
            }
            k += 1;
        }
        let (id, member) = end?;
        entries.push(id);
        Some((self.table.entry(id).node.clone(), member))
    }

    /// Grows a group behind one node, in the same step, as long as nobody else looks at the node's
    /// value.
    fn follow(
        &mut self,
        head: &NodeLink,
        group: &mut Group<NodeLink>,
        entries: &mut SmallVec<[EntryId; 2]>,
    ) -> Option<(NodeLink, u8)> {
        let end = self.grow(head, group, entries);
        // Beside its readers here the caller has a link.
        let at = group.input(head).filter(|&at| !is_observed(head, group.edges[at] as u32 + 1));
        match at {
            Some(at) if self.written(group, end.as_ref(), head).len() <= OUTPUTS_MAX => {
                group.head = Some((head.clone(), at as u8));
                end
            }
            _ => {
                *group = Group::new();
                entries.truncate(1);
                None
            }
        }
    }

    /// Includes an entry, and before it its inputs that are not submitted, if all of that is
    /// possible now.
    fn try_include(
        &mut self,
        id: EntryId,
        first: &NodeLink,
        group: &mut Group<NodeLink>,
        entries: &mut SmallVec<[EntryId; 2]>,
        depth: u32,
    ) -> bool {
        if entries.contains(&id) {
            return true;
        }
        let entry = self.table.entry(id);
        let node = &entry.node;
        let free = matches!(entry.stage, Stage::Waiting | Stage::Delayed | Stage::Ready);
        let fits = node.op.is_elementwise()
            && !matches!(node.op, Op::Fill(_))
            && node.shape == first.shape;
        if !free || !fits || depth == 0 || !group.has_room() {
            return false;
        }
        let inputs: SmallVec<[NodeLink; 3]> = entry.inputs().iter().cloned().collect();
        for input in &inputs {
            if group.member(input).is_some() {
                continue;
            }
            // The task table, not the value, says what is there: one computed outside may be
            // complete while the word of it, which unblocks this entry, is still on its way.
            let there = match input.entry() {
                None => input.completion.state().is_complete(),
                Some(input) => match self.table.entry(input).stage {
                    Stage::Submitted(_) => self.limits.ahead,
                    _ => self.try_include(input, first, group, entries, depth - 1),
                },
            };
            if !there {
                return false;
            }
        }
        if !group.has_room() {
            return false;
        }
        self.include(id, group, entries);
        true
    }

    /// How many edges lead from member `k` to other members or to the reduction at the end.
    fn edges_inside(&self, k: usize, group: &Group<NodeLink>, end: Option<&(NodeLink, u8)>) -> u32 {
        let address = group.members[k].0.address();
        let mut edges = 0;
        for (member, _) in group.members.iter().skip(k + 1) {
            let inputs = member.entry().map_or(&[][..], |id| self.table.entry(id).inputs());
            edges += inputs.iter().filter(|i| i.address() == address).count() as u32;
        }
        edges + end.is_some_and(|&(_, m)| m as usize == k) as u32
    }
}

/// True where anybody but the group's own members may look at this value, now or later.
fn is_observed(node: &NodeLink, edges_inside: u32) -> bool {
    let counts = readers(node);
    let state = node.completion.state();
    // The links of the task table and of the group are no readers.
    let ours = 2;
    counts.handles > 0 || state.has(DETACHED) || counts.links > ours + edges_inside
}
