//! The protocol of members: membership, the start of calls, and the end of awaits.
//!
//! A state machine without threads, sockets or a clock: it gets events with times, and returns
//! actions ([`Action`]). `world` feeds it from sockets and the engine; tests feed it from a
//! simulated network. It has one duty: **every ticket ends**, with a result or with a
//! [`Fault`] that names the rank.
//!
//! - *Links.* Every two members have a link. A link that ends, or that is silent for too long, is a
//!   loss; a loss is told to all members, so that all come to see the same members.
//! - *Calls* (`calls`) of a group go to the engine in program order, each once its operand is
//!   complete and, if calls are compared, once all members have made the same call.
//! - *A group breaks once*, for all its members: by a loss, by calls that differ, by a failed
//!   operand, or by a deadline. All its tickets end with that fault; other groups go on.
//! - *Leaving* (`leaving`). A rank that leaves in order tells all others; a rank that drops a group
//!   tells its members. No rank waits for it afterwards.
//! - *Agreement* (`agree`). Survivors settle on one set of members for the next group, and of two
//!   parts that do not hear each other at most one continues.

mod agree;
mod calls;
mod leaving;
pub(crate) mod message;
#[cfg(all(test, not(futensor_loom)))]
pub(super) mod simulated;
#[cfg(all(test, not(futensor_loom)))]
mod tests;

use agree::{Shrinking, Splitting};
use calls::Calls;
use message::{Fault, FaultKind, GroupId, Message};
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// An await of this rank.
pub(crate) type Ticket = u64;

/// The ticket of joining.
pub(crate) const JOIN: Ticket = 0;
/// The group of all ranks.
pub(crate) const WORLD: GroupId = 1;
/// The most messages that are kept for groups that this rank has not created yet.
const EARLY_MAX: usize = 4096;
/// The most groups in one beat.
const BEAT_GROUPS: usize = 1000;
/// The most requests of one kind in one group by which a member may be ahead of this rank.
const AHEAD_MAX: usize = 1 << 20;

/// The time limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// A member that is silent for this long is lost.
    pub silence: Duration,
    /// A call that has not ended this long after it could start fails.
    pub deadline: Duration,
    /// All members must have joined within this time.
    pub arrival: Duration,
    /// Whether calls are compared before they start.
    pub compares: bool,
}

/// An action for the caller of the machine.
#[derive(Debug)]
pub(crate) enum Action {
    Send(usize, Message),
    /// Open a link to a member that listens at this address.
    Connect(usize, String),
    Close(usize),
    /// The engine may start this call.
    Go(Ticket),
    End(Ticket, Result<Ended, Fault>),
    /// Pass words from the engine of another member to this rank's engine.
    Hear(GroupId, Vec<u8>),
    /// Abort the engine's calls of this group: they are no longer awaited.
    Abort(GroupId),
    /// Free the group: all members have dropped it.
    Free(GroupId),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Ended {
    Done,
    Group(GroupId, Vec<usize>),
}

#[derive(Default)]
struct Peer {
    linked: bool,
    /// The member is given up, by this rank or another; its messages are ignored.
    gone: bool,
    /// Its link ended, here or elsewhere, as when a process ends. Otherwise the member was silent,
    /// and may continue with others that this rank does not hear.
    ended: bool,
    /// It has given this rank up, so it ends the link, and may continue with others.
    parted: bool,
    /// It has left in order.
    has_left: bool,
    heard: Duration,
    address: String,
}

struct Group {
    /// The members by their ranks in the world, in order.
    members: Vec<usize>,
    broken: Option<Fault>,
    /// The number of holders; `None` before the first.
    held: Option<usize>,
    /// Whether this rank makes no more calls in it; and the members that do not.
    let_go: bool,
    others_let_go: HashSet<usize>,
    calls: Calls,
    splitting: Splitting,
    shrinking: Shrinking,
}

pub(crate) struct Machine {
    me: usize,
    rules: Rules,
    peers: Vec<Peer>,
    groups: BTreeMap<GroupId, Group>,
    early: Vec<(usize, GroupId, Message)>,
    /// Groups that may have ended, to be checked.
    ending: Vec<GroupId>,
    /// This rank has left.
    has_left: bool,
    /// The deadline of joining, while this rank joins.
    joining: Option<Duration>,
    /// The others have given this rank up.
    expelled: Option<Fault>,
    roster: bool,
    next_ticket: Ticket,
    next_beat: Duration,
    actions: Vec<Action>,
}

impl Group {
    /// Whether an await of this group is open.
    fn is_busy(&self) -> bool {
        self.calls.tickets().chain(self.splitting.tickets()).next().is_some()
            || self.shrinking.is_awaited()
    }
}

impl Machine {
    /// The machine of this rank, which begins to join now.
    pub fn new(me: usize, size: usize, rules: Rules, now: Duration) -> Machine {
        let mut machine = Machine {
            me,
            rules,
            peers: (0..size).map(|_| Peer::default()).collect(),
            groups: BTreeMap::new(),
            early: Vec::new(),
            ending: Vec::new(),
            has_left: false,
            joining: Some(now + rules.arrival),
            expelled: None,
            roster: false,
            next_ticket: JOIN + 1,
            next_beat: now,
            actions: Vec::new(),
        };
        machine.all_linked();
        machine
    }

