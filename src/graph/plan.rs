//! Plans the ops of a region at once: the steps, their order, and the last reader of each value.
//!
//! The nodes are a trace: they say which ops were called, and are never computed themselves. All
//! ops are known in advance, so nothing is delayed and nothing depends on timing: groups grow over
//! the whole region, and the last reader of a value in the plan is its last reader. A plan knows
//! neither values nor devices, and can be run any number of times.

mod wavefront;

use super::claim::Traced;
use super::fuse::Group;
use super::node::{Inputs, NodeLink, Op};
use super::program::{Code, OUTPUTS_MAX};
use super::work::Work;
use crate::sync::Mutex;
use smallvec::SmallVec;
use std::any::Any;
use std::collections::HashMap;

/// A value of the region, by number: what comes from outside first, then what steps make.
pub(crate) type Slot = u32;

/// The place of what no other step can read.
pub(crate) const NOWHERE: Slot = Slot::MAX;

pub(crate) struct PlanStep {
    pub work: Work,
    /// Where the operands are: those of the group, for its head [`NOWHERE`], then those of the head
    /// or of the one node.
    pub reads: SmallVec<[Slot; 4]>,
    /// The inputs of the group's head, or of the one node.
    pub inputs: Inputs,
    /// Where the results go, in their order.
    pub makes: SmallVec<[Slot; 2]>,
    /// Values that nobody reads after this step and that are no outputs.
    pub ends: SmallVec<[Slot; 4]>,
    /// A bit for each output that needs this step. Outputs from the 64th on share the last.
    pub serves: u64,
    /// Instructions that draw random numbers, and which draw of the region each is.
    pub draws: SmallVec<[(u8, u32); 1]>,
    /// Neighbours of one number, if it is not 0, may run side by side. They write over nothing
    /// that they read.
    pub wavefront: u32,
    /// Its place in the plan.
    pub number: usize,
}

pub(crate) struct Plan {
    /// Values from outside.
    pub given: usize,
    /// So many of them, the first, are a call's inputs; the rest are the same at each run.
    #[allow(dead_code)] // Host devices need not know.
    pub inputs: usize,
    /// All values.
    pub slots: usize,
    pub steps: Vec<PlanStep>,
    /// Where each output is.
    pub outputs: Vec<Slot>,
    /// For each value from outside the number of the first step after all that read it.
    pub read_until: Vec<usize>,
    /// Estimated time of all of it on one thread of a CPU.
    pub cost_ns: u64,
    /// Its calls come before what is not urgent.
    pub urgent: bool,
    /// The data that a device keeps from one run to the next.
    #[allow(dead_code)] // Host devices keep nothing.
    pub kept: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The bit of an output in [`PlanStep::serves`].
pub(crate) fn bit(output: usize) -> u64 {
    1 << output.min(63)
}

/// A step before it is one: nodes by number, in the order of the data.
#[derive(Default)]
struct Draft {
    members: Vec<usize>,
    /// A reduction of a member.
    end: Option<usize>,
    /// The head: computed just before, and read by members only.
    head: Option<usize>,
    /// The members are fused into one program; else there is one, which is anything.
    group: bool,
    gone: bool,
}

struct Drafter<'a> {
    traced: Traced<'a>,
    nodes: &'a [NodeLink],
    /// The nodes of the region that each node is made from.
    operands: Vec<SmallVec<[usize; 3]>>,
    readers: Vec<SmallVec<[usize; 2]>>,
    wanted: Vec<bool>,
    is_output: Vec<bool>,
    drafts: Vec<Draft>,
    draft_of: Vec<usize>,
}

const NONE: usize = usize::MAX;

fn is_fusible(node: &NodeLink) -> bool {
    node.op.is_elementwise() && !matches!(node.op, Op::Fill(_))
}

