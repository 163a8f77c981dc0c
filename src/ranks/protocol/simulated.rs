//! Members on a simulated network, with delays, reordering between peers, and losses, by a seed.
//!
//! Time is virtual. A link keeps the order of its messages and delays each of them. A member may be
//! killed (its sent messages may or may not arrive), stopped for ever, stopped for a while, or
//! silently cut off from one or several others. The engine is a stand-in: a call completes a while
//! after all calls that it needs were started. Each member runs a program drawn from the seed:
//! collective calls, sends and receives, splits, and a shrink after a group broke, including calls
//! that differ and operands that fail. The test then checks that every ticket of a live member has
//! ended, that calls were started in order, that survivors agreed on the same members, and that
//! nothing failed without a fault.

use super::message::{FaultKind, GroupId, Lane, Message};
use super::*;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};

/// splitmix64.
pub(crate) struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A message arrives on the link from one member to another.
    Arrives(usize, usize),
    Tick(usize),
    Step(usize),
    Ready(usize, GroupId, Ticket),
    Through(usize, GroupId, Ticket),
    Strike,
    Resume(usize),
    /// A time after a member was killed by which all members must know.
    Known(usize, Duration),
}

enum Parcel {
    Link,
    Bytes(Vec<u8>),
    End,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Life {
    Lives,
    Stopped,
    Dead,
}

struct Member {
    machine: Machine,
    life: Life,
    /// Events that arrived while the member was stopped.
    missed: Vec<Event>,
    group: Option<GroupId>,
    members: Vec<usize>,
    open: HashMap<Ticket, (GroupId, Lane, u64)>,
    since: HashMap<Ticket, Duration>,
    awaits: HashSet<Ticket>,
    /// The ticket that its program waits for.
    waits: Option<Ticket>,
    steps: u32,
    made: HashMap<(GroupId, Lane), u64>,
    last_go: HashMap<GroupId, Ticket>,
    settled: HashMap<GroupId, (GroupId, Vec<usize>)>,
    shrinking: Option<(Ticket, GroupId)>,
    failed: u32,
    groups: HashMap<GroupId, Vec<usize>>,
    /// Calls whose operand is complete.
    ready: HashSet<Ticket>,
    turns: HashMap<GroupId, u64>,
    /// Calls whose operand never completes: they end with their group, if it ends.
    never: HashSet<Ticket>,
}

impl Member {
    /// Whether its program has ended, or is stuck for good.
    fn is_through(&self) -> bool {
        self.life != Life::Lives
            || self.awaits.is_empty() && (self.steps == 0 || self.group.is_none())
    }
}

struct Net {
    dice: Dice,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    serial: u64,
    members: Vec<Member>,
    links: HashMap<(usize, usize), (Duration, VecDeque<Parcel>)>,
    cut: HashSet<(usize, usize)>,
    /// The members that have started a call, by group, lane (as the receiver or all members see
    /// it), and number.
    went: HashMap<(GroupId, Option<(usize, usize)>, u64), Vec<(usize, Ticket)>>,
    faults: bool,
    wrongs: bool,
    /// The number of members that will resume.
    resumes: u32,
    seed: u64,
}

pub(super) const RULES: Rules = Rules {
    silence: Duration::from_secs(2),
    deadline: Duration::from_secs(5),
    arrival: Duration::from_secs(5),
    compares: true,
};

impl Net {
    fn new(seed: u64) -> Net {
        let mut dice = Dice(seed);
        let size = 1 + dice.below(5) as usize;
        let rules = Rules { compares: dice.one_in(2), ..RULES };
        let mut net = Net::of(seed, dice, size, rules);
        (net.faults, net.wrongs) = (!net.dice.one_in(4), net.dice.one_in(2));
        if net.faults {
            // Often at nearly the same time, so that the members' views cross.
            let (first, apart) =
                (net.dice.below(1_000_000), if net.dice.one_in(2) { 20_000 } else { 2_000_000 });
            for _ in 0..1 + net.dice.below(3) {
                let at = first + net.dice.below(apart);
                net.after(at, Event::Strike);
            }
        }
        net
    }

    /// Members that only join, without faults.
    fn quiet(seed: u64, size: usize) -> Net {
        let mut net = Net::of(seed, Dice(seed), size, RULES);
        net.members.iter_mut().for_each(|member| member.steps = 0);
        net
    }

