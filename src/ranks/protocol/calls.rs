//! The calls of a group: they are counted, compared, started in program order, and ended.
//!
//! The cost of a call does not grow with the number of queued calls: a call is looked at when it is
//! made, when a member announces the same call, when its operand is complete, and when it
//! completes.

use super::message::{Counts, Fault, FaultKind, GroupId, Lane, Message, clipped};
use super::{AHEAD_MAX, Action, BEAT_GROUPS, Ended, Group, Machine, Rules, Ticket};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

/// How long an error of the engine waits for a loss that explains it: the engine may notice a loss
/// before the link does.
const EXPLAINED: Duration = Duration::from_secs(1);

struct Call {
    lane: Lane,
    /// The number of the call in its lane.
    seq: u64,
    text: String,
    /// Whether its operand is complete.
    is_ready: bool,
    /// The number of members that have not announced the same call; unused if calls are
    /// not compared.
    missing: usize,
}

/// Calls that have not ended, in program order.
#[derive(Default)]
struct Open {
    calls: BTreeMap<Ticket, Call>,
    /// The number of calls that were looked at.
    #[cfg(all(test, not(futensor_loom)))]
    looked: std::cell::Cell<u64>,
}

impl Open {
    fn look(&self) {
        #[cfg(all(test, not(futensor_loom)))]
        self.looked.set(self.looked.get() + 1);
    }

    fn get(&mut self, ticket: Ticket) -> Option<&mut Call> {
        self.look();
        self.calls.get_mut(&ticket)
    }

    /// The calls from a ticket on.
    fn from(&self, ticket: Ticket) -> impl Iterator<Item = (Ticket, &Call)> {
        self.calls.range(ticket..).inspect(|_| self.look()).map(|(ticket, call)| (*ticket, call))
    }
}

/// This rank's calls in a lane.
#[derive(Default)]
struct Made {
    count: u64,
    /// The last calls, which not all members have announced yet.
    open: VecDeque<Ticket>,
}

/// A group's calls, as one of its members sees them.
#[derive(Default)]
pub(super) struct Calls {
    open: Open,
    /// The first call that has not been started is this one or a later one.
    next: Ticket,
    made: HashMap<Lane, Made>,
    /// Calls with complete operands, and since when; the first of them has not ended.
    waiting: VecDeque<(Duration, Ticket)>,
    /// The engine's error of the first failed call, and its time.
    failed: Option<(String, Duration)>,
    /// The numbers of calls that the others have made, and that they were told of.
    heard: HashMap<usize, Counts>,
    told: HashMap<usize, Counts>,
    /// The texts of the others' calls that this rank has not made yet, by rank and lane.
    texts: HashMap<(usize, usize), VecDeque<String>>,
    /// The numbers of calls whose texts the others have sent.
    said: HashMap<usize, Counts>,
}

impl Calls {
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.open.calls.keys().copied()
    }

    pub fn clear(&mut self) {
        let (made, heard, told) = (&mut self.made, &mut self.heard, &mut self.told);
        let (made, heard, told) =
            (std::mem::take(made), std::mem::take(heard), std::mem::take(told));
        *self = Calls { made, heard, told, ..Calls::default() };
    }

    pub fn deadline(&self, rules: &Rules) -> Option<Duration> {
        let late = self.waiting.front().map(|(since, _)| *since + rules.deadline);
        let failed = self.failed.as_ref().map(|(_, since)| *since + EXPLAINED);
        late.into_iter().chain(failed).min()
    }

    /// The number of calls that were looked at since the group was created.
    #[cfg(all(test, not(futensor_loom)))]
    pub fn looked(&self) -> u64 {
        self.open.looked.get()
    }

    fn counts(&self, rank: usize) -> Counts {
        [Lane::All, Lane::Send(rank), Lane::Recv(rank)]
            .map(|lane| self.made.get(&lane).map_or(0, |m| m.count))
    }

    /// The number of calls by `rank` that match the calls of this lane.
    fn met(&self, lane: Lane, rank: usize) -> u64 {
        let counts = self.heard.get(&rank).copied().unwrap_or_default();
        counts[lane_there(lane)]
    }

    /// Removes a call that has ended.
    fn remove(&mut self, ticket: Ticket) -> Option<Call> {
        let call = self.open.calls.remove(&ticket);
        while self.waiting.front().is_some_and(|(_, first)| !self.open.calls.contains_key(first)) {
            self.waiting.pop_front();
        }
        call
    }
}

/// The lane of another member's calls that match the calls of this lane.
fn lane_there(lane: Lane) -> usize {
    match lane {
        Lane::All => 0,
        Lane::Send(_) => 2,
        Lane::Recv(_) => 1,
    }
}

