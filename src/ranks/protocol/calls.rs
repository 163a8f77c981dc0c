//! Calls of a group: counted, compared, started in program order, and ended.

use super::message::{Counts, Fault, FaultKind, GroupId, Lane, Message};
use super::{Action, BEAT_GROUPS, Ended, Machine, Rules, Ticket};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// How long an error of the engine waits for a loss that explains it: the engine may see one
/// before the link does.
const EXPLAINED: Duration = Duration::from_secs(1);

struct Call {
    ticket: Ticket,
    lane: Lane,
    /// Its number in its lane.
    seq: u64,
    text: String,
    /// Since when its operand is there.
    ready: Option<Duration>,
    /// All others have made the same call, or nobody asks.
    agreed: bool,
    went: bool,
    /// What the engine said, and when.
    failed: Option<(String, Duration)>,
}

/// A group's calls, as one of its members sees them.
#[derive(Default)]
pub(super) struct Calls {
    open: VecDeque<Call>,
    made: HashMap<Lane, u64>,
    /// How many the others have made, and how many they were told of.
    heard: HashMap<usize, Counts>,
    told: HashMap<usize, Counts>,
    /// Of the others' calls that this rank has not made yet: number and words, by rank and lane.
    texts: HashMap<(usize, u8), VecDeque<(u64, String)>>,
}

impl Calls {
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.open.iter().map(|call| call.ticket)
    }

    pub fn clear(&mut self) {
        self.open.clear();
        self.texts.clear();
    }

    pub fn deadline(&self, rules: &Rules) -> Option<Duration> {
        let late = self.open.iter().filter_map(|call| Some(call.ready? + rules.deadline));
        let failed = self.open.iter().filter_map(|call| Some(call.failed.as_ref()?.1 + EXPLAINED));
        late.chain(failed).min()
    }

    fn counts(&self, rank: usize) -> Counts {
        [Lane::All, Lane::Send(rank), Lane::Recv(rank)].map(|lane| self.made.get(&lane).copied().unwrap_or(0))
    }

    /// How many calls that meet those of this lane `rank` has made.
    fn met(&self, lane: Lane, rank: usize) -> u64 {
        let counts = self.heard.get(&rank).copied().unwrap_or_default();
        counts[lane_there(lane)]
    }
}

/// The lane of the others' calls that meet those of this one.
fn lane_there(lane: Lane) -> usize {
    match lane {
        Lane::All => 0,
        Lane::Send(_) => 2,
        Lane::Recv(_) => 1,
    }
}

