//! The protocol without a network: members that hear each other at once, or not at all.

use super::message::{FaultKind, Lane, Message};
use super::simulated::RULES;
use super::*;

/// Three that are linked, with what they were to do so far done.
fn three(rules: Rules) -> Vec<Machine> {
    let mut all: Vec<Machine> = (0..3).map(|me| Machine::new(me, 3, rules, Duration::ZERO)).collect();
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
fn a_group_is_freed_once_all_have_let_go_of_it_and_never_once_it_broke() {
    let frees = |all: &mut [Machine]| -> Vec<bool> {
        let actions = settled(all);
        actions.iter().map(|each| each.iter().any(|action| matches!(action, Action::Free(_)))).collect()
    };
    let mut all = three(RULES);
    let ticket = all[0].call(WORLD, Lane::All, "sum".into()).expect("a whole group");
    (0..3).for_each(|rank| all[rank].let_go(WORLD));
    // Rank 0 has something under way still.
    assert_eq!(frees(&mut all), [false; 3]);
    all[0].done(WORLD, ticket, Ok(()), Duration::ZERO);
    assert_eq!(frees(&mut all), [true; 3]);
    let mut all = three(RULES);
    all[1].spoil(WORLD, "an operand".into());
    (0..3).for_each(|rank| all[rank].let_go(WORLD));
    assert_eq!(frees(&mut all), [false; 3]);
}

#[test]
fn calls_that_differ_fail_on_every_rank_and_say_how() {
    let rules = Rules { compares: true, ..RULES };
    let mut all = three(rules);
    let words = ["all_reduce of float32 [2]", "all_reduce of float32 [2]", "all_reduce of float32 [3]"];
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
        assert!(text.contains("[2], rank 2 for all_reduce of float32 [3]"), "{text}");
    }
}

#[test]
fn who_is_given_up_says_so_to_those_who_still_hear_it() {
    let mut all = three(RULES);
    all[1].heard(0, Message::Lost { rank: 1, ended: false, text: "silent".into() }, Duration::ZERO);
    let says = |action: &Action| matches!(action, Action::Send(2, Message::Lost { rank: 1, ended: true, .. }));
    assert!(all[1].take().iter().any(says));
    // Once: those who hear it give it up, and tell it so.
    all[1].heard(2, Message::Lost { rank: 1, ended: true, text: "it says so".into() }, Duration::ZERO);
    assert!(!all[1].take().iter().any(|action| matches!(action, Action::Send(..))));
}

#[test]
fn the_end_of_a_link_counts_as_the_end_of_a_process_unless_it_was_closed() {
    for (closed, part_goes_on) in [(false, true), (true, false)] {
        // Rank 2 has lost rank 0 by silence, and then their link ends, which 0 closed or did not. Rank 1
        // has left, so rank 2 goes on alone only where 0 has ended.
        let mut all = three(RULES);
        all[2].heard(1, Message::Bye { calls: Vec::new() }, Duration::ZERO);
        let machine = &mut all[2];
        machine.lost(0, false, "silent");
        if closed {
            machine.heard(0, Message::Lost { rank: 2, ended: false, text: "silent".into() }, Duration::ZERO);
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
        let ends = |action: &Action| matches!(action, Action::End(of, Ok(Ended::Group(..))) if *of == ticket);
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
        let ends = |action: &Action| matches!(action, Action::End(of, Err(Fault { rank: Some(1), .. })) if *of == ticket);
        assert!(actions[1].iter().any(ends), "{ticket}");
    }
    assert!(all[1].call(WORLD, Lane::All, "sum".into()).is_err());
    assert!([0, 2].into_iter().all(|rank| all[rank].fault(WORLD).is_some_and(|fault| fault.rank == Some(1))));
}