impl Machine {
    /// Adds a call, with a text that is the same on every rank; the ranks of a lane are ranks of
    /// the world. It may start after [`ready`](Self::ready).
    ///
    /// # Errors
    /// The group is unusable.
    pub fn call(&mut self, id: GroupId, lane: Lane, mut text: String) -> Result<Ticket, Fault> {
        // The others compare only this much of it.
        text.truncate(clipped(&text).len());
        let ticket = self.ticket();
        let involved = self.involved(id, lane);
        let compares = self.rules.compares;
        let group = self.groups.get_mut(&id).expect("a group is kept while somebody holds it");
        if let Some(fault) = &group.broken {
            return Err(fault.clone());
        }
        let calls = &mut group.calls;
        let made = calls.made.entry(lane).or_default();
        let seq = made.count;
        made.count += 1;
        if compares {
            made.open.push_back(ticket);
        }
        let missing = if compares { involved.len() } else { 0 };
        let own = text.clone();
        calls.open.calls.insert(ticket, Call { lane, seq, text, is_ready: false, missing });
        if let Some(rank) =
            involved.iter().copied().find(|&rank| self.is_through(id, rank, lane, seq))
        {
            return Err(self.break_left(id, rank, Some(ticket)));
        }
        if !compares {
            return Ok(ticket);
        }
        let said = match lane {
            Lane::All => 0,
            Lane::Send(_) => 1,
            Lane::Recv(_) => 2,
        };
        self.send_to(involved.clone(), &Message::Called { group: id, lane: said, seq, text: own });
        for rank in involved {
            let calls =
                &mut self.groups.get_mut(&id).expect("groups go in `end_group` alone").calls;
            let texts = calls.texts.get_mut(&(rank, lane_there(lane)));
            if let Some(text) = texts.and_then(VecDeque::pop_front) {
                self.compare(id, ticket, rank, &text);
            }
        }
        Ok(ticket)
    }

    /// The members that a call of this lane needs.
    fn involved(&self, id: GroupId, lane: Lane) -> Vec<usize> {
        match lane {
            Lane::All => self.members_but_me(id),
            Lane::Send(rank) | Lane::Recv(rank) => vec![rank],
        }
    }

