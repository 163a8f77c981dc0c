//! The protocol without a network: members that hear each other at once, or not at all.

use super::message::{FaultKind, Lane, Message};
use super::simulated::{Dice, RULES};
use super::*;
use std::collections::{HashSet, VecDeque};

/// Three that are linked, with what they were to do so far done.
fn three(rules: Rules) -> Vec<Machine> {
    let mut all: Vec<Machine> =
        (0..3).map(|me| Machine::new(me, 3, rules, Duration::ZERO)).collect();
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        all[a].linked(b, String::new(), Duration::ZERO);
        all[b].linked(a, String::new(), Duration::ZERO);
    }
    all.iter_mut().for_each(|machine| drop(machine.take()));
    all
}

/// Has them hear each other until nobody says anything; what each is to do besides.
fn settled(all: &mut [Machine]) -> Vec<Vec<Action>> {
    let mut rest: Vec<Vec<Action>> = all.iter().map(|_| Vec::new()).collect();
    while let Some(from) = (0..all.len()).find(|&from| {
        let actions = all[from].take();
        rest[from].extend(actions);
        rest[from].iter().any(|action| matches!(action, Action::Send(..)))
    }) {
        for action in std::mem::take(&mut rest[from]) {
            match action {
                Action::Send(to, message) => all[to].heard(from, message, Duration::ZERO),
                other => rest[from].push(other),
            }
        }
    }
    rest
}

#[test]
fn a_group_is_freed_once_all_have_let_go_of_it_and_never_where_a_member_is_lost() {
    let frees = |all: &mut [Machine]| -> Vec<bool> {
        let actions = settled(all);
        actions
            .iter()
            .map(|each| each.iter().any(|action| matches!(action, Action::Free(_))))
            .collect()
    };
    let mut all = three(RULES);
    let asks = |machine: &mut Machine| {
        machine.call(WORLD, Lane::All, "sum".into()).expect("a whole group")
    };
    let tickets: Vec<Ticket> = all.iter_mut().map(asks).collect();
    (0..3).for_each(|rank| all[rank].let_go(WORLD));
    (1..3).for_each(|rank| all[rank].done(WORLD, tickets[rank], Ok(()), Duration::ZERO));
    // Rank 0 has something under way still.
    assert_eq!(frees(&mut all), [false; 3]);
    all[0].done(WORLD, tickets[0], Ok(()), Duration::ZERO);
    assert_eq!(frees(&mut all), [true; 3]);
    // One that broke is kept for whoever may ask for what follows, and no longer.
    let mut all = three(RULES);
    all[1].spoil(WORLD, "an operand".into());
    (0..2).for_each(|rank| all[rank].let_go(WORLD));
    assert_eq!(frees(&mut all), [false; 3]);
    all[2].let_go(WORLD);
    assert_eq!(frees(&mut all), [true; 3]);
    assert!(all.iter().all(|machine| machine.groups.is_empty()));
    // What the library has of one with a lost member may never end.
    let mut all = three(RULES);
    (0..2).for_each(|rank| all[rank].closed(2, "its process has ended"));
    (0..2).for_each(|rank| all[rank].let_go(WORLD));
    assert_eq!(frees(&mut all), [false; 3]);
    assert!((0..2).all(|rank| all[rank].groups.is_empty()));
}

#[test]
fn what_nobody_was_given_is_not_taken_for_let_go() {
    let mut all = three(RULES);
    let asks: Vec<_> =
        all.iter_mut().map(|machine| machine.split(WORLD, 0, Duration::ZERO)).collect();
    let news: Vec<GroupId> = settled(&mut all).iter().flatten().filter_map(made).collect();
    assert!(asks.iter().all(Result::is_ok) && news.len() == 3);
    // All but rank 1 hold it, and rank 1 gives up what it was given.
    all[1].let_go(news[1]);
    settled(&mut all);
    let fault = all[0].call(news[0], Lane::All, "sum".into()).expect_err("rank 1 makes no call");
    assert_eq!((fault.rank, &fault.text[..]), (Some(1), "it has dropped the group"));
}

/// The group that an await ended with.
fn made(action: &Action) -> Option<GroupId> {
    match action {
        Action::End(_, Ok(Ended::Group(id, _))) => Some(*id),
        _ => None,
    }
}

