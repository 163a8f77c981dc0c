//! What a member says, and what is said to it last.

use super::*;
use crate::ranks::dial;
use crate::ranks::handshake::{Who, call};
use crate::ranks::protocol::message::{Fault, FaultKind, Message};
use crate::ranks::protocol::simulated::Dice;
use crate::ranks::secret::Secret;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;

/// Joins rank 0 as rank 1 would, by hand.
fn intrudes(rank: &Rank) -> (Group, TcpStream) {
    rank.told.opens_alone.store(true, SeqCst);
    let joins = rank.join();
    let stream = comes_as_one(rank, 2, 9);
    // Of an engine that needs nobody.
    (wait(joins).expect("a group"), stream)
}

/// The link of a rank 1 of so many that says it listens there.
fn comes_as_one(rank: &Rank, size: usize, port: u16) -> TcpStream {
    let (says, hears) = channel();
    let at = rank.at.clone();
    let other = spawn(move || {
        let until = Instant::now() + SOON;
        let stream = loop {
            match dial::dial(&at, until) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < until, "it does not listen: {error}"),
            }
        };
        let me = Who { rank: 1, size, compares: false, by_device: false, port };
        call(&stream, &Secret::of(b"words"), me, 0, until).expect("it knows the secret");
        says.send(stream).expect("it is awaited");
    });
    let stream = hears.recv_timeout(SOON).expect("a link");
    other.join().expect("it is through");
    stream
}

#[test]
fn what_was_said_last_is_sent_whole_and_then_the_links_end_whoever_keeps_the_rest() {
    let mut ranks = strangers(2);
    ranks.truncate(1);
    let (group, mut stream) = intrudes(&ranks[0]);
    // More than sockets take at once, of which rank 1 reads nothing yet; and somebody still has
    // what the links are in.
    let kept = ranks[0].driver.worlds();
    (0..16_000).for_each(|_| kept[0].say(1, vec![7; 1000]));
    drop(group);
    stream.write_all(&Message::Bye { calls: Vec::new() }.encode()).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a socket");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the link ends");
    let (mut said, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((head, after)) = rest.split_at_checked(4) {
        let length = u32::from_le_bytes(head.try_into().expect("four bytes")) as usize;
        let (message, after) = after.split_at_checked(length).expect("a whole message");
        said.push(Message::decode(message).expect("a message"));
        rest = after;
    }
    assert!(matches!(said.last(), Some(Message::Bye { .. })), "{:?}", said.last());
    assert_eq!(
        said.iter().filter(|message| matches!(message, Message::Words { .. })).count(),
        16_000
    );
    drop(kept);
}

#[test]
fn a_rank_whose_thread_for_calls_panics_tells_the_others_at_once() {
    let ranks = strangers(3);
    let joins = [ranks[0].join(), ranks[2].join()];
    // Rank 1 says that it listens where whoever calls panics, which rank 2 is to do.
    let nowhere = address();
    lock(&dial::tests::PANICS_AT).push(nowhere.clone());
    let port = nowhere.rsplit_once(':').expect("a port").1.parse().expect("a number");
    let mut one = comes_as_one(&ranks[0], 3, port);
    let said = all(joins).into_iter().map(lost);
    for (rank, text) in said {
        assert_eq!(rank, Some(2), "{text}");
        assert!(
            text.contains("its thread for calls panicked: a fault of this library's own"),
            "{text}"
        );
    }
    // Whoever was waiting beside them hears it too.
    one.set_read_timeout(Some(SOON)).expect("a socket");
    let (mut bytes, mut chunk) = (Vec::new(), [0; 1024]);
    while !String::from_utf8_lossy(&bytes).contains("its thread for calls panicked") {
        let n = one.read(&mut chunk).expect("it is told soon");
        assert!(n > 0 && bytes.len() < 1 << 16, "it is not told: {bytes:?}");
        bytes.extend(&chunk[..n]);
    }
    drop(one);
    [0, 2].into_iter().for_each(|rank| until("it is through", || ranks[rank].is_through()));
}

#[test]
fn what_a_member_says_that_is_no_message_ends_its_link_and_nothing_else() {
    let seed =
        std::env::var("FUTENSOR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let fault = Fault { kind: FaultKind::Calls, rank: Some(7), text: "words".into() };
    let some: [Message; 6] = [
        Message::Beat { calls: vec![(1, [1, 2, 3])] },
        Message::Called { group: 1, lane: 0, seq: 0, text: "sum".into() },
        Message::Shrink {
            group: 1,
            lost: vec![(0, true), (900, false)],
            settled: Some(vec![0, 1]),
        },
        Message::Broke { group: 9, fault },
        Message::Split { group: 1, seq: 0, color: 1 },
        Message::Words { group: 1, words: vec![1; 1000] },
    ];
    for round in 0..30 {
        let mut ranks = strangers(2);
        ranks.truncate(1);
        let rank = &ranks[0];
        let (group, mut stream) = intrudes(rank);
        let mut bytes = Vec::new();
        for _ in 0..1 + dice.next() % 4 {
            bytes.extend(some[dice.next() as usize % some.len()].encode());
        }
        match round % 3 {
            // Some bits are others, or all are.
            0 => (0..1 + dice.next() % 8).for_each(|_| {
                let at = dice.next() as usize % bytes.len();
                bytes[at] ^= 1 << (dice.next() % 8);
            }),
            1 => bytes = (0..1 + dice.next() % 5000).map(|_| dice.next() as u8).collect(),
            // A length that nobody waits for.
            _ => bytes.extend((64u32 << 20).to_le_bytes()),
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let error = wait(group.barrier()).expect_err("rank 1 is no rank");
        assert!(!error.message().contains("panicked"), "seed {seed}, round {round}: {error}");
        let _ = stream.set_read_timeout(Some(SOON));
        // The link is closed by the other side too, whatever it was.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        drop(group);
        until("it is alone", || rank.is_through());
    }
}