    fn of(seed: u64, dice: Dice, size: usize, rules: Rules) -> Net {
        let member = |me| Member {
            machine: Machine::new(me, size, rules, Duration::ZERO),
            life: Life::Lives,
            missed: Vec::new(),
            group: None,
            members: Vec::new(),
            open: HashMap::new(),
            since: HashMap::new(),
            awaits: HashSet::from([JOIN]),
            waits: Some(JOIN),
            steps: 12,
            made: HashMap::new(),
            last_go: HashMap::new(),
            settled: HashMap::new(),
            shrinking: None,
            failed: 0,
            groups: HashMap::new(),
            ready: HashSet::new(),
            turns: HashMap::new(),
            never: HashSet::new(),
        };
        let mut net = Net {
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            serial: 0,
            members: (0..size).map(member).collect(),
            links: HashMap::new(),
            cut: HashSet::new(),
            went: HashMap::new(),
            faults: false,
            wrongs: false,
            resumes: 0,
            dice,
            seed,
        };
        for me in 0..size {
            net.after(0, Event::Tick(me));
            if me > 0 {
                net.connect(me, 0);
            }
            net.act(me);
        }
        net
    }

    fn after(&mut self, us: u64, event: Event) {
        self.serial += 1;
        self.queue.push(Reverse((self.now + Duration::from_micros(us), self.serial, event)));
    }

    fn are_cut(&self, a: usize, b: usize) -> bool {
        self.cut.contains(&(a.min(b), a.max(b)))
    }

    fn put(&mut self, from: usize, to: usize, parcel: Parcel) {
        if self.are_cut(from, to) {
            return;
        }
        let most = if self.dice.one_in(20) { 100_000 } else { 2_000 };
        let at = self.now + Duration::from_micros(10 + self.dice.below(most));
        let link = self.links.entry((from, to)).or_default();
        // In order: not before earlier messages.
        link.0 = link.0.max(at);
        link.1.push_back(parcel);
        let us = (link.0 - self.now).as_micros() as u64;
        self.after(us, Event::Arrives(from, to));
    }

    /// Both ends learn of a new link, unless the other is dead.
    fn connect(&mut self, from: usize, to: usize) {
        if self.members[to].life == Life::Dead {
            return self.put(to, from, Parcel::End);
        }
        self.put(from, to, Parcel::Link);
        self.put(to, from, Parcel::Link);
    }

    fn strike(&mut self) {
        let who = self.dice.below(self.members.len() as u64) as usize;
        if self.members[who].life != Life::Lives {
            return;
        }
        match self.dice.below(4) {
            0 | 1 => {
                self.members[who].life = Life::Dead;
                self.after(400_000, Event::Known(who, self.now));
                let unsent = self.dice.one_in(2);
                for other in 0..self.members.len() {
                    if unsent && let Some((_, parcels)) = self.links.get_mut(&(who, other)) {
                        // The arrival events of dropped messages find nothing.
                        let keep = self.dice.below(parcels.len() as u64 + 1) as usize;
                        parcels.truncate(keep);
                    }
                    if other != who {
                        self.put(who, other, Parcel::End);
                    }
                }
            }
            2 => {
                self.members[who].life = Life::Stopped;
                if self.dice.one_in(2) {
                    self.resumes += 1;
                    let us = self.dice.below(4_000_000);
                    self.after(us, Event::Resume(who));
                }
            }
            _ => {
                // Between two members, or between two parts of the group.
                let n = self.members.len();
                let parts = if self.dice.one_in(2) { self.dice.next() } else { 1 << who };
                let other = self.dice.below(n as u64) as usize;
                let two = |a: usize, b: usize| parts.count_ones() > 1 || b == other || a == other;
                let apart = |a: usize, b: usize| (parts >> a) & 1 != (parts >> b) & 1;
                let pairs = (0..n).flat_map(|b| (0..b).map(move |a| (a, b)));
                self.cut.extend(pairs.filter(|&(a, b)| apart(a, b) && two(a, b)));
            }
        }
    }

    /// Checks that no live member waits for a call with a dead member: the kill must have ended it.
    fn all_know(&self, dead: usize, since: Duration) {
        if !self.cut.is_empty() {
            return;
        }
        for (rank, member) in self.members.iter().enumerate().filter(|(_, m)| m.life == Life::Lives)
        {
            let seed = self.seed;
            assert!(!member.awaits.contains(&JOIN), "seed {seed}: rank {rank} still joins");
            for ticket in &member.awaits {
                let shared =
                    |(group, ..): &(GroupId, Lane, u64)| member.groups[group].contains(&dead);
                let old = member.since.get(ticket).is_some_and(|at| *at <= since);
                let waits = old && member.open.get(ticket).is_some_and(shared);
                assert!(
                    !waits,
                    "seed {seed}: rank {rank} waits for {ticket} with {dead}, who is dead"
                );
            }
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((at, _, event))) = self.queue.pop() {
            if at > Duration::from_secs(120) {
                break;
            }
            self.now = at;
            self.happens(event);
            if self.members.iter().all(Member::is_through) && self.resumes == 0 {
                break;
            }
        }
    }