#[test]
fn calls_that_differ_fail_on_every_rank_and_say_how() {
    let rules = Rules { compares: true, ..RULES };
    let mut all = three(rules);
    let words =
        ["all_reduce of float32 [2]", "all_reduce of float32 [2]", "all_reduce of float32 [3]"];
    for (machine, words) in all.iter_mut().zip(words) {
        machine.call(WORLD, Lane::All, words.into()).expect("a whole group");
    }
    let mut faults = vec![None; 3];
    for _ in 0..3 {
        for from in 0..3 {
            for action in all[from].take() {
                match action {
                    Action::Send(to, message) => all[to].heard(from, message, Duration::ZERO),
                    Action::End(_, Err(fault)) => faults[from] = Some(fault),
                    Action::Go(_) => panic!("rank {from} starts it"),
                    _ => {}
                }
            }
        }
    }
    for fault in faults {
        let Fault { kind, text, .. } = fault.expect("its call failed");
        assert_eq!(kind, FaultKind::Calls);
        assert!(text.contains("[2], rank 2 calls all_reduce of float32 [3]"), "{text}");
    }
}

#[test]
fn who_is_given_up_says_so_to_those_who_still_hear_it() {
    let mut all = three(RULES);
    all[1].heard(0, Message::Lost { rank: 1, ended: false, text: "silent".into() }, Duration::ZERO);
    let says = |action: &Action| {
        matches!(action, Action::Send(2, Message::Lost { rank: 1, ended: true, .. }))
    };
    assert!(all[1].take().iter().any(says));
    // Once: those who hear it give it up, and tell it so.
    all[1].heard(
        2,
        Message::Lost { rank: 1, ended: true, text: "it says so".into() },
        Duration::ZERO,
    );
    assert!(!all[1].take().iter().any(|action| matches!(action, Action::Send(..))));
}

#[test]
fn the_end_of_a_link_counts_as_the_end_of_a_process_unless_it_was_closed() {
    for (closed, part_goes_on) in [(false, true), (true, false)] {
        // Rank 2 has lost rank 0 by silence, and then their link ends, which 0 closed or did not.
        // Rank 1 has left, so rank 2 goes on alone only where 0 has ended.
        let mut all = three(RULES);
        all[2].heard(1, Message::Bye { calls: Vec::new() }, Duration::ZERO);
        let machine = &mut all[2];
        machine.lost(0, false, "silent");
        if closed {
            machine.heard(
                0,
                Message::Lost { rank: 2, ended: false, text: "silent".into() },
                Duration::ZERO,
            );
        }
        machine.closed(0, "its connection ended");
        let ticket = machine.shrink(WORLD, Duration::ZERO);
        let ends = machine.take().into_iter().find_map(|action| match action {
            Action::End(of, result) if of == ticket => Some(result),
            _ => None,
        });
        assert_eq!(ends.expect("it ends").is_ok(), part_goes_on, "closed: {closed}");
    }
}

#[test]
fn what_no_member_says_counts_for_nothing() {
    let mut all = three(RULES);
    let call = Message::Called { group: WORLD, lane: 0, seq: u64::MAX, text: "sum".into() };
    all[0].heard(1, call, Duration::ZERO);
    let own = all[0].shrink(WORLD, Duration::ZERO);
    for settled in [vec![0, 99], vec![1, 0, 2], vec![0, 0]] {
        let message = Message::Shrink { group: WORLD, lost: Vec::new(), settled: Some(settled) };
        all[0].heard(1, message, Duration::ZERO);
    }
    // Whoever says what makes sense is heard still.
    let tickets = [own, all[1].shrink(WORLD, Duration::ZERO), all[2].shrink(WORLD, Duration::ZERO)];
    for (ticket, actions) in tickets.into_iter().zip(settled(&mut all)) {
        let ends = |action: &Action| match action {
            Action::End(of, Ok(Ended::Group(..))) => *of == ticket,
            _ => false,
        };
        assert!(actions.iter().any(ends), "{actions:?}");
    }
}