    /// The operand of a call is complete.
    pub fn ready(&mut self, id: GroupId, ticket: Ticket, now: Duration) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(call) = group.calls.open.get(ticket).filter(|call| !call.is_ready) else { return };
        call.is_ready = true;
        group.calls.waiting.push_back((now, ticket));
        self.go(id);
    }

    /// The operand of a call has failed.
    pub fn operand_failed(&mut self, id: GroupId, ticket: Ticket, text: String) {
        if self.groups.get_mut(&id).is_some_and(|group| group.calls.open.get(ticket).is_some()) {
            self.spoil(id, text);
        }
    }

    /// Breaks the group for a call that cannot be made here, so that the others do not wait for it.
    pub fn spoil(&mut self, id: GroupId, text: String) {
        let fault = Fault { kind: FaultKind::Operand, rank: Some(self.me), text };
        self.break_group(id, fault, true);
    }

    /// The engine has completed a call, or has failed.
    pub fn done(&mut self, id: GroupId, ticket: Ticket, result: Result<(), String>, now: Duration) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.calls.open.get(ticket).is_none() {
            return;
        }
        match result {
            Ok(()) => {
                group.calls.remove(ticket);
                self.actions.push(Action::End(ticket, Ok(Ended::Done)));
                self.look_to_free(id);
            }
            Err(text) => drop(group.calls.failed.get_or_insert((text, now))),
        }
    }

    /// Starts the calls that may start, in order.
    fn go(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let calls = &mut group.calls;
        for (ticket, call) in calls.open.from(calls.next) {
            if !call.is_ready || call.missing > 0 {
                break;
            }
            calls.next = ticket + 1;
            self.actions.push(Action::Go(ticket));
        }
    }

    /// A member has made a call.
    pub(super) fn called(&mut self, id: GroupId, from: usize, lane: u8, seq: u64, text: String) {
        let (me, there) = (self.me, lane as usize);
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.broken.is_none()) else {
            return;
        };
        // Ignores messages that a well-behaved member never sends: texts come only if calls are
        // compared, and in sequence.
        let own = match lane {
            _ if !self.rules.compares => return,
            0 => Lane::All,
            1 => Lane::Recv(from),
            2 => Lane::Send(from),
            _ => return,
        };
        let calls = &mut group.calls;
        let said = &mut calls.said.entry(from).or_default()[there];
        if *said != seq {
            return;
        }
        *said += 1;
        let heard = &mut calls.heard.entry(from).or_default()[there];
        *heard = (*heard).max(seq + 1);
        let made = calls.made.entry(own).or_default();
        if let Some(behind) = made.count.checked_sub(seq + 1) {
            let Some(at) = (made.open.len() as u64).checked_sub(behind + 1) else { return };
            let ticket = made.open[at as usize];
            return self.compare(id, ticket, from, &text);
        }
        let texts = calls.texts.entry((from, there)).or_default();
        texts.push_back(text);
        if texts.len() > AHEAD_MAX {
            let text = format!("it is {AHEAD_MAX} calls ahead of rank {}", group.place(me));
            self.break_group(id, Fault { kind: FaultKind::Calls, rank: Some(from), text }, true);
        }
    }

    /// Compares a call with the text of the member's call that should match it.
    fn compare(&mut self, id: GroupId, ticket: Ticket, rank: usize, text: &str) {
        let me = self.me;
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(call) = group.calls.open.get(ticket) else { return };
        if call.text != text {
            let own = call.text.clone();
            // The same message on every rank.
            let mut two = [(group.place(me), &own[..]), (group.place(rank), text)];
            two.sort();
            let [(a, one), (b, other)] = two;
            let text = format!("calls differ: rank {a} calls {one}, rank {b} calls {other}");
            return self.break_group(
                id,
                Fault { kind: FaultKind::Calls, rank: Some(rank), text },
                true,
            );
        }
        call.missing -= 1;
        if call.missing > 0 {
            return;
        }
        // Each member announces its calls in order, so calls become complete in that order.
        let lane = call.lane;
        if let Some(made) = group.calls.made.get_mut(&lane) {
            made.open.pop_front();
        }
        self.go(id);
    }

    /// A member announces how many calls it has made.
    pub(super) fn count(&mut self, from: usize, calls: &[(GroupId, Counts)]) {
        for (id, counts) in calls {
            if let Some(group) =
                self.groups.get_mut(id).filter(|group| group.members.contains(&from))
            {
                let heard = group.calls.heard.entry(from).or_default();
                (0..3).for_each(|i| heard[i] = heard[i].max(counts[i]));
            }
        }
    }

    /// The numbers of this rank's calls that concern another rank.
    pub(super) fn counts_for(&self, id: GroupId, rank: usize) -> Counts {
        self.groups.get(&id).map_or([0; 3], |group| group.calls.counts(rank))
    }

    /// Counts that a member was not told of.
    pub(super) fn news_for(&mut self, rank: usize) -> Vec<(GroupId, Counts)> {
        let mut news = Vec::new();
        for (id, group) in self.groups.iter_mut().filter(|(_, group)| group.members.contains(&rank))
        {
            let counts = group.calls.counts(rank);
            let told = group.calls.told.entry(rank).or_default();
            if *told != counts && news.len() < BEAT_GROUPS {
                *told = counts;
                news.push((*id, counts));
            }
        }
        news
    }

    /// Whether a member that this call needs makes no more calls in the group, without having made
    /// this one.
    fn is_through(&self, id: GroupId, rank: usize, lane: Lane, seq: u64) -> bool {
        self.makes_no_more(id, rank) && self.groups[&id].calls.met(lane, rank) <= seq
    }

    /// Breaks a group that waits for a call of a member that has left or dropped the
    /// group.
    pub(super) fn look_for_left(&mut self, id: GroupId, rank: usize) {
        let Some(group) = self.groups.get(&id).filter(|group| group.broken.is_none()) else {
            return;
        };
        if !self.makes_no_more(id, rank) {
            return;
        }
        let needs = |call: &Call| match call.lane {
            Lane::All => true,
            Lane::Send(other) | Lane::Recv(other) => other == rank,
        };
        let waits = |call: &Call| needs(call) && group.calls.met(call.lane, rank) <= call.seq;
        if group.splitting.waits_for(rank) || group.calls.open.from(0).any(|(_, call)| waits(call))
        {
            self.break_left(id, rank, None);
        }
    }

    /// Breaks a group for a member that makes no more calls in it. The call that has just been made
    /// gets the fault directly, not by its await.
    pub(super) fn break_left(&mut self, id: GroupId, rank: usize, asked: Option<Ticket>) -> Fault {
        let text =
            if self.peers[rank].has_left { "it has left" } else { "it has dropped the group" };
        let fault = Fault { kind: FaultKind::Lost, rank: Some(rank), text: text.into() };
        self.break_group(id, fault.clone(), false);
        self.actions.retain(|action| !matches!(action, Action::End(t, _) if Some(*t) == asked));
        fault
    }

    /// Handles deadlines of calls, and errors of the engine without an explanation.
    pub(super) fn tick_calls(&mut self, id: GroupId, now: Duration) {
        let Some(group) = self.groups.get(&id) else { return };
        let failed = group.calls.failed.as_ref().filter(|(_, since)| *since + EXPLAINED <= now);
        if let Some((text, _)) = failed {
            let fault = Fault { kind: FaultKind::Engine, rank: Some(self.me), text: text.clone() };
            return self.break_group(id, fault, true);
        }
        let deadline = self.rules.deadline;
        let late = group.calls.waiting.front().filter(|(since, _)| *since + deadline <= now);
        let Some(late) = late.and_then(|(_, ticket)| group.calls.open.calls.get(ticket)) else {
            return;
        };
        let involved = self.involved(id, late.lane);
        let absent =
            involved.into_iter().find(|&rank| group.calls.met(late.lane, rank) <= late.seq);
        let text = match absent {
            Some(_) => format!("it has not called {} within {deadline:?}", late.text),
            None => format!(
                "{} did not complete within {deadline:?}, though all members have called it",
                late.text
            ),
        };
        self.break_group(id, Fault { kind: FaultKind::Lost, rank: absent, text }, true);
    }
}

impl Group {
    /// A member's rank in this group.
    fn place(&self, rank: usize) -> usize {
        self.members.iter().position(|&member| member == rank).unwrap_or(rank)
    }
}