impl Machine {
    /// A call, in words that are the same wherever it is made; the ranks of a lane are the world's.
    /// It goes once [`ready`](Self::ready) says so.
    ///
    /// # Errors
    /// Nothing comes of the group any more.
    pub fn call(&mut self, id: GroupId, lane: Lane, text: String) -> Result<Ticket, Fault> {
        let compares = self.rules.compares;
        let ticket = self.ticket();
        let group = self.groups.get_mut(&id).expect("a group is kept while somebody holds it");
        if let Some(fault) = &group.broken {
            return Err(fault.clone());
        }
        let made = group.calls.made.entry(lane).or_default();
        let seq = *made;
        *made += 1;
        let (agreed, own) = (!compares, text.clone());
        group.calls.open.push_back(Call {
            ticket,
            lane,
            seq,
            text,
            ready: None,
            agreed,
            went: false,
            failed: None,
        });
        self.look_for_left(id);
        if let Some(fault) = self.groups[&id].broken.clone() {
            // It has got its end like the others'; the caller gets it at once.
            self.actions.retain(|action| !matches!(action, Action::End(t, _) if *t == ticket));
            return Err(fault);
        }
        if compares {
            let said = match lane {
                Lane::All => 0,
                Lane::Send(_) => 1,
                Lane::Recv(_) => 2,
            };
            self.send_to(self.involved(id, lane), &Message::Called { group: id, lane: said, seq, text: own });
            self.compare(id);
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

    /// A call's operand is there.
    pub fn ready(&mut self, id: GroupId, ticket: Ticket, now: Duration) {
        let Some(call) = self.find(id, ticket) else { return };
        call.ready = Some(now);
        self.go(id);
    }

    /// What a call was to bring has failed.
    pub fn operand_failed(&mut self, id: GroupId, ticket: Ticket, text: String) {
        if self.find(id, ticket).is_some() {
            self.spoil(id, text);
        }
    }

    /// A call that cannot be made here: the others' would wait for it.
    pub fn spoil(&mut self, id: GroupId, text: String) {
        let fault = Fault { kind: FaultKind::Operand, rank: Some(self.me), text };
        self.break_group(id, fault, true);
    }

    /// The engine is through with a call, or has failed.
    pub fn done(&mut self, id: GroupId, ticket: Ticket, result: Result<(), String>, now: Duration) {
        let Some(call) = self.find(id, ticket) else { return };
        match result {
            Ok(()) => {
                let calls = &mut self.groups.get_mut(&id).expect("groups go in `free_left` alone").calls.open;
                calls.retain(|call| call.ticket != ticket);
                self.actions.push(Action::End(ticket, Ok(Ended::Done)));
            }
            Err(text) => call.failed = Some((text, now)),
        }
    }

    fn find(&mut self, id: GroupId, ticket: Ticket) -> Option<&mut Call> {
        self.groups.get_mut(&id)?.calls.open.iter_mut().find(|call| call.ticket == ticket)
    }

    /// Lets go what may, in order.
    fn go(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        for call in group.calls.open.iter_mut().skip_while(|call| call.went) {
            if call.ready.is_none() || !call.agreed {
                break;
            }
            call.went = true;
            self.actions.push(Action::Go(call.ticket));
        }
    }

    /// A member has made a call.
    pub(super) fn called(&mut self, id: GroupId, from: usize, lane: u8, seq: u64, text: String) {
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.broken.is_none()) else { return };
        // What no member says counts for nothing.
        let Some(made) = seq.checked_add(1).filter(|_| lane <= 2) else { return };
        let heard = &mut group.calls.heard.entry(from).or_default()[lane as usize];
        *heard = (*heard).max(made);
        group.calls.texts.entry((from, lane)).or_default().push_back((seq, text));
        self.compare(id);
    }

    /// Compares this rank's calls with what the others have said of theirs.
    fn compare(&mut self, id: GroupId) {
        let me = self.me;
        let Some(group) = self.groups.get(&id) else { return };
        let mut differs = None;
        let mut agreed = Vec::new();
        for call in group.calls.open.iter().filter(|call| !call.agreed) {
            let lane = lane_there(call.lane) as u8;
            let mut all = true;
            for rank in self.involved(id, call.lane) {
                let texts = group.calls.texts.get(&(rank, lane));
                match texts.and_then(|texts| texts.iter().find(|(seq, _)| *seq == call.seq)) {
                    None => all = false,
                    Some((_, text)) if *text != call.text => {
                        let place = |r: usize| group.members.iter().position(|&m| m == r).unwrap_or(r);
                        // The same words on every rank.
                        let mut two = [(place(me), &call.text), (place(rank), text)];
                        two.sort();
                        let [(a, one), (b, other)] = two;
                        differs = Some((
                            rank,
                            format!("calls differ: rank {a} asks for {one}, rank {b} for {other}"),
                        ));
                    }
                    Some(_) => {}
                }
            }
            if all {
                agreed.push(call.ticket);
            }
        }
        if let Some((rank, text)) = differs {
            return self.break_group(id, Fault { kind: FaultKind::Calls, rank: Some(rank), text }, true);
        }
        for ticket in agreed {
            let Some(call) = self.find(id, ticket) else { continue };
            call.agreed = true;
            let (lane, seq) = (call.lane, call.seq);
            let ranks = self.involved(id, lane);
            let texts = &mut self.groups.get_mut(&id).expect("groups go in `free_left` alone").calls.texts;
            for rank in ranks {
                if let Some(texts) = texts.get_mut(&(rank, lane_there(lane) as u8)) {
                    texts.retain(|(number, _)| *number != seq);
                }
            }
        }
        self.go(id);
    }

    /// A member says how many calls it has made.
    pub(super) fn count(&mut self, from: usize, calls: &[(GroupId, Counts)]) {
        for (id, counts) in calls {
            if let Some(group) = self.groups.get_mut(id) {
                let heard = group.calls.heard.entry(from).or_default();
                (0..3).for_each(|i| heard[i] = heard[i].max(counts[i]));
            }
        }
    }

    /// How many calls this rank has made that concern another.
    pub(super) fn counts_for(&self, id: GroupId, rank: usize) -> Counts {
        self.groups.get(&id).map_or([0; 3], |group| group.calls.counts(rank))
    }

    /// Counts that a member was not told of.
    pub(super) fn news_for(&mut self, rank: usize) -> Vec<(GroupId, Counts)> {
        let mut news = Vec::new();
        for (id, group) in self.groups.iter_mut().filter(|(_, group)| group.members.contains(&rank)) {
            let counts = group.calls.counts(rank);
            let told = group.calls.told.entry(rank).or_default();
            if *told != counts && news.len() < BEAT_GROUPS {
                *told = counts;
                news.push((*id, counts));
            }
        }
        news
    }

    /// Breaks a group that waits for a call of a member that left before it made it.
    pub(super) fn look_for_left(&mut self, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        let left = group.calls.open.iter().find_map(|call| {
            let gone = |rank: &usize| {
                self.peers[*rank].left.is_some() && group.calls.met(call.lane, *rank) <= call.seq
            };
            self.involved(id, call.lane).into_iter().find(gone)
        });
        if let Some(rank) = left {
            let fault = Fault { kind: FaultKind::Lost, rank: Some(rank), text: "it has left".into() };
            self.break_group(id, fault, false);
        }
    }

    /// Deadlines of calls, and errors of the engine that nothing explains.
    pub(super) fn tick_calls(&mut self, id: GroupId, now: Duration) {
        let Some(group) = self.groups.get(&id) else { return };
        let failed = group.calls.open.iter().find_map(|call| {
            let (text, since) = call.failed.as_ref()?;
            (*since + EXPLAINED <= now).then(|| text.clone())
        });
        if let Some(text) = failed {
            let fault = Fault { kind: FaultKind::Engine, rank: Some(self.me), text };
            return self.break_group(id, fault, true);
        }
        let deadline = self.rules.deadline;
        let is_late = |call: &&Call| call.ready.is_some_and(|ready| ready + deadline <= now);
        let Some(late) = group.calls.open.iter().find(is_late) else { return };
        let involved = self.involved(id, late.lane);
        let absent = involved.into_iter().find(|&rank| group.calls.met(late.lane, rank) <= late.seq);
        let text = match absent {
            Some(_) => format!("it has not come to {} within {deadline:?}", late.text),
            None => format!("{} was not through within {deadline:?}, though all have come to it", late.text),
        };
        self.break_group(id, Fault { kind: FaultKind::Lost, rank: absent, text }, true);
    }
}