#[test]
fn who_parts_ends_all_that_it_waits_for_and_the_others_give_it_up() {
    let mut all = three(RULES);
    let call = all[1].call(WORLD, Lane::All, "sum".into()).expect("a whole group");
    let split = all[1].split(WORLD, 0, Duration::ZERO).expect("a whole group");
    let shrink = all[1].shrink(WORLD, Duration::ZERO);
    all[1].part("its thread is gone".into());
    let actions = settled(&mut all);
    for ticket in [call, split, shrink] {
        let ends = |action: &Action| match action {
            Action::End(of, Err(Fault { rank: Some(1), .. })) => *of == ticket,
            _ => false,
        };
        assert!(actions[1].iter().any(ends), "{ticket}");
    }
    assert!(all[1].call(WORLD, Lane::All, "sum".into()).is_err());
    assert!(
        [0, 2]
            .into_iter()
            .all(|rank| all[rank].fault(WORLD).is_some_and(|fault| fault.rank == Some(1)))
    );
}

/// What an await has ended with.
fn fault_of(actions: &[Action], ticket: Ticket) -> Option<&Fault> {
    actions.iter().find_map(|action| match action {
        Action::End(of, Err(fault)) if *of == ticket => Some(fault),
        _ => None,
    })
}

#[test]
fn who_waits_for_one_that_leaves_or_lets_go_is_told_at_once() {
    for compares in [false, true] {
        for leaves in [false, true] {
            let mut all = three(Rules { compares, ..RULES });
            // Rank 1 has made the first call, and is through with it.
            let calls: Vec<_> =
                all.iter_mut().map(|m| m.call(WORLD, Lane::All, "sum".into()).unwrap()).collect();
            (0..3).for_each(|rank| all[rank].ready(WORLD, calls[rank], Duration::ZERO));
            settled(&mut all);
            all[1].done(WORLD, calls[1], Ok(()), Duration::ZERO);
            let split = all[2].split(WORLD, 0, Duration::ZERO).unwrap();
            settled(&mut all);
            if leaves {
                all[1].leave()
            } else {
                all[1].let_go(WORLD)
            }
            let actions = settled(&mut all);
            // The first call was made by all; the split is not.
            assert!(fault_of(&actions[0], calls[0]).is_none() && all[0].fault(WORLD).is_none());
            let words = if leaves { "it has left" } else { "it has dropped the group" };
            let fault = fault_of(&actions[2], split).expect("rank 1 does not come to split");
            assert_eq!(
                (fault.kind, fault.rank, &fault.text[..]),
                (FaultKind::Lost, Some(1), words)
            );
            let fault = match leaves {
                true => all[0].split(WORLD, 0, Duration::ZERO).unwrap_err(),
                false => all[0].call(WORLD, Lane::Recv(1), "sum".into()).unwrap_err(),
            };
            assert_eq!((fault.rank, &fault.text[..]), (Some(1), words));
            // The caller has got it: no await of it ends.
            assert!(fault_of(&all[0].take(), calls[0] + 1).is_none());
        }
    }
}

#[test]
fn a_send_to_a_third_waits_for_nobody_who_leaves() {
    let mut all = three(RULES);
    let sent = all[0].call(WORLD, Lane::Send(2), "a value".into()).unwrap();
    all[1].leave();
    let actions = settled(&mut all);
    assert!(fault_of(&actions[0], sent).is_none() && all[0].fault(WORLD).is_none());
    all[2].leave();
    let actions = settled(&mut all);
    assert_eq!(fault_of(&actions[0], sent).and_then(|fault| fault.rank), Some(2));
}

#[test]
fn who_leaves_says_so_to_those_who_have_left_and_to_those_who_come_later() {
    let mut all = three(RULES);
    for rank in [1, 0, 2] {
        all[rank].leave();
        settled(&mut all);
    }
    assert!(all.iter().all(|machine| machine.is_alone() == (true, false)));
    // One that gives up joining: who is linked is told, and who comes to be linked after that.
    let mut machine = Machine::new(0, 3, RULES, Duration::ZERO);
    machine.linked(1, String::new(), Duration::ZERO);
    machine.leave();
    machine.linked(2, String::new(), Duration::ZERO);
    let actions = machine.take();
    assert!(
        actions
            .iter()
            .any(|action| matches!(action, Action::Send(1, Message::Broke { group: WORLD, fault })
        if fault.rank == Some(0) && fault.text == "it has given up joining"))
    );
    for rank in [1, 2] {
        assert!(
            actions.iter().any(
                |action| matches!(action, Action::Send(to, Message::Bye { .. }) if *to == rank)
            )
        );
    }
    assert!(fault_of(&actions, JOIN).is_some() && actions.iter().filter_map(made).next().is_none());
}