    /// A peer is linked, and listens at this address.
    pub fn linked(&mut self, rank: usize, address: String, now: Duration) {
        let peer = &mut self.peers[rank];
        if peer.gone || peer.linked {
            return self.actions.push(Action::Close(rank));
        }
        *peer = Peer { linked: true, heard: now, address, ..Peer::default() };
        if self.has_left {
            return self.say_bye(rank);
        }
        self.all_linked();
    }

    /// Checks whether this rank has joined.
    fn all_linked(&mut self) {
        if self.joining.is_none() || self.others().any(|r| !self.peers[r].linked) {
            return;
        }
        if self.me == 0 && !self.roster {
            self.roster = true;
            let addresses: Vec<String> = self.peers.iter().map(|p| p.address.clone()).collect();
            self.send_to(self.others().collect(), &Message::Roster { addresses });
        }
        self.joining = None;
        let members: Vec<usize> = (0..self.peers.len()).collect();
        self.enter(WORLD, members.clone());
        self.actions.push(Action::End(JOIN, Ok(Ended::Group(WORLD, members))));
    }

    /// Fails the join.
    pub fn fail_join(&mut self, fault: Fault) {
        if self.joining.take().is_some() {
            self.send_to(
                self.others().collect(),
                &Message::Broke { group: WORLD, fault: fault.clone() },
            );
            self.actions.push(Action::End(JOIN, Err(fault)));
        }
    }

    /// A message of a peer has arrived.
    pub fn heard(&mut self, from: usize, message: Message, now: Duration) {
        if self.peers[from].gone {
            self.peers[from].parted |=
                matches!(&message, Message::Lost { rank, .. } if *rank == self.me);
            return;
        }
        self.peers[from].heard = now;
        let group = match &message {
            Message::Beat { calls } => return self.count(from, calls),
            Message::Roster { addresses } => return self.called_on(from, addresses),
            Message::Lost { rank, text, .. } if *rank == self.me => return self.expel(from, text),
            Message::Lost { rank, ended, text } if *rank < self.peers.len() => {
                return self.lost(*rank, *ended, text);
            }
            Message::Bye { calls } => return self.hears_bye(from, calls),
            Message::Broke { group: WORLD, fault } if self.joining.is_some() => {
                return self.fail_join(fault.clone());
            }
            Message::Called { group, .. }
            | Message::Broke { group, .. }
            | Message::Split { group, .. }
            | Message::LetGo { group, .. }
            | Message::Words { group, .. }
            | Message::Shrink { group, .. } => *group,
            Message::Lost { .. } => return,
        };
        match self.groups.get(&group) {
            Some(known) if known.members.contains(&from) => self.heard_in(group, from, message),
            Some(_) => {}
            None if self.early.len() < EARLY_MAX => self.early.push((from, group, message)),
            None => {}
        }
    }