    fn happens(&mut self, event: Event) {
        let who = match event {
            Event::Strike => return self.strike(),
            Event::Resume(who) => {
                self.resumes -= 1;
                if self.members[who].life == Life::Stopped {
                    self.members[who].life = Life::Lives;
                    let mut missed = std::mem::take(&mut self.members[who].missed);
                    // A resumed member reads its messages before it looks at the clock.
                    missed.sort_by_key(|event| !matches!(event, Event::Arrives(..)));
                    missed.into_iter().for_each(|event| self.happens(event));
                }
                return;
            }
            Event::Known(dead, since) => return self.all_know(dead, since),
            Event::Arrives(_, who)
            | Event::Tick(who)
            | Event::Step(who)
            | Event::Ready(who, ..)
            | Event::Through(who, ..) => who,
        };
        match self.members[who].life {
            Life::Dead => return,
            Life::Stopped => return self.members[who].missed.push(event),
            Life::Lives => {}
        }
        let (now, machine) = (self.now, &mut self.members[who].machine);
        match event {
            Event::Arrives(from, _) => {
                match self.links.get_mut(&(from, who)).and_then(|link| link.1.pop_front()) {
                    Some(Parcel::Link) => machine.linked(from, format!("{from}"), now),
                    Some(Parcel::Bytes(bytes)) => {
                        let message = Message::decode(&bytes[4..]).expect("what was encoded");
                        machine.heard(from, message, now);
                    }
                    Some(Parcel::End) => machine.closed(from, "its connection ended"),
                    None => {}
                }
            }
            Event::Tick(_) => {
                machine.tick(now);
                let wait = machine.next().saturating_sub(now).as_micros() as u64;
                self.after(wait.max(100), Event::Tick(who));
            }
            Event::Step(_) => self.step(who),
            Event::Ready(_, group, ticket) => {
                self.members[who].ready.insert(ticket);
                self.members[who].machine.ready(group, ticket, now);
            }
            Event::Through(_, group, ticket) => machine.done(group, ticket, Ok(()), now),
            Event::Strike | Event::Resume(_) | Event::Known(..) => {}
        }
        self.act(who);
    }

    fn act(&mut self, who: usize) {
        for action in self.members[who].machine.take() {
            match action {
                Action::Send(to, message) => self.put(who, to, Parcel::Bytes(message.encode())),
                Action::Connect(to, _) => self.connect(who, to),
                Action::Close(to) => self.put(who, to, Parcel::End),
                Action::Abort(_) | Action::Free(_) | Action::Hear(..) => {}
                Action::Go(ticket) => self.goes(who, ticket),
                Action::End(ticket, result) => self.ends(who, ticket, result),
            }
        }
    }

    fn goes(&mut self, who: usize, ticket: Ticket) {
        let member = &mut self.members[who];
        let (group, lane, seq) = member.open[&ticket];
        assert!(
            member.ready.contains(&ticket),
            "seed {}: rank {who} started {ticket} too soon",
            self.seed
        );
        let before = member.last_go.insert(group, ticket).unwrap_or(0);
        assert!(before < ticket, "seed {}: rank {who} started {before} before {ticket}", self.seed);
        let (pair, needed) = match lane {
            Lane::All => (None, member.groups[&group].len()),
            Lane::Send(to) => (Some((who, to)), 2),
            Lane::Recv(from) => (Some((from, who)), 2),
        };
        let went = self.went.entry((group, pair, seq)).or_default();
        went.push((who, ticket));
        if went.len() == needed {
            for (rank, ticket) in went.clone() {
                let us = self.dice.below(3_000);
                self.after(us, Event::Through(rank, group, ticket));
            }
        }
    }