#[test]
fn a_goodbye_of_any_number_of_groups_fits_into_messages() {
    let mut all = three(RULES);
    for _ in 0..2500 {
        let _: Vec<_> = all.iter_mut().map(|m| m.split(WORLD, 0, Duration::ZERO)).collect();
        settled(&mut all);
    }
    let last = *all[0].groups.keys().next_back().expect("groups");
    let call = all[0].call(last, Lane::All, "sum".into()).unwrap();
    all[0].leave();
    for action in all[0].take() {
        if let Action::Send(1, message) = action {
            assert!(message.encode().len() <= message::BYTES_MAX);
            all[1].heard(0, message, Duration::ZERO);
        }
    }
    // It has made that call, so whoever makes it as well may have it.
    assert!(
        call > 0 && all[1].call(last, Lane::All, "sum".into()).is_ok() && all[1].peers[0].has_left
    );
}

#[test]
fn words_too_long_to_be_sent_are_compared_as_far_as_they_are() {
    let mut all = three(RULES);
    for machine in &mut all {
        machine.call(WORLD, Lane::All, format!("sum of {}", "1, ".repeat(1000))).unwrap();
    }
    // Over the wire.
    for _ in 0..3 {
        for from in 0..3 {
            for action in all[from].take() {
                if let Action::Send(to, message) = action {
                    let message = Message::decode(&message.encode()[4..]).expect("a message");
                    all[to].heard(from, message, Duration::ZERO);
                }
            }
        }
    }
    assert!(all.iter().all(|machine| machine.fault(WORLD).is_none()));
}

/// What so many queued calls cost three members, in calls that are looked at: the others make
/// theirs when rank 0 has made all, each is let go, is through in another order, and the deadlines
/// are looked at all the while.
fn looked(calls: usize, compares: bool) -> u64 {
    let mut all = three(Rules { compares, ..RULES });
    let mut now = Duration::ZERO;
    let mut open: Vec<VecDeque<Ticket>> = vec![VecDeque::new(); 3];
    for rank in 0..3 {
        for _ in 0..calls {
            now += Duration::from_nanos(1);
            let ticket = all[rank].call(WORLD, Lane::All, "sum".into()).unwrap();
            all[rank].ready(WORLD, ticket, now);
            open[rank].push_back(ticket);
            all[rank].tick(now);
            all[rank].next();
            for action in all[rank].take() {
                if let Action::Send(to, message) = action {
                    all[to].heard(rank, message, now);
                    all[to].next();
                }
            }
        }
    }
    for rank in 0..3 {
        settled(&mut all);
        let mut turn = 0;
        while let Some(ticket) =
            if turn % 2 == 0 { open[rank].pop_back() } else { open[rank].pop_front() }
        {
            turn += 1;
            all[rank].done(WORLD, ticket, Ok(()), now);
            all[rank].tick(now);
            all[rank].next();
        }
        assert!(all[rank].groups[&WORLD].calls.tickets().next().is_none());
    }
    all.iter().map(|machine| machine.groups[&WORLD].calls.looked()).sum()
}

#[test]
fn what_a_call_costs_does_not_grow_with_what_is_queued() {
    for compares in [false, true] {
        for calls in [100, 3000] {
            let looked = looked(calls, compares);
            assert!(
                looked <= 3 * 8 * calls as u64,
                "{looked} looks for {calls} calls of three: {compares}"
            );
        }
    }
}

#[test]
fn a_member_that_is_too_far_ahead_breaks_the_group_and_fills_no_memory() {
    let mut machine = three(RULES).swap_remove(0);
    for seq in 0..=AHEAD_MAX as u64 {
        let call = Message::Called { group: WORLD, lane: 0, seq, text: String::new() };
        machine.heard(1, call, Duration::ZERO);
    }
    assert_eq!(
        machine.fault(WORLD).map(|fault| (fault.kind, fault.rank)),
        Some((FaultKind::Calls, Some(1)))
    );
    let mut machine = three(RULES).swap_remove(0);
    for seq in 0..=AHEAD_MAX as u64 {
        machine.heard(1, Message::Split { group: WORLD, seq, color: 0 }, Duration::ZERO);
    }
    assert_eq!(
        machine.fault(WORLD).map(|fault| (fault.kind, fault.rank)),
        Some((FaultKind::Calls, Some(1)))
    );
}

