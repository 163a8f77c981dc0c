//! Hands bytes of strangers and peers to the handshake and the protocol, for `tests/untrusted`. It
//! uses no socket and no clock.

use super::handshake::{GREETING, HELLO, REPLY, VERSION, Who, believe, greeting, judge};
use super::protocol::message::{Lane, Message};
use super::protocol::{Action, Machine, Rules, Ticket, WORLD};
use super::secret::{BYTES, Secret};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

const RULES: Rules = Rules {
    silence: Duration::from_secs(5),
    deadline: Duration::from_secs(30),
    arrival: Duration::from_secs(60),
    compares: false,
};
const ME: Who = Who { rank: 0, size: 3, compares: false, by_device: false, port: 7 };

/// Takes bytes from outside. The first chooses their kind: a call, or an answer to a call, with the
/// proof as it is or made right; or the messages of a peer. Returns whether they were accepted.
///
/// # Panics
/// A stranger was let in, or an await of this rank does not end.
pub fn hear(bytes: &[u8]) -> bool {
    let Some((&how, bytes)) = bytes.split_first() else { return false };
    match how % 5 {
        0 => hear_call(bytes, false),
        1 => hear_call(bytes, true),
        2 => hear_answer(bytes, false),
        3 => hear_answer(bytes, true),
        _ => hear_messages(how / 5, bytes),
    }
}

/// The first bytes, with zeros in place of missing ones.
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}

fn hear_call(bytes: &[u8], proves: bool) -> bool {
    let secret = Secret::of(b"words");
    let own = greeting(&[1; BYTES], VERSION);
    let mut hello: [u8; HELLO] = first(bytes);
    if proves {
        let (theirs, about) = hello[..HELLO - BYTES].split_at(GREETING);
        let proof = secret.prove(&[b"call", &own, theirs, about]);
        hello[HELLO - BYTES..].copy_from_slice(&proof);
    }
    match judge(&hello, &own, &secret, ME, |rank| rank == 1).1 {
        Ok(who) => {
            assert!(proves && who.rank == 1 && who.size == ME.size, "a stranger comes in: {who:?}");
            true
        }
        Err(refused) => {
            assert!(proves || !refused.proved, "a stranger ends the group: {refused:?}");
            false
        }
    }
}

fn hear_answer(bytes: &[u8], proves: bool) -> bool {
    let secret = Secret::of(b"words");
    let (theirs, own) = (greeting(&[1; BYTES], VERSION), greeting(&[2; BYTES], VERSION));
    let mut reply: [u8; REPLY] = first(bytes);
    if proves {
        let (verdict, other) = reply[..REPLY - BYTES].split_at(1);
        let proof = secret.prove(&[b"answer", &theirs, &own, &ME.bytes(), other, verdict]);
        reply[REPLY - BYTES..].copy_from_slice(&proof);
    }
    let came = believe(&reply, &theirs, &own, &secret, ME, 1);
    assert!(proves || came.is_err(), "a stranger is taken for rank 1");
    came.is_ok()
}

/// Rank 1 of three speaks while this rank waits for calls, a split and a shrink.
fn hear_messages(how: u8, bytes: &[u8]) -> bool {
    let rules = Rules { compares: how & 1 != 0, ..RULES };
    let mut now = Duration::ZERO;
    let mut machine = Machine::new(0, 3, rules, now);
    (1..3).for_each(|rank| machine.linked(rank, String::new(), now));
    let (mut waits, mut groups) = (HashSet::new(), HashMap::new());
    settle(&mut machine, &mut waits, &groups, now);
    for lane in [Lane::All, Lane::Send(1), Lane::Recv(1), Lane::All] {
        let ticket: Option<Ticket> = machine.call(WORLD, lane, "sum of float32 [4]".into()).ok();
        if let Some(ticket) = ticket {
            waits.insert(ticket);
            groups.insert(ticket, WORLD);
            machine.ready(WORLD, ticket, now);
        }
    }
    waits.extend((how & 2 != 0).then(|| machine.split(WORLD, 1, now).ok()).flatten());
    waits.extend((how & 4 != 0).then(|| machine.shrink(WORLD, now)));
    let (mut stream, mut understood) = (bytes.to_vec(), 0);
    let is_whole = Message::take_whole(&mut stream, |message| {
        understood += 1;
        machine.heard(1, message, now);
        settle(&mut machine, &mut waits, &groups, now);
    });
    if !is_whole {
        machine.closed(1, "it said what is no message");
    }
    // Silence follows: each await ends within the times of the rules.
    for _ in 0..200 {
        now += Duration::from_secs(1);
        machine.tick(now);
        settle(&mut machine, &mut waits, &groups, now);
    }
    assert!(waits.is_empty(), "awaits that do not end: {waits:?}");
    understood > 0
}

/// Carries out actions: a call that may start is complete at once.
fn settle(
    machine: &mut Machine,
    waits: &mut HashSet<Ticket>,
    groups: &HashMap<Ticket, u64>,
    now: Duration,
) {
    loop {
        let actions = machine.take();
        if actions.is_empty() {
            return;
        }
        for action in actions {
            match action {
                Action::Go(ticket) => machine.done(groups[&ticket], ticket, Ok(()), now),
                Action::End(ticket, _) => drop(waits.remove(&ticket)),
                _ => {}
            }
        }
    }
}

/// Valid bytes of each kind that [`hear`] takes.
pub fn examples() -> Vec<Vec<u8>> {
    let about = Who { rank: 1, ..ME }.bytes();
    let call = [&greeting(&[2; BYTES], VERSION)[..], &about, &[0; BYTES]].concat();
    let answer = [&[0][..], &about, &[0; BYTES]].concat();
    let mut all: Vec<Vec<u8>> = Vec::new();
    for (how, bytes) in [(0, &call), (1, &call), (2, &answer), (3, &answer)] {
        all.push([&[how], &bytes[..]].concat());
    }
    let text = || "sum of float32 [4]".to_owned();
    let messages = [
        Message::Beat { calls: vec![(WORLD, [2, 1, 1])] },
        Message::Called { group: WORLD, lane: 0, seq: 0, text: text() },
        Message::Called { group: WORLD, lane: 1, seq: 0, text: text() },
        Message::Words { group: WORLD, words: vec![1, 2, 3] },
        Message::Split { group: WORLD, seq: 0, color: 1 },
        Message::Lost { rank: 2, ended: true, text: "its process has ended".into() },
        Message::Shrink { group: WORLD, lost: vec![(2, true)], settled: Some(vec![0, 1]) },
        Message::LetGo { group: WORLD, calls: [2, 1, 1] },
        Message::Bye { calls: vec![(WORLD, [2, 1, 1])] },
    ];
    let said: Vec<Vec<u8>> = messages.iter().map(Message::encode).collect();
    for how in 0..8 {
        all.push([&[4 + 5 * how][..], &said.concat()].concat());
        all.extend(said.iter().map(|one| [&[4 + 5 * how], &one[..]].concat()));
    }
    all
}
