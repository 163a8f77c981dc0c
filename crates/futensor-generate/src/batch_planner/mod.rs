//! The batch planner: it gives the rows of the next step to sequences. A pure state machine, which
//! `engine` drives. The planner knows tokens by number, pages and a clock that it is told; no
//! tensor, no thread, no future.
//!
//! A *sequence* is a request that was admitted: it has a slot, and takes pages as it grows. Where
//! there is none left, whoever came last waits again, with the tokens that it has as its prompt;
//! what follows is the same. So the first always goes on. A *step* is
//! one run of the model over packed *rows*, each a token of some sequence at its position; every
//! sequence whose last token is among them gets its next one. A token that an earlier step is still
//! working on is *pending*: the host does not know it, the device does. So steps are planned ahead,
//! before anybody has read the last.
//!
//! Sequences join and leave between steps. One that has ended while steps with rows of it are under
//! way keeps its slot and its pages until the last of those is through.

mod sequence;
#[cfg(test)]
mod tests;

use crate::pages::{Page, Pages};
use sequence::Sequence;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// So many may go before the first of those who wait, who has no room yet.
const OVERTAKE_MAX: usize = 16;
/// So many of those who wait are looked at for that.
const LOOK_MAX: usize = 16;

/// What there is to share.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sequences at the same time.
    pub slots: usize,
    /// Rows of a step at most.
    pub rows: usize,
    /// Rows of prompts in a step in which others wait for their next token.
    pub rows_beside: usize,
    /// Pages in the pool, and tokens a page.
    pub pages: usize,
    /// Tokens a page.
    pub page: usize,
    /// Tokens of a sequence at most.
    pub context: usize,
}

/// A request, as the planner sees it.
#[derive(Clone, Debug)]
pub struct Job {
    pub prompt: Vec<u32>,
    /// New tokens at most.
    pub tokens: usize,
    /// When it is to end at the latest, on the clock that the planner is told.
    pub deadline: Option<Duration>,
    /// Tokens that its reader has room for.
    pub room: usize,
    /// Its next token cannot be chosen before the last one is known to the host.
    pub one_by_one: bool,
    /// It is not to be admitted before its [release](BatchPlanner::release).
    pub held: bool,
}

/// The number of a request. Later requests have larger numbers.
pub type Id = u64;

/// A token in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub id: Id,
    pub slot: usize,
    /// `None`: the device has it, as the last token chosen for this slot.
    pub token: Option<u32>,
    pub position: usize,
    /// Where its key and value go: page and place in it.
    pub page: Page,
    pub place: usize,
    /// The next token is chosen from this row.
    pub chooses: bool,
}

/// A run of the model.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub rows: Vec<Row>,
    /// The pages of each sequence that has rows, by slot: as many as its rows need.
    pub tables: BTreeMap<usize, Vec<Page>>,
    /// Who has rows.
    members: Vec<Id>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Its next token; `last` where there will be no other.
    Token { id: Id, choice: usize, last: bool },
    /// Its deadline has passed.
    Late { id: Id },
    /// The step that it was part of has failed.
    Failed { id: Id },
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Empty,
    /// More tokens than a sequence may have.
    TooLong,
    /// More pages than there are.
    TooLarge,
}

impl Limits {
    /// Whether a request of this many tokens, and as many new ones, can ever be admitted.
    pub fn admits(&self, prompt: usize, tokens: usize) -> Result<(), Refusal> {
        let length = prompt.saturating_add(tokens);
        match () {
            () if prompt == 0 || tokens == 0 => Err(Refusal::Empty),
            () if length > self.context => Err(Refusal::TooLong),
            () if length.div_ceil(self.page) > self.pages => Err(Refusal::TooLarge),
            () => Ok(()),
        }
    }
}