/// Whatever another member says, in whatever order: this one does not panic, and each of its awaits
/// ends at the deadline at last.
#[test]
fn what_a_member_makes_up_harms_nobodys_awaits() {
    let seed =
        std::env::var("FUTENSOR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let few =
        |dice: &mut Dice, most: u64| if dice.one_in(8) { dice.next() } else { dice.below(most) };
    for round in 0..2000 {
        let rules = Rules { compares: dice.one_in(2), ..RULES };
        let mut machine = three(rules).swap_remove(0);
        let (mut now, mut awaits) = (Duration::ZERO, HashSet::new());
        for _ in 0..60 {
            now += Duration::from_millis(dice.below(20));
            let group = if dice.one_in(3) { few(&mut dice, 4) } else { WORLD };
            let counts = [few(&mut dice, 5), few(&mut dice, 5), few(&mut dice, 5)];
            let rank = few(&mut dice, 4) as u32 as usize;
            let seq = few(&mut dice, 5);
            let fault = Fault { kind: FaultKind::Calls, rank: Some(rank), text: String::new() };
            let some =
                (0..dice.below(4)).map(|_| few(&mut dice, 4) as u32 as usize).collect::<Vec<_>>();
            let message = match dice.below(10) {
                0 => Message::Beat { calls: vec![(group, counts)] },
                1 => {
                    Message::Roster { addresses: vec!["nowhere:1".into(); dice.below(4) as usize] }
                }
                2 => Message::Called {
                    group,
                    lane: few(&mut dice, 3) as u8,
                    seq,
                    text: "sum".into(),
                },
                3 if dice.one_in(8) => Message::Broke { group, fault },
                4 if dice.one_in(8) => {
                    Message::Lost { rank, ended: dice.one_in(2), text: String::new() }
                }
                5 => Message::Split { group, seq, color: dice.below(2) },
                6 => {
                    let lost = some.iter().map(|rank| (*rank, dice.one_in(2))).collect();
                    Message::Shrink { group, lost, settled: dice.one_in(4).then_some(some) }
                }
                7 if dice.one_in(8) => Message::LetGo { group, calls: counts },
                8 if dice.one_in(20) => Message::Bye { calls: vec![(group, counts)] },
                _ => Message::Words { group, words: vec![1, 2] },
            };
            machine.heard(1 + dice.below(2) as usize, message, now);
            if machine.groups.contains_key(&WORLD) {
                let asked = match dice.below(6) {
                    0 => machine.call(WORLD, Lane::All, "sum".into()).ok(),
                    1 => machine.call(WORLD, Lane::Send(1), "sum".into()).ok(),
                    2 => machine.split(WORLD, 0, now).ok(),
                    3 if dice.one_in(10) => Some(machine.shrink(WORLD, now)),
                    _ => None,
                };
                awaits.extend(asked);
                asked.into_iter().for_each(|ticket| machine.ready(WORLD, ticket, now));
            }
            machine.tick(now);
            ends(&mut machine, &mut awaits);
            assert!(machine.early.len() <= EARLY_MAX);
        }
        for _ in 0..4 {
            // Nobody else says anything: who is silent is lost, and the last deadline ends the
            // rest.
            now += RULES.deadline.max(RULES.silence);
            machine.tick(now);
            ends(&mut machine, &mut awaits);
        }
        assert!(awaits.is_empty(), "seed {seed}, round {round}: {awaits:?} do not end");
    }
}

/// Takes off what has ended.
fn ends(machine: &mut Machine, awaits: &mut HashSet<Ticket>) {
    for action in machine.take() {
        if let Action::End(ticket, _) = action {
            awaits.remove(&ticket);
        }
    }
}

#[test]
fn a_member_far_ahead_of_its_group_is_kept_to_what_is_kept_for_it() {
    let mut machine = three(RULES).swap_remove(0);
    for group in 100..100 + 2 * EARLY_MAX as u64 {
        machine.heard(1, Message::Words { group, words: Vec::new() }, Duration::ZERO);
    }
    assert_eq!(machine.early.len(), EARLY_MAX);
}