    fn ends(&mut self, who: usize, ticket: Ticket, result: Result<Ended, Fault>) {
        let seed = self.seed;
        let member = &mut self.members[who];
        assert!(
            member.awaits.remove(&ticket) || member.never.remove(&ticket),
            "seed {seed}: rank {who}: {ticket} ends twice"
        );
        let shrunk = member.shrinking.take_if(|(t, _)| *t == ticket);
        match result {
            Ok(Ended::Group(id, members)) => {
                if let Some((_, parent)) = shrunk {
                    member.settled.insert(parent, (id, members.clone()));
                }
                // The previous group is not used any more.
                member
                    .group
                    .filter(|old| *old != id)
                    .into_iter()
                    .for_each(|old| member.machine.let_go(old));
                member.groups.insert(id, members.clone());
                (member.group, member.members) = (Some(id), members);
            }
            Ok(Ended::Done) => {}
            Err(fault) => {
                member.failed += 1;
                assert!(
                    self.faults || fault.kind != FaultKind::Lost || self.wrongs,
                    "seed {seed}: {fault:?}"
                );
                if ticket == JOIN || shrunk.is_some() {
                    member.group = None;
                }
            }
        }
        if member.waits == Some(ticket) {
            member.waits = None;
            let us = self.dice.below(5_000);
            self.after(us, Event::Step(who));
        }
    }