    fn heard_in(&mut self, group: GroupId, from: usize, message: Message) {
        match message {
            Message::Called { lane, seq, text, .. } => self.called(group, from, lane, seq, text),
            Message::Broke { fault, .. } => self.break_group(group, fault, false),
            Message::Split { seq, color, .. } => self.heard_split(group, from, seq, color),
            Message::LetGo { calls, .. } => self.lets_go(from, group, calls),
            Message::Shrink { lost, settled, .. } => self.heard_shrink(group, from, lost, settled),
            Message::Words { words, .. } => self.actions.push(Action::Hear(group, words)),
            _ => {}
        }
    }

    /// Rank 0 sends the addresses: this rank connects to the ranks between 0 and itself.
    fn called_on(&mut self, from: usize, addresses: &[String]) {
        if from != 0 || self.roster || addresses.len() != self.peers.len() {
            return;
        }
        self.roster = true;
        self.actions.extend((1..self.me).map(|r| Action::Connect(r, addresses[r].clone())));
    }

    /// A link has ended, or could not be made.
    pub fn closed(&mut self, rank: usize, why: &str) {
        self.lost(rank, !self.peers[rank].parted, why);
    }

    /// The others have given this rank up, since it was silent for too long; it must not continue
    /// anywhere. A member that still hears this rank, but not the others, would otherwise wait for
    /// its messages for ever.
    fn expel(&mut self, by: usize, why: &str) {
        self.part(format!("rank {by} has given it up: {why}"));
    }

    /// Separates this rank from all others: every await ends, and the others give it up.
    pub fn part(&mut self, text: String) {
        let fault = Fault { kind: FaultKind::Lost, rank: Some(self.me), text: text.clone() };
        if self.expelled.is_none() {
            let others = self.others().filter(|&r| !self.is_out(r)).collect();
            self.send_to(others, &Message::Lost { rank: self.me, ended: true, text });
            self.expelled = Some(fault.clone());
        }
        self.fail_join(fault.clone());
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.break_group(id, fault.clone(), false);
            self.end_shrink(id, fault.clone());
        }
    }

    /// Gives a member up: all groups with it break, and all members are told, also the lost one, in
    /// case it lives.
    fn lost(&mut self, rank: usize, ended: bool, why: &str) {
        let peer = &mut self.peers[rank];
        let news = ended && !peer.ended;
        peer.ended |= ended;
        if rank == self.me || peer.gone && !news {
            return;
        }
        if !peer.has_left && self.expelled.is_none() {
            let others = self.others().filter(|&r| !self.is_out(r)).collect();
            self.send_to(others, &Message::Lost { rank, ended, text: why.into() });
        }
        if self.peers[rank].gone {
            return self.members_changed(rank);
        }
        self.peers[rank].gone = true;
        self.actions.push(Action::Close(rank));
        let fault = Fault { kind: FaultKind::Lost, rank: Some(rank), text: why.into() };
        self.fail_join(fault.clone());
        // The links of members that have left in order end without a loss.
        let in_order = self.has_left && self.peers[rank].has_left;
        for id in self.groups_with(rank) {
            if !in_order {
                self.break_group(id, fault.clone(), false);
            }
            self.look_to_free(id);
        }
        self.members_changed(rank);
    }

