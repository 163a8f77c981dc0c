//! Joining and leaving.

use super::*;

#[test]
fn who_leaves_is_waited_for_by_nobody_in_whatever_order_they_go() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (ranks, groups) = members(3);
        let mut groups: Vec<Option<Group>> = groups.into_iter().map(Some).collect();
        for (nth, rank) in order.into_iter().enumerate() {
            groups[rank] = None;
            sleep(Duration::from_millis(20));
            assert!(
                nth == 2 || ranks.iter().all(|rank| !rank.is_through()),
                "{order:?}: the others are there"
            );
        }
        // Sockets and all: their silence would be waited for minutes.
        ranks.iter().for_each(|rank| until("all have left", || rank.is_through()));
    }
}

#[test]
fn all_that_end_at_once_are_through_at_once() {
    for _ in 0..20 {
        let (ranks, groups) = members(4);
        let ends: Vec<_> = groups.into_iter().map(|group| spawn(move || drop(group))).collect();
        ends.into_iter().for_each(|end| end.join().expect("it ends"));
        ranks.iter().for_each(|rank| until("all have left", || rank.is_through()));
    }
}

#[test]
fn who_gives_up_joining_tells_the_others_and_all_may_join_again() {
    for gives_up in [0, 1] {
        let ranks = strangers(3);
        let mut joins: Vec<_> = ranks[..2].iter().map(|rank| Some(rank.join())).collect();
        // Both are there, and rank 2 is not.
        sleep(Duration::from_millis(100));
        drop(joins[gives_up].take());
        let (rank, text) = lost(wait(joins[1 - gives_up].take().expect("the other")));
        assert_eq!(rank, Some(gives_up), "{text}");
        assert!(text.contains("given up joining") || text.contains("has ended"), "{text}");
        until("both are through", || ranks.iter().all(Rank::is_through));
        well(well(ranks.iter().map(Rank::join)).iter().map(Group::barrier));
    }
}

#[test]
fn a_join_that_was_never_polled_is_given_up_as_well() {
    let ranks = strangers(2);
    drop(ranks[0].join());
    until("its thread is gone", || ranks[0].is_through());
    assert!(joined(&ranks).iter().all(Result::is_ok), "the port and the place are free again");
}

#[test]
fn the_same_group_is_not_joined_twice_at_once() {
    let ranks = strangers(2);
    let first = ranks[0].join();
    let error = wait(ranks[0].join()).expect_err("the first is under way");
    assert!(
        error.is_argument() && error.message().contains("already joining that group"),
        "{error}"
    );
    // The first is as it was; and once it is through, the next may come.
    let first = well([first, ranks[1].join()]);
    let second = well(ranks.iter().map(Rank::join));
    well(first.iter().chain(&second).map(Group::barrier));
}

#[test]
fn a_join_ends_in_time_where_nobody_takes_its_call() {
    // All that calls is left in the backlog, or beside it.
    let (listener, callers) = crate::ranks::dial::tests::full();
    let mut ranks = strangers(2);
    let at = listener.local_addr().expect("an address").to_string();
    let arrival = Duration::from_millis(300);
    ranks[1].options = ranks[1].options.clone().address(&at).arrival(arrival);
    let since = Instant::now();
    let error = wait(ranks[1].join()).expect_err("nobody answers");
    assert!(error.message().contains("rank 0 does not answer within 300ms"), "{error}");
    assert!(since.elapsed() < arrival + Duration::from_secs(1), "{:?}", since.elapsed());
    // One that takes it and says nothing.
    drop(callers);
    let _takes = spawn(move || listener.incoming().take(1).collect::<Vec<_>>());
    let since = Instant::now();
    wait(ranks[1].join()).expect_err("nobody answers");
    assert!(since.elapsed() < arrival + Duration::from_secs(1), "{:?}", since.elapsed());
}