/// See the module.
pub struct BatchPlanner {
    limits: Limits,
    pages: Pages,
    /// By number, which is the order in which they came: any of them may go away at any time.
    waiting: BTreeMap<Id, Job>,
    /// Those that are not to be admitted yet.
    held: BTreeMap<Id, Job>,
    /// Those that nobody reads: they are not to be admitted before somebody does.
    paused: BTreeMap<Id, Job>,
    /// The first of those who wait, and how many went before it.
    overtaken: (Id, usize),
    running: BTreeMap<Id, Sequence>,
    /// Of all that have not ended.
    deadlines: BTreeSet<(Duration, Id)>,
    slots: Vec<usize>,
    /// Tokens of prompts that were not computed, since another had done so.
    shared_tokens: u64,
    /// Sequences that had to wait again.
    preempted: u64,
}

impl BatchPlanner {
    pub fn new(limits: Limits) -> BatchPlanner {
        BatchPlanner {
            pages: Pages::new(limits.pages, limits.page),
            slots: (0..limits.slots).rev().collect(),
            waiting: BTreeMap::new(),
            held: BTreeMap::new(),
            paused: BTreeMap::new(),
            overtaken: (0, 0),
            running: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            shared_tokens: 0,
            preempted: 0,
            limits,
        }
    }

    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len() + self.held.len() + self.paused.len()
    }

    /// The sequences, in the order in which they came.
    pub fn running(&self) -> impl ExactSizeIterator<Item = Id> {
        self.running.keys().copied()
    }

    /// Those that nobody reads and that wait for that.
    pub fn paused(&self) -> impl Iterator<Item = Id> {
        self.paused.keys().copied()
    }

    pub fn shared_tokens(&self) -> u64 {
        self.shared_tokens
    }

    pub fn preempted(&self) -> u64 {
        self.preempted
    }

    /// Takes a request in; it waits for a slot and pages.
    pub fn submit(&mut self, id: Id, job: Job) {
        self.deadlines.extend(job.deadline.map(|at| (at, id)));
        if job.held { &mut self.held } else { &mut self.waiting }.insert(id, job);
    }

    /// A request that was held may be admitted: it has the place of its number among those who
    /// wait.
    pub fn release(&mut self, id: Id) {
        self.waiting.extend(self.held.remove(&id).map(|job| (id, job)));
    }

    /// Nobody reads this one: what it has is others' until somebody does, and it
    /// is [resumed](Self::resume). False where that is so already, or there is room for a token.
    pub fn pause(&mut self, id: Id) -> bool {
        let stays = |s: &&mut Sequence| s.stalls() && !s.leaves && !s.ended;
        let Some(sequence) = self.running.get_mut(&id).filter(stays) else { return false };
        sequence.leaves = true;
        self.let_go(id);
        true
    }

    /// Somebody reads a paused one again, and has room for so many tokens: it may be admitted, and
    /// has the place of its number.
    pub fn resume(&mut self, id: Id, room: usize) {
        let job = self.paused.remove(&id);
        self.waiting.extend(job.map(|job| (id, Job { room, ..job })));
    }

    /// The request has enough, or nobody wants it any more. What it has is free at once, or when
    /// the steps that it is part of are through.
    pub fn end(&mut self, id: Id) {
        let job = self.waiting.remove(&id).or_else(|| self.held.remove(&id));
        let job = job.or_else(|| self.paused.remove(&id));
        if let Some(at) = job.and_then(|job| job.deadline) {
            self.deadlines.remove(&(at, id));
        }
        self.mark(id);
        self.let_go(id);
    }

    /// A sequence gets no more rows. False where it had ended before, or is none.
    fn mark(&mut self, id: Id) -> bool {
        let Some(sequence) = self.running.get_mut(&id).filter(|s| !s.ended) else { return false };
        sequence.ended = true;
        if let Some(at) = sequence.deadline {
            self.deadlines.remove(&(at, id));
        }
        true
    }

    /// Its reader has room for so many tokens now; with `waits` it is to be given nothing yet.
    pub fn room(&mut self, id: Id, room: usize, waits: bool) {
        if let Some(sequence) = self.running.get_mut(&id) {
            (sequence.room, sequence.waits) = (room, waits);
        }
    }

    /// The earliest deadline.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Ends those whose deadline has passed.
    pub fn expire(&mut self, now: Duration) -> Vec<Event> {
        let late = |(at, id): &(Duration, Id)| (*at <= now).then_some(*id);
        let ids: Vec<Id> = self.deadlines.iter().map_while(late).collect();
        ids.iter().for_each(|&id| self.end(id));
        ids.into_iter().map(|id| Event::Late { id }).collect()
    }

    /// The next step, or none where nobody can go on before something else happens. Whoever waits
    /// is [admitted](Self::admit) before.
    pub fn plan(&mut self) -> Option<Step> {
        let mut step = Step::default();
        // Those who wait for their next token first, so that no prompt holds them up; then prompts,
        // the oldest first.
        let (ready, prompts): (Vec<Id>, Vec<Id>) = {
            let active = self.running.iter().filter(|(_, s)| s.can_go_on());
            let (ready, prompts): (Vec<_>, Vec<_>) = active.partition(|(_, s)| s.rows_left() == 1);
            (
                ready.into_iter().map(|(id, _)| *id).collect(),
                prompts.into_iter().map(|(id, _)| *id).collect(),
            )
        };
        for id in ready {
            self.add_rows(&mut step, id, 1);
        }
        let budget = if step.rows.is_empty() { self.limits.rows } else { self.limits.rows_beside };
        let end = (step.rows.len() + budget).min(self.limits.rows);
        for id in prompts {
            let left = end.saturating_sub(step.rows.len());
            if left == 0 {
                break;
            }
            self.add_rows(&mut step, id, left);
        }
        (!step.rows.is_empty()).then_some(step)
    }

    /// A step is through; `ok` where it did not fail. Choices are numbered in the order of the rows
    /// that chose. Who ended keeps what it has until the step is [settled](Self::settle).
    pub fn conclude(&mut self, step: &Step, ok: bool) -> Vec<Event> {
        let mut events = Vec::new();
        for &id in &step.members {
            let Some(sequence) = self.running.get_mut(&id) else { continue };
            sequence.flights -= 1;
            if !ok && self.mark(id) {
                events.push(Event::Failed { id });
            }
        }
        if !ok {
            return events;
        }
        for (choice, row) in step.rows.iter().filter(|row| row.chooses).enumerate() {
            let Some(sequence) = self.running.get_mut(&row.id).filter(|s| !s.ended) else {
                continue;
            };
            sequence.pending -= 1;
            sequence.room = sequence.room.saturating_sub(1);
            let last = sequence.known.len() + 1 == sequence.length_max;
            if last {
                self.mark(row.id);
            }
            events.push(Event::Token { id: row.id, choice, last });
        }
        events
    }

    /// Frees what those have who ended with a step that is concluded.
    pub fn settle(&mut self, step: &Step) {
        step.members.iter().for_each(|&id| self.let_go(id));
    }

    /// What the token of an event is, which the sequence needs from then on.
    pub fn learn(&mut self, id: Id, token: u32) {
        if let Some(sequence) = self.running.get_mut(&id) {
            sequence.known.push(token);
            sequence.remember(&mut self.pages);
        }
    }

    /// How many tokens steps under way will bring it.
    pub fn pending(&self, id: Id) -> usize {
        self.running.get(&id).map_or(0, |sequence| sequence.pending)
    }

    /// The tokens of a sequence that are known: prompt, and what was chosen since.
    pub fn known(&self, id: Id) -> Option<&[u32]> {
        self.running.get(&id).map(|sequence| &sequence.known[..])
    }

    /// What pages held is lost: everybody's sequence fails, but those that only wait.
    pub fn lose_all(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let ids: Vec<Id> = self.running.keys().copied().collect();
        for id in ids {
            if self.mark(id) {
                events.push(Event::Failed { id });
            }
            self.let_go(id);
        }
        self.pages.forget_all();
        events
    }

    /// Those who wait get slots and pages, in the order in which they came. Where there is no room
    /// for the first, some who need less may go before it: not more than a few, so that nobody
    /// waits for ever. Gives who was admitted.
    pub fn admit(&mut self) -> Vec<Id> {
        let mut admitted = Vec::new();
        let mut after = 0;
        let mut looks = 0;
        while looks < LOOK_MAX
            && let Some(&slot) = self.slots.last()
            && let Some(&first) = self.waiting.keys().next()
            && let Some((&id, job)) = self.waiting.range(after..).next()
        {
            if self.overtaken.0 != first {
                self.overtaken = (first, 0);
            }
            let (size, active) = (self.limits.page, self.running.values().filter(|s| !s.ended));
            // What the others will take soon, so that hardly anybody waits twice.
            let others: usize = active.map(|s| s.lacks(size).max(1)).sum();
            if others >= self.pages.available() || id != first && self.overtaken.1 >= OVERTAKE_MAX {
                break;
            }
            looks += 1;
            after = id + 1;
            let Some(mut sequence) = Sequence::admit(job, &mut self.pages, others) else {
                continue;
            };
            self.overtaken.1 += (id != first) as usize;
            let Some(job) = self.waiting.remove(&id) else { break };
            self.slots.pop();
            self.shared_tokens += sequence.queued as u64;
            (sequence.slot, sequence.known) = (slot, job.prompt);
            self.running.insert(id, sequence);
            admitted.push(id);
        }
        admitted
    }

    fn add_rows(&mut self, step: &mut Step, id: Id, most: usize) {
        let (before, size) = (step.rows.len(), self.limits.page);
        let mut left = most;
        while left > 0
            && let Some(sequence) = self.running.get_mut(&id)
            && sequence.can_go_on()
        {
            // Somebody may have computed the next page since.
            let adopted = sequence.adopt(&mut self.pages);
            self.shared_tokens += adopted as u64;
            if adopted > 0 {
                continue;
            }
            if sequence.needs_page(size) && self.pages.available() == 0 && !self.make_room(id) {
                break;
            }
            let Some(sequence) = self.running.get_mut(&id) else { break };
            let Some(row) = sequence.row(id, &mut self.pages) else { break };
            sequence.remember(&mut self.pages);
            // What it chooses comes in the next step.
            left = if row.chooses { 0 } else { left - 1 };
            step.rows.push(row);
        }
        if let Some(sequence) = self.running.get_mut(&id).filter(|_| step.rows.len() > before) {
            sequence.flights += 1;
            step.members.push(id);
            step.tables.insert(sequence.slot, sequence.table.clone());
        }
    }

    /// Has another wait again, so that there is a page for this one: somebody whom nobody reads,
    /// or else whoever came last, behind this one. True where there is a page at once: pages that
    /// steps under way write to are free when those are through.
    fn make_room(&mut self, id: Id) -> bool {
        // One is enough, and may be on its way already.
        if !self.running.values().any(|s| s.leaves) {
            let stays = |(other, s): &(&Id, &Sequence)| **other != id && !s.ended;
            let mut stalled = self.running.iter().rev().filter(stays).filter(|(_, s)| s.stalls());
            let mut last = self.running.iter().rev().filter(stays).filter(|(o, _)| **o > id);
            let Some(other) = stalled.next().or_else(|| last.next()).map(|(id, _)| *id) else {
                return false;
            };
            if let Some(sequence) = self.running.get_mut(&other) {
                sequence.leaves = true;
            }
            self.let_go(other);
        }
        self.pages.available() > 0
    }

    /// Frees what a sequence has that ended, or has to wait again, and is part of no step any more.
    fn let_go(&mut self, id: Id) {
        let goes = |s: &&Sequence| (s.ended || s.leaves) && s.flights == 0;
        if self.running.get(&id).filter(goes).is_none() {
            return;
        }
        let Some(mut sequence) = self.running.remove(&id) else { return };
        self.slots.push(sequence.slot);
        // The end first, so that beginnings are the last to be forgotten.
        let table = std::mem::take(&mut sequence.table);
        table.iter().rev().for_each(|&page| self.pages.release(page));
        if !sequence.ended {
            self.preempted += 1;
            let stalls = sequence.stalls();
            let waits = if stalls { &mut self.paused } else { &mut self.waiting };
            waits.insert(id, sequence.job());
        }
    }
}
