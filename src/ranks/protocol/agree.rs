//! Agreement on the next group: among members that split a group, and among survivors of one.
//!
//! To *split*, each member announces its color; members with the same color form the new group.
//!
//! To *shrink*, each member announces which members it has lost. A member has settled once all
//! members that it has not lost have announced the same losses; it then announces that. A member
//! that hears a settled set adopts it. So no two live members settle on different sets: all members
//! of a settled set have announced the same losses; a member that comes to another view later needs
//! a newer message from each of them, and that message contains the settled set. (Links keep their
//! order, and a member that was given up is not heard any more.) A member that is lost after that
//! is lost to the new group, which shrinks again. A live member that was given up is told so, and
//! never settles.
//!
//! Silence may be a cut between two parts that both live. So a part continues only if it has more
//! than half of all members that are not known to have ended (by the end of a link), or half
//! including the first of them: that holds for at most one of two parts. All members with the same
//! view come to the same decision here, too.

use super::message::{Fault, FaultKind, GroupId, Message};
use super::{AHEAD_MAX, Action, Ended, Group, Machine, Rules, Ticket, follows};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

/// Splits in progress: those of this rank, and the colors of other members.
#[derive(Default)]
pub(super) struct Splitting {
    made: u64,
    /// The splits that have not ended, in order.
    open: VecDeque<Split>,
    /// The colors of each member, from the first open split on: all members split in the same
    /// order.
    heard: HashMap<usize, VecDeque<u64>>,
}

struct Split {
    ticket: Ticket,
    seq: u64,
    color: u64,
    since: Duration,
}

impl Splitting {
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.open.iter().map(|split| split.ticket)
    }

    pub fn clear(&mut self) {
        self.open.clear();
        self.heard.clear();
    }

    pub fn deadline(&self, rules: &Rules) -> Option<Duration> {
        self.open.front().map(|split| split.since + rules.deadline)
    }

    fn said(&self, rank: usize) -> usize {
        self.heard.get(&rank).map_or(0, VecDeque::len)
    }

    /// Whether this rank waits for the color of a member.
    pub fn waits_for(&self, rank: usize) -> bool {
        self.said(rank) < self.open.len()
    }
}

/// The one shrink of a group.
#[derive(Default)]
pub(super) struct Shrinking {
    /// The tickets of this rank's shrink, and the time of the call.
    asked: Option<(Vec<Ticket>, Duration)>,
    /// The losses that each member announced last, and whether the lost members have ended.
    said: BTreeMap<usize, Vec<(usize, bool)>>,
    settled: Option<Vec<usize>>,
}

impl Shrinking {
    pub fn is_awaited(&self) -> bool {
        self.asked.as_ref().is_some_and(|(tickets, _)| !tickets.is_empty())
    }

    pub fn deadline(&self, rules: &Rules) -> Option<Duration> {
        let (tickets, since) = self.asked.as_ref()?;
        (!tickets.is_empty()).then_some(*since + rules.deadline)
    }
}

impl Machine {
    /// Splits a group: members with the same color form a new group.
    ///
    /// # Errors
    /// The group is unusable.
    pub fn split(&mut self, id: GroupId, color: u64, now: Duration) -> Result<Ticket, Fault> {
        let ticket = self.ticket();
        let group = self.groups.get_mut(&id).expect("a group is kept while somebody holds it");
        if let Some(fault) = &group.broken {
            return Err(fault.clone());
        }
        let seq = group.splitting.made;
        group.splitting.made += 1;
        group.splitting.open.push_back(Split { ticket, seq, color, since: now });
        let others = self.members_but_me(id);
        let is_through = |rank: &usize| {
            self.makes_no_more(id, *rank) && self.groups[&id].splitting.waits_for(*rank)
        };
        if let Some(rank) = others.iter().copied().find(is_through) {
            return Err(self.break_left(id, rank, Some(ticket)));
        }
        self.send_to(others, &Message::Split { group: id, seq, color });
        self.look_at_splits(id);
        Ok(ticket)
    }