    /// Makes a group unusable. Its members are told, unless they detect the fault themselves.
    fn break_group(&mut self, id: GroupId, fault: Fault, tell: bool) {
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.broken.is_none()) else {
            return;
        };
        group.broken = Some(fault.clone());
        if group.let_go {
            return;
        }
        let ended = group.calls.tickets().chain(group.splitting.tickets()).collect::<Vec<_>>();
        group.calls.clear();
        group.splitting.clear();
        self.ending.push(id);
        self.actions.push(Action::Abort(id));
        self.actions
            .extend(ended.into_iter().map(|ticket| Action::End(ticket, Err(fault.clone()))));
        if tell {
            let members = self.members_but_me(id);
            self.send_to(members, &Message::Broke { group: id, fault });
        }
    }

    /// Sends words of the engine to the other members of a group.
    pub fn say(&mut self, id: GroupId, words: Vec<u8>) {
        self.send_to(self.members_but_me(id), &Message::Words { group: id, words });
    }

    /// The fault that broke a group.
    #[cfg(all(test, not(futensor_loom)))]
    fn fault(&self, id: GroupId) -> Option<&Fault> {
        self.groups.get(&id)?.broken.as_ref()
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) {
        if self.joining.is_some_and(|until| until <= now) {
            let missing = self.others().find(|&r| !self.peers[r].linked);
            let text = format!("it has not come within {:?}", self.rules.arrival);
            self.fail_join(Fault { kind: FaultKind::Lost, rank: missing, text });
        }
        for rank in self.others().collect::<Vec<_>>() {
            let peer = &self.peers[rank];
            if peer.linked && !self.is_out(rank) && peer.heard + self.rules.silence <= now {
                self.lost(
                    rank,
                    false,
                    &format!("nothing was heard of it for {:?}", self.rules.silence),
                );
            }
        }
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.tick_calls(id, now);
            self.tick_agreement(id, now);
        }
        if self.next_beat <= now {
            self.next_beat = now + self.beat();
            for rank in self.others().collect::<Vec<_>>() {
                if self.peers[rank].linked && !self.peers[rank].gone {
                    let calls = self.news_for(rank);
                    self.actions.push(Action::Send(rank, Message::Beat { calls }));
                }
            }
        }
    }

    /// When [`tick`](Self::tick) is due again.
    pub fn next(&self) -> Duration {
        let heard = |r: &usize| self.peers[*r].linked && !self.is_out(*r);
        let silence = self.others().filter(heard).map(|r| self.peers[r].heard + self.rules.silence);
        let groups = self.groups.values().flat_map(|group| self.deadlines(group));
        silence.chain(groups).chain(self.joining).fold(self.next_beat, Duration::min)
    }

    fn beat(&self) -> Duration {
        (self.rules.silence / 5).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }

    fn deadlines(&self, group: &Group) -> impl Iterator<Item = Duration> {
        let calls = group.calls.deadline(&self.rules);
        calls
            .into_iter()
            .chain(group.splitting.deadline(&self.rules))
            .chain(group.shrinking.deadline(&self.rules))
    }

    /// Creates a group, and handles messages that arrived for it before.
    fn enter(&mut self, id: GroupId, members: Vec<usize>) {
        let group = Group {
            members,
            broken: None,
            held: None,
            let_go: false,
            others_let_go: HashSet::new(),
            calls: Calls::default(),
            splitting: Splitting::default(),
            shrinking: Shrinking::default(),
        };
        self.groups.insert(id, group);
        let (now, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.early).into_iter().partition(|(_, group, _)| *group == id);
        self.early = later;
        for (from, _, message) in now {
            if !self.peers[from].gone && self.groups[&id].members.contains(&from) {
                self.heard_in(id, from, message);
            }
        }
        let gone = self.groups[&id].members.iter().copied().find(|&r| self.peers[r].gone);
        if let Some(rank) = gone {
            let text = "it was lost before the group came to be".into();
            self.break_group(id, Fault { kind: FaultKind::Lost, rank: Some(rank), text }, false);
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.peers.len()).filter(move |&r| r != me)
    }

    /// Whether a member is lost or has left.
    fn is_out(&self, rank: usize) -> bool {
        self.peers[rank].gone || self.peers[rank].has_left
    }

    fn groups_with(&self, rank: usize) -> Vec<GroupId> {
        let with = self.groups.iter().filter(|(_, group)| group.members.contains(&rank));
        with.map(|(id, _)| *id).collect()
    }

    fn members_but_me(&self, id: GroupId) -> Vec<usize> {
        let members = self.groups.get(&id).map_or(&[][..], |group| &group.members);
        members.iter().copied().filter(|&r| r != self.me).collect()
    }

    fn send_to(&mut self, ranks: Vec<usize>, message: &Message) {
        for rank in ranks {
            if self.peers[rank].linked && !self.peers[rank].gone {
                self.actions.push(Action::Send(rank, message.clone()));
            }
        }
    }
}

/// The id of a group that follows from another: the same on all its members.
fn follows(parent: GroupId, what: &[u64]) -> GroupId {
    // FNV-1a over words: it contains no secret, and a collision needs about 2^32 groups.
    what.iter().fold(parent ^ 0xcbf2_9ce4_8422_2325, |hash, word| {
        word.to_le_bytes().iter().fold(hash, |h, b| (h ^ *b as u64).wrapping_mul(0x100_0000_01b3))
    })
}