/// Plans a region. Its nodes stand in the order in which they were made; `given` are what comes
/// from outside; `outputs` are among the nodes, each once; `draws` are the (seed, offset) of the
/// region's draws. With `epilogues` groups may have heads.
pub(crate) fn plan(
    traced: Traced<'_>,
    given: &[NodeLink],
    outputs: &[NodeLink],
    draws: &[(u64, u64)],
    epilogues: bool,
) -> Plan {
    let nodes = traced.nodes();
    let number: HashMap<usize, usize> =
        nodes.iter().enumerate().map(|(i, n)| (n.address(), i)).collect();
    let mut drafter = Drafter::new(traced, &number, outputs);
    for n in 0..nodes.len() {
        if drafter.wanted[n] {
            drafter.place(n);
        }
    }
    drafter.split_wide();
    drafter.release_ends();
    if epilogues {
        drafter.set_heads();
    }
    let order = drafter.order();

    // The first where two are the same.
    let draw_of: HashMap<(u64, u64), u32> =
        draws.iter().enumerate().rev().map(|(k, &d)| (d, k as u32)).collect();
    // Numbers for what is made, step by step.
    let mut slot_of: HashMap<usize, Slot> =
        given.iter().enumerate().map(|(i, n)| (n.address(), i as Slot)).collect();
    let mut slots = given.len();
    let mut steps: Vec<PlanStep> = Vec::with_capacity(order.len());
    for d in order {
        let draft = &drafter.drafts[d];
        let mut makes: SmallVec<[Slot; 2]> = SmallVec::new();
        let mut made = |node: &NodeLink, slot_of: &mut HashMap<usize, Slot>| {
            slot_of.insert(node.address(), slots as Slot);
            makes.push(slots as Slot);
            slots += 1;
        };
        let mut links = Inputs::new();
        let (work, reads) = if draft.group {
            let mut group = drafter
                .group(&draft.members)
                .unwrap_or_else(|| unreachable!("whoever forms a group sees that it fits"));
            let written: SmallVec<[u8; 2]> = (0..draft.members.len())
                .filter(|&k| drafter.is_written(draft.members[k]))
                .map(|k| k as u8)
                .collect();
            group.program.outputs = written.iter().map(|&k| group.members[k as usize].1).collect();
            if let Some(h) = draft.head
                && let Some(at) = group.input(&nodes[h])
            {
                group.head = Some((nodes[h].clone(), at as u8));
                links.extend(traced.inputs(h).iter().cloned());
            }
            let read =
                group.inputs.iter().enumerate().map(|(k, i)| match group.head_input() == Some(k) {
                    true => NOWHERE,
                    false => slot_of[&i.address()],
                });
            let reads =
                read.chain(links.iter().map(|i: &NodeLink| slot_of[&i.address()])).collect();
            for &k in &written {
                made(&group.members[k as usize].0, &mut slot_of);
            }
            let end = draft.end.map(|e| {
                let member = drafter.operands[e][0];
                let k = draft.members.iter().position(|&m| m == member).unwrap_or(0);
                made(&nodes[e], &mut slot_of);
                (nodes[e].clone(), k as u8)
            });
            (Work::Group { group, written, end }, reads)
        } else {
            let node = &nodes[draft.members[0]];
            links.extend(traced.inputs(draft.members[0]).iter().cloned());
            let reads = links.iter().map(|i| slot_of[&i.address()]).collect();
            made(node, &mut slot_of);
            (Work::Node(node.clone()), reads)
        };
        let draws = match &work {
            Work::Group { group, .. } => drawn(group, &draw_of),
            Work::Node(_) => SmallVec::new(),
        };
        let ends = SmallVec::new();
        steps.push(PlanStep {
            work,
            reads,
            inputs: links,
            makes,
            ends,
            serves: 0,
            draws,
            wavefront: 0,
            number: 0,
        });
    }
    let mut steps = PlanStep::bring_together(steps);
    steps.iter_mut().enumerate().for_each(|(k, step)| step.number = k);

    let outputs: Vec<Slot> = outputs.iter().map(|o| slot_of[&o.address()]).collect();
    let mut serves = vec![0u64; slots];
    let mut read_later = vec![false; slots];
    for (k, &slot) in outputs.iter().enumerate() {
        serves[slot as usize] |= bit(k);
        read_later[slot as usize] = true;
    }
    let mut read_until = vec![0; given.len()];
    for step in steps.iter_mut().rev() {
        step.serves = step.makes.iter().map(|&s| serves[s as usize]).fold(0, |all, s| all | s);
        for &slot in step.reads.iter().filter(|&&slot| slot != NOWHERE) {
            serves[slot as usize] |= step.serves;
            if let Some(until) = read_until.get_mut(slot as usize) {
                *until = (step.number + 1).max(*until);
            }
            if !std::mem::replace(&mut read_later[slot as usize], true) {
                step.ends.push(slot);
            }
        }
    }
    let cost_ns = nodes.iter().enumerate().filter(|(i, _)| drafter.wanted[*i]);
    let cost_ns = cost_ns.fold(0u64, |sum, (_, n)| sum.saturating_add(n.cost_ns() as u64));
    let (given, urgent, kept) = (given.len(), false, Mutex::new(None));
    Plan { given, inputs: given, slots, steps, outputs, read_until, cost_ns, urgent, kept }
}

/// The draws of a program.
fn drawn(group: &Group<NodeLink>, draws: &HashMap<(u64, u64), u32>) -> SmallVec<[(u8, u32); 1]> {
    let mut found = SmallVec::new();
    for (i, instr) in group.program.instrs.iter().enumerate() {
        if let Code::Uniform { seed, offset } | Code::Normal { seed, offset } = instr.code
            && let Some(&k) = draws.get(&(seed, offset))
        {
            found.push((i as u8, k));
        }
    }
    found
}