    pub(super) fn heard_split(&mut self, id: GroupId, from: usize, seq: u64, color: u64) {
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.broken.is_none()) else {
            return;
        };
        let splitting = &mut group.splitting;
        let (ended, said) = (splitting.made - splitting.open.len() as u64, splitting.said(from));
        // A well-behaved member never sends this: ignored.
        if seq != ended + said as u64 {
            return;
        }
        if said == AHEAD_MAX {
            let text = format!("it is {AHEAD_MAX} splits ahead of the others");
            return self.break_group(
                id,
                Fault { kind: FaultKind::Calls, rank: Some(from), text },
                true,
            );
        }
        splitting.heard.entry(from).or_default().push_back(color);
        self.look_at_splits(id);
    }

    fn look_at_splits(&mut self, id: GroupId) {
        while let Some(group) = self.groups.get_mut(&id) {
            let (me, splitting) = (self.me, &mut group.splitting);
            if group.members.iter().any(|&r| r != me && splitting.said(r) == 0) {
                return;
            }
            let Some(Split { ticket, seq, color, .. }) = splitting.open.pop_front() else { return };
            let mut said =
                |rank: usize| splitting.heard.get_mut(&rank).and_then(VecDeque::pop_front);
            let all: Vec<_> = group.members.iter().map(|&rank| (rank, said(rank))).collect();
            let is_in = |(rank, said): (usize, Option<u64>)| {
                (rank == me || said == Some(color)).then_some(rank)
            };
            let members: Vec<usize> = all.into_iter().filter_map(is_in).collect();
            let new = follows(id, &[0, seq, color]);
            self.enter(new, members.clone());
            self.actions.push(Action::End(ticket, Ok(Ended::Group(new, members))));
            self.look_to_free(id);
        }
    }

    /// Starts a shrink of a group to its survivors.
    pub fn shrink(&mut self, id: GroupId, now: Duration) -> Ticket {
        let ticket = self.ticket();
        if let Some(fault) = &self.expelled {
            self.actions.push(Action::End(ticket, Err(fault.clone())));
            return ticket;
        }
        let shrinking = &mut self
            .groups
            .get_mut(&id)
            .expect("a group is kept while somebody holds it")
            .shrinking;
        match &mut shrinking.asked {
            Some((tickets, _)) => {
                tickets.push(ticket);
                self.settle(id);
            }
            None => {
                shrinking.asked = Some((vec![ticket], now));
                self.say_shrink(id);
            }
        }
        ticket
    }

    pub(super) fn end_shrink(&mut self, id: GroupId, fault: Fault) {
        let asked = self.groups.get_mut(&id).and_then(|group| group.shrinking.asked.as_mut());
        let tickets = asked.map(|(tickets, _)| std::mem::take(tickets)).unwrap_or_default();
        self.actions
            .extend(tickets.into_iter().map(|ticket| Action::End(ticket, Err(fault.clone()))));
        self.look_to_free(id);
    }

    /// A member is out: shrinks in progress announce it.
    pub(super) fn members_changed(&mut self, rank: usize) {
        self.groups_with(rank).into_iter().for_each(|id| self.shrink_changed(id));
    }

    /// The same for one group that a member has dropped: it takes no part in the next group.
    pub(super) fn shrink_changed(&mut self, id: GroupId) {
        if self
            .groups
            .get(&id)
            .is_some_and(|group| group.shrinking.asked.is_some() && !group.let_go)
        {
            self.say_shrink(id);
        }
    }

    /// Whether a member is out, or takes no part in the group that follows from this one.
    fn is_out_of(&self, id: GroupId, rank: usize) -> bool {
        self.peers[rank].gone || self.makes_no_more(id, rank)
    }

    /// The members of a group that are out, and whether each has ended.
    fn out_of(&self, id: GroupId) -> Vec<(usize, bool)> {
        let out = self.groups[&id].members.iter().filter(|&&r| self.is_out_of(id, r));
        out.map(|&r| (r, self.peers[r].ended || self.makes_no_more(id, r))).collect()
    }

    /// The members of a group that are not out.
    fn still_in(&self, id: GroupId) -> Vec<usize> {
        self.groups[&id].members.iter().copied().filter(|&r| !self.is_out_of(id, r)).collect()
    }

    fn say_shrink(&mut self, id: GroupId) {
        let lost = self.out_of(id);
        let me = self.me;
        let shrinking =
            &mut self.groups.get_mut(&id).expect("groups go in `end_group` alone").shrinking;
        shrinking.said.insert(me, lost.clone());
        let settled = shrinking.settled.clone();
        let others = self.still_in(id).into_iter().filter(|&r| r != me).collect();
        self.send_to(others, &Message::Shrink { group: id, lost, settled });
        self.settle(id);
    }

    pub(super) fn heard_shrink(
        &mut self,
        id: GroupId,
        from: usize,
        lost: Vec<(usize, bool)>,
        settled: Option<Vec<usize>>,
    ) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let is_part = |ranks: &Vec<usize>| {
            ranks.is_sorted_by(|a, b| a < b) && ranks.iter().all(|r| group.members.contains(r))
        };
        if !settled.as_ref().is_none_or(is_part) {
            // A well-behaved member never sends this: ignored.
            return;
        }
        let shrinking = &mut group.shrinking;
        shrinking.said.insert(from, lost);
        if shrinking.settled.is_none() && settled.is_some() {
            shrinking.settled = settled;
            if shrinking.asked.is_some() {
                return self.say_shrink(id);
            }
        }
        self.settle(id);
    }

    /// Checks whether all announcements agree, and ends the awaits if they do.
    fn settle(&mut self, id: GroupId) {
        let asked = |group: &&Group| group.shrinking.asked.is_some();
        let Some(group) = self.groups.get(&id).filter(asked).filter(|_| self.expelled.is_none())
        else {
            return;
        };
        if group.shrinking.settled.is_none() {
            let (lost, still) = (self.out_of(id), self.still_in(id));
            if !still.iter().all(|r| group.shrinking.said.get(r) == Some(&lost)) {
                return;
            }
            let may_live = |r: &&usize| !lost.contains(&(**r, true));
            let (all, first) = (
                group.members.iter().filter(may_live).count(),
                group.members.iter().find(may_live),
            );
            if 2 * still.len() < all || 2 * still.len() == all && still.first() != first {
                let text = format!(
                    "only {} of {all} are left, and the others may continue elsewhere",
                    still.len()
                );
                return self
                    .end_shrink(id, Fault { kind: FaultKind::Lost, rank: Some(self.me), text });
            }
            self.groups.get_mut(&id).expect("groups go in `end_group` alone").shrinking.settled =
                Some(still);
            return self.say_shrink(id);
        }
        let shrinking =
            &mut self.groups.get_mut(&id).expect("groups go in `end_group` alone").shrinking;
        let (Some((tickets, _)), Some(members)) = (&mut shrinking.asked, shrinking.settled.clone())
        else {
            return;
        };
        let tickets = std::mem::take(tickets);
        if tickets.is_empty() {
            return;
        }
        let words: Vec<u64> = members.iter().map(|&r| r as u64).collect();
        let new = follows(id, &[&[1], &words[..]].concat());
        let ended = match members.contains(&self.me) {
            true => Ok(Ended::Group(new, members.clone())),
            // The others continued without this rank, which they had given up.
            false => {
                let text = "the others went on without this rank".into();
                Err(Fault { kind: FaultKind::Lost, rank: Some(self.me), text })
            }
        };
        if ended.is_ok() && !self.groups.contains_key(&new) {
            self.enter(new, members);
        }
        self.actions.extend(tickets.into_iter().map(|ticket| Action::End(ticket, ended.clone())));
        self.look_to_free(id);
    }

    /// A member that misses the deadline of a split breaks the group; one that misses that of a
    /// shrink is given up.
    pub(super) fn tick_agreement(&mut self, id: GroupId, now: Duration) {
        let Some(group) = self.groups.get(&id) else { return };
        let deadline = self.rules.deadline;
        let split = group.splitting.open.front().filter(|split| split.since + deadline <= now);
        if split.is_some() {
            let absent = |r: &usize| *r != self.me && group.splitting.said(*r) == 0;
            let rank = group.members.iter().copied().find(absent);
            let text = format!("it has not called split within {deadline:?}");
            self.break_group(id, Fault { kind: FaultKind::Lost, rank, text }, true);
        }
        let Some(group) = self.groups.get(&id) else { return };
        if group.shrinking.deadline(&self.rules).is_some_and(|until| until <= now) {
            let absent: Vec<usize> = (self.still_in(id).into_iter())
                .filter(|r| *r != self.me && !group.shrinking.said.contains_key(r))
                .collect();
            let shrinking =
                &mut self.groups.get_mut(&id).expect("groups go in `end_group` alone").shrinking;
            if let Some((_, since)) = &mut shrinking.asked {
                // A member that has announced anything is alive, and will agree in the end.
                *since = now;
            }
            for rank in absent {
                self.lost(rank, false, &format!("it has not called shrink within {deadline:?}"));
            }
        }
    }
}