    /// The next step of a member's program: the same on all members of a group at the same step,
    /// except for injected faults.
    fn step(&mut self, who: usize) {
        let (now, seed) = (self.now, self.seed);
        let member = &mut self.members[who];
        let Some(group) = member.group else { return };
        if member.waits.is_some() || member.steps == 0 {
            return;
        }
        member.steps -= 1;
        if member.machine.fault(group).is_some() {
            let ticket = member.machine.shrink(group, now);
            member.awaits.insert(ticket);
            member.waits = Some(ticket);
            member.shrinking = Some((ticket, group));
            return;
        }
        // Drawn from values that the members of the group share.
        let turn = member.turns.entry(group).or_default();
        *turn += 1;
        let mut shared = Dice(seed ^ group.rotate_left(17) ^ (*turn << 32));
        let n = member.members.len() as u64;
        let asked = match shared.below(8) {
            0 => member
                .machine
                .split(group, shared.next().rotate_left(who as u32) % 2, now)
                .map(|t| (t, None)),
            1 if n > 1 => {
                let from = shared.below(n);
                let to = (from + 1 + shared.below(n - 1)) % n;
                let (from, to) = (member.members[from as usize], member.members[to as usize]);
                let lane = match who {
                    _ if who == from => Lane::Send(to),
                    _ if who == to => Lane::Recv(from),
                    _ => return self.after(1, Event::Step(who)),
                };
                member.machine.call(group, lane, "sent".into()).map(|t| (t, Some(lane)))
            }
            _ => {
                let wrong = self.wrongs && self.dice.one_in(60);
                let text = if wrong { format!("broadcast by {who}") } else { "sum".into() };
                member.machine.call(group, Lane::All, text).map(|t| (t, Some(Lane::All)))
            }
        };
        let waits = shared.one_in(2);
        let Ok((ticket, lane)) = asked else { return self.after(1, Event::Step(who)) };
        let member = &mut self.members[who];
        member.awaits.insert(ticket);
        match lane {
            Some(lane) => {
                let seq = member.made.entry((group, lane)).or_default();
                *seq += 1;
                member.open.insert(ticket, (group, lane, *seq - 1));
                member.since.insert(ticket, now);
                if self.wrongs && self.dice.one_in(80) {
                    member.machine.operand_failed(group, ticket, "an operand".into());
                } else if !(self.wrongs && self.dice.one_in(100)) {
                    let us = self.dice.below(2_000);
                    self.after(us, Event::Ready(who, group, ticket));
                } else {
                    // Its operand never completes: the deadline of the other members ends the call.
                    member.awaits.remove(&ticket);
                    member.never.insert(ticket);
                }
            }
            None => self.members[who].waits = Some(ticket),
        }
        let member = &mut self.members[who];
        if waits && !member.never.contains(&ticket) {
            member.waits.get_or_insert(ticket);
        }
        if member.waits.is_none() {
            let us = self.dice.below(1_000);
            self.after(us, Event::Step(who));
        }
    }
}

fn run(seed: u64) -> Net {
    let mut net = Net::new(seed);
    net.run();
    for (rank, member) in net.members.iter().enumerate().filter(|(_, m)| m.life == Life::Lives) {
        assert!(member.awaits.is_empty(), "seed {seed}: rank {rank} waits for {:?}", member.awaits);
        if !net.faults && !net.wrongs {
            assert_eq!(member.failed, 0, "seed {seed}: rank {rank}");
        }
        for (parent, settled) in &member.settled {
            // A live member that was given up may have settled before it was told.
            let is_going = |m: &Member| m.life == Life::Lives && m.machine.expelled.is_none();
            for other in net.members.iter().filter(|m| is_going(m) && is_going(member)) {
                let theirs = other.settled.get(parent).unwrap_or(settled);
                // One member may have settled on a group from which the other was cut off, and in
                // which the other is missing: of two separate parts at most one continues.
                let is_cut = other.machine.peers[rank].gone || net.are_cut(rank, other.machine.me);
                let meet = settled.1.iter().any(|r| theirs.1.contains(r));
                let same = settled == theirs || is_cut && meet;
                assert!(same, "seed {seed}: survivors of {parent} differ: {settled:?} {theirs:?}");
            }
        }
    }
    net
}

/// Members only join, and leave at the given times: returns when the last one leaves, and when each
/// has completed.
fn leaves(seed: u64, at: &[u64]) -> (Duration, Vec<Duration>) {
    let mut net = Net::quiet(seed, at.len());
    let mut through = vec![None; at.len()];
    let mut left = vec![None; at.len()];
    while let Some(Reverse((now, _, event))) = net.queue.pop() {
        net.now = now;
        net.happens(event);
        for rank in 0..at.len() {
            let joined = net.members[rank].group.is_some();
            if joined && left[rank].is_none() && now >= Duration::from_micros(at[rank]) {
                left[rank] = Some(now);
                net.members[rank].machine.leave();
                net.act(rank);
            }
            if left[rank].is_some()
                && through[rank].is_none()
                && net.members[rank].machine.is_alone() == (true, false)
            {
                through[rank] = Some(now);
                // Its links end with the process.
                net.members[rank].life = Life::Dead;
                (0..at.len())
                    .filter(|&other| other != rank)
                    .for_each(|other| net.put(rank, other, Parcel::End));
            }
        }
        if through.iter().all(Option::is_some) || now > Duration::from_secs(60) {
            break;
        }
    }
    let through: Option<Vec<_>> = through.into_iter().collect();
    let lost = |member: &Member| member.machine.is_alone().1;
    assert!(!net.members.iter().any(lost), "seed {seed}: {at:?}: one was taken for lost");
    (left.into_iter().max().flatten().expect("all leave"), through.expect("all come through"))
}

/// Members leave in every order, at the same time and long after each other.
#[test]
fn who_leaves_in_order_waits_for_the_last_to_leave_and_for_no_silence() {
    let orders: [&[usize]; 6] =
        [&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]];
    let mut dice = Dice(7);
    for (seed, apart) in
        (0..40).flat_map(|seed| [0, 1, 30, 500_000, 5_000_000].map(|apart| (seed, apart)))
    {
        let orders =
            orders.iter().map(|order| order.iter().map(|&n| 400_000 + n as u64 * apart).collect());
        let some = (0..1 + dice.below(5)).map(|_| 400_000 + dice.below(1 + 2 * apart)).collect();
        for at in orders.chain([some]).collect::<Vec<Vec<u64>>>() {
            let (last, through) = leaves(seed, &at);
            let late = through.iter().max().expect("members").saturating_sub(last);
            // A message takes at most 100 ms, and members wait for nothing else.
            assert!(
                late <= Duration::from_millis(101),
                "seed {seed}: {at:?}: {late:?} after the last"
            );
        }
    }
}

/// The seeds; `FUTENSOR_RUNS` sets their number.
fn seeds() -> std::ops::Range<u64> {
    let from = std::env::var("FUTENSOR_SEED").ok().and_then(|s| s.parse().ok());
    let runs = std::env::var("FUTENSOR_RUNS").ok().and_then(|s| s.parse().ok()).unwrap_or(10_000);
    from.map_or(0..runs, |seed| seed..seed + 1)
}

#[test]
fn every_await_ends_whatever_the_network_does() {
    let (mut failed, mut shrunk, mut clean) = (0, 0, 0);
    for seed in seeds() {
        let net = run(seed);
        failed += net.members.iter().map(|m| m.failed as u64).sum::<u64>();
        shrunk += net.members.iter().map(|m| m.settled.len() as u64).sum::<u64>();
        clean += (net.members.iter().all(|m| m.failed == 0 && m.steps == 0)) as u64;
    }
    // The seeds cover all three cases, often.
    let runs = seeds().count() as u64;
    assert!(
        runs < 1000 || failed > runs / 2 && shrunk > runs / 4 && clean > runs / 10,
        "{failed} {shrunk} {clean}"
    );
}