impl<'a> Drafter<'a> {
    fn new(
        traced: Traced<'a>,
        number: &HashMap<usize, usize>,
        outputs: &[NodeLink],
    ) -> Drafter<'a> {
        let (nodes, n) = (traced.nodes(), traced.nodes().len());
        let operands: Vec<SmallVec<[usize; 3]>> = (0..n)
            .map(|k| {
                traced.inputs(k).iter().filter_map(|i| number.get(&i.address()).copied()).collect()
            })
            .collect();
        let (mut wanted, mut is_output) = (vec![false; n], vec![false; n]);
        for output in outputs {
            let k = number[&output.address()];
            (wanted[k], is_output[k]) = (true, true);
        }
        let mut readers: Vec<SmallVec<[usize; 2]>> = vec![SmallVec::new(); n];
        for k in (0..n).rev() {
            if wanted[k] {
                for &o in &operands[k] {
                    wanted[o] = true;
                    // They come in one order, so that one that is there is the last.
                    if readers[o].last() != Some(&k) {
                        readers[o].push(k);
                    }
                }
            }
        }
        Drafter {
            traced,
            nodes,
            operands,
            readers,
            wanted,
            is_output,
            drafts: Vec::new(),
            draft_of: vec![NONE; n],
        }
    }

    /// The group of these nodes, where they fit into one.
    fn group(&self, members: &[usize]) -> Option<Group<NodeLink>> {
        let mut group = Group::new();
        for &m in members {
            if !group.has_room() {
                return None;
            }
            group.add(&self.nodes[m], self.traced.inputs(m));
        }
        Some(group)
    }

    /// Finds the step for a node: a group that it continues, the groups of all its operands if they
    /// can be one, or a new one.
    fn place(&mut self, n: usize) {
        let operands = self.operands[n].clone();
        let node = &self.nodes[n];
        if let Op::Reduce(_) = node.op
            && let Some(&m) = operands.first()
        {
            let d = self.draft_of[m];
            if self.drafts[d].group
                && self.drafts[d].end.is_none()
                && self.drafts[d].members.contains(&m)
            {
                self.drafts[d].end = Some(n);
                self.draft_of[n] = d;
                return;
            }
        }
        if !is_fusible(node) {
            self.open(n, false);
            return;
        }
        let mut near: Vec<usize> = operands
            .iter()
            .filter(|&&o| self.nodes[o].shape == node.shape && is_fusible(&self.nodes[o]))
            .map(|&o| self.draft_of[o])
            .collect();
        near.sort_unstable();
        near.dedup();
        // The latest first: it holds most of what this node needs.
        let Some(at) = near.iter().rposition(|&d| self.join(n, d)) else {
            self.open(n, true);
            return;
        };
        let d = near.remove(at);
        for other in near {
            self.merge(other, d);
        }
    }

    fn open(&mut self, n: usize, group: bool) {
        self.draft_of[n] = self.drafts.len();
        self.drafts.push(Draft { members: vec![n], group, ..Draft::default() });
    }

    /// Puts a node into a group, where that makes no circle.
    fn join(&mut self, n: usize, d: usize) -> bool {
        for &o in &self.operands[n] {
            let theirs = self.draft_of[o];
            let is_end = theirs == d && self.drafts[d].end == Some(o);
            if is_end || theirs != d && self.depends(theirs, d) {
                return false;
            }
        }
        let mut members = self.drafts[d].members.clone();
        members.push(n);
        if self.group(&members).is_none() {
            return false;
        }
        self.drafts[d].members = members;
        self.draft_of[n] = d;
        true
    }

    /// Makes two groups one, where that makes no circle.
    fn merge(&mut self, from: usize, into: usize) {
        let (a, b) = (&self.drafts[from], &self.drafts[into]);
        if a.end.is_some() && b.end.is_some() {
            return;
        }
        // A way from one to the other that leads through a third, or through a reduction at an end.
        if self.detour(from, into) || self.detour(into, from) {
            return;
        }
        let mut members: Vec<usize> = a.members.iter().chain(&b.members).copied().collect();
        members.sort_unstable();
        if self.group(&members).is_none() {
            return;
        }
        let old = std::mem::take(&mut self.drafts[from]);
        self.drafts[from].gone = true;
        for m in old.members.into_iter().chain(old.end) {
            self.draft_of[m] = into;
        }
        self.drafts[into].members = members;
        self.drafts[into].end = self.drafts[into].end.or(old.end);
    }

    /// True where step `a` needs step `b`, at whatever distance.
    fn depends(&self, a: usize, b: usize) -> bool {
        let mut seen = vec![false; self.drafts.len()];
        let mut open = vec![a];
        while let Some(d) = open.pop() {
            if d == b {
                return true;
            }
            if !std::mem::replace(&mut seen[d], true) {
                open.extend(
                    self.needs(d).map(|(_, o)| self.draft_of[o]).filter(|&o| o != d && !seen[o]),
                );
            }
        }
        false
    }

    /// Nodes of a step, with what they are made from, an edge each.
    fn needs(&self, d: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let draft = &self.drafts[d];
        let nodes = draft.members.iter().copied().chain(draft.end).chain(draft.head);
        nodes.flat_map(|n| self.operands[n].iter().map(move |&o| (n, o)))
    }

    /// True where `a` needs `b` other than by reading its members.
    fn detour(&self, a: usize, b: usize) -> bool {
        self.needs(a).any(|(_, o)| {
            let d = self.draft_of[o];
            if d == b { self.drafts[b].end == Some(o) } else { d != a && self.depends(d, b) }
        })
    }

    /// True where anybody outside its step looks at a value.
    fn is_written(&self, n: usize) -> bool {
        self.is_output[n] || self.readers[n].iter().any(|&r| self.draft_of[r] != self.draft_of[n])
    }

    /// Cuts groups that write more than a program may.
    fn split_wide(&mut self) {
        let mut d = 0;
        while d < self.drafts.len() {
            let written =
                |s: &Self| s.drafts[d].members.iter().filter(|&&m| s.is_written(m)).count();
            while !self.drafts[d].gone && self.drafts[d].group && written(self) > OUTPUTS_MAX {
                // The last members become what comes after, with the reduction that reads one. What
                // stays never needs what goes; what goes reads what stays, so that not all of it
                // may fit into one: then the rest goes the next time.
                let mut rest = Vec::new();
                let next = self.drafts.len();
                self.drafts.push(Draft { group: true, ..Draft::default() });
                if let Some(e) = self.drafts[d].end.take() {
                    self.draft_of[e] = next;
                    self.drafts[next].end = Some(e);
                }
                while written(self) > OUTPUTS_MAX
                    && let Some(&m) = self.drafts[d].members.last()
                {
                    rest.insert(0, m);
                    if self.group(&rest).is_none() {
                        rest.remove(0);
                        break;
                    }
                    self.drafts[d].members.pop();
                    self.draft_of[m] = next;
                }
                let end = self.drafts[next].end;
                self.drafts[next].members = rest;
                if let Some(e) = end
                    && self.draft_of[self.operands[e][0]] != next
                {
                    self.drafts[next].end = None;
                    self.open(e, false);
                }
            }
            d += 1;
        }
    }

    /// A value that is written out anyway is read back by the reduction, not computed twice.
    fn release_ends(&mut self) {
        for d in 0..self.drafts.len() {
            if let Some(e) = self.drafts[d].end
                && self.drafts[d].members.contains(&self.operands[e][0])
            {
                let reduced = self.operands[e][0];
                if self.is_written(reduced) {
                    self.drafts[d].end = None;
                    self.open(e, false);
                }
            }
        }
    }

    /// A node that one group alone reads, over the group's shape, may become its head.
    fn set_heads(&mut self) {
        for o in 0..self.nodes.len() {
            let lone = self.draft_of[o];
            if !self.wanted[o] || self.is_output[o] || !self.nodes[o].op.takes_epilogue() {
                continue;
            }
            let Some(&first) = self.readers[o].first() else { continue };
            let d = self.draft_of[first];
            let draft = &self.drafts[d];
            let alone = self.readers[o].iter().all(|r| draft.members.contains(r));
            let fits = draft.group
                && draft.head.is_none()
                && self.nodes[first].shape == self.nodes[o].shape;
            if alone && fits {
                self.drafts[d].head = Some(o);
                self.drafts[lone].gone = true;
                self.draft_of[o] = d;
            }
        }
    }

    /// The steps, each after what it needs; else in the order of the program.
    fn order(&self) -> Vec<usize> {
        let mut order = Vec::new();
        let mut state = vec![0u8; self.drafts.len()];
        let mut live: Vec<usize> =
            (0..self.drafts.len()).filter(|&d| !self.drafts[d].gone).collect();
        live.sort_by_key(|&d| self.drafts[d].members.last().copied());
        for first in live {
            let mut open = vec![first];
            while let Some(&d) = open.last() {
                match state[d] {
                    0 => {
                        state[d] = 1;
                        let before = self.needs(d).map(|(_, o)| self.draft_of[o]);
                        open.extend(before.filter(|&o| o != d && state[o] == 0));
                    }
                    _ => {
                        open.pop();
                        if std::mem::replace(&mut state[d], 2) == 1 {
                            order.push(d);
                        }
                    }
                }
            }
        }
        order
    }
}
