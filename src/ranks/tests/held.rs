//! Whoever is held up, gives up or panics, beside those who go on.

use super::*;
use std::sync::Condvar;
use std::task::Wake;

#[test]
fn a_split_or_shrink_that_one_gives_up_ends_for_the_others() {
    for polled in [false, true] {
        let (_ranks, groups) = members(3);
        let mut splits: Vec<_> = groups.iter().map(|group| group.split(0)).collect();
        let mut given_up = splits.pop().expect("a split");
        if polled {
            let _ = pin!(&mut given_up).poll(&mut Context::from_waker(Waker::noop()));
        }
        drop(given_up);
        for split in all(splits) {
            // The group that it gives does not come to be, or rank 2 is in it no more; and this one
            // goes on.
            let (rank, text) = lost(split.and_then(|group| wait(group.barrier())));
            assert_eq!(rank, Some(2), "{text}");
            assert!(text.contains("it has dropped the group"), "{text}");
        }
        well(groups.iter().map(Group::barrier));
        let mut shrinks: Vec<_> = groups.iter().map(Group::shrink).collect();
        drop(shrinks.remove(0));
        // They go on without it.
        assert!(well(shrinks).iter().all(|rest| rest.size() == 2));
    }
}

#[test]
fn a_task_that_panics_with_its_group_is_no_wait_for_the_others() {
    let (_ranks, mut groups) = members(3);
    let mine = groups.remove(1);
    let waits: Vec<_> = groups.iter().map(Group::barrier).collect();
    let panics = spawn(move || {
        let _held = mine;
        panic!("a task of somebody's");
    });
    assert!(panics.join().is_err());
    assert!(all(waits).into_iter().all(|ended| lost(ended).0 == Some(1)));
    // In the middle of a call: it has made it, so the others have theirs.
    let (_ranks, mut groups) = members(3);
    let mine = groups.remove(1);
    let (waits, theirs) = (groups.iter().map(Group::barrier).collect::<Vec<_>>(), mine.barrier());
    let panics = spawn(move || {
        let _held = (mine, theirs);
        panic!("a task of somebody's");
    });
    assert!(panics.join().is_err());
    well(waits);
}

#[test]
fn a_lost_rank_is_named_by_its_number_in_the_group_that_was_asked() {
    let (_ranks, groups) = members(4);
    let splits = groups.iter().map(|group| group.split(group.rank() as u64 % 2));
    let mut halves: Vec<_> = well(splits).into_iter().map(Some).collect();
    let last = groups.into_iter().take(3).collect::<Vec<_>>();
    // Rank 3 of four is rank 1 of its half, and leaves.
    halves[3] = None;
    let (rank, text) = lost(wait(halves[1].as_ref().expect("a half").barrier()));
    assert!(rank == Some(1) && text.starts_with("rank 1 is lost: it has "), "{rank:?}, {text}");
    assert_eq!(lost(wait(last[0].barrier())).0, Some(3));
    // The other half goes on.
    well([&halves[0], &halves[2]].map(|half| half.as_ref().expect("a half").barrier()));
}

/// Waits for its gate whenever it wakes somebody.
#[derive(Default)]
struct Slow {
    open: Mutex<bool>,
    changed: Condvar,
    called: AtomicBool,
}

impl Wake for Slow {
    fn wake(self: Arc<Slow>) {
        self.called.store(true, SeqCst);
        let mut open = lock(&self.open);
        while !*open {
            open = self.changed.wait(open).expect("nobody panics");
        }
    }
}

impl Slow {
    fn open(&self) {
        *lock(&self.open) = true;
        self.changed.notify_all();
    }
}

#[test]
fn a_waker_that_does_not_come_back_holds_up_no_other_call() {
    let (ranks, groups) = members(2);
    let slow = [0, 1, 2].map(|_| Arc::new(Slow::default()));
    for (nth, slow) in slow.iter().enumerate() {
        let mut barrier = pin!(groups[0].barrier());
        let waker = Waker::from(slow.clone());
        assert!(barrier.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        wait(groups[1].barrier()).expect("both are here");
        until("its waker is called", || slow.called.load(SeqCst));
        // Whatever comes after that goes on beside it.
        for _ in 0..10 {
            well([groups[0].barrier(), groups[1].barrier()]);
        }
        // A call that a busy machine keeps from its core is moved on too, and not each of twenty.
        let moves = ranks[0].told.moves.load(SeqCst);
        assert!((nth + 1..nth + 10).contains(&moves), "{moves} moves");
    }
    slow.iter().for_each(|slow| slow.open());
    well([groups[0].barrier(), groups[1].barrier()]);
}

#[test]
fn a_waker_that_does_not_come_back_makes_no_rank_silent() {
    let mut ranks = strangers(3);
    for rank in &mut ranks {
        rank.options = rank.options.clone().silence(Duration::from_millis(500));
    }
    let mut groups = well(ranks.iter().map(Rank::join));
    let mut pair = well(groups.iter().map(|group| group.split(group.rank() as u64 / 2)));
    pair.pop();
    // Rank 2 goes, and the thread of rank 0's links tells of that.
    let slow = Arc::new(Slow::default());
    let mut barrier = pin!(groups[0].barrier());
    assert!(
        barrier.as_mut().poll(&mut Context::from_waker(&Waker::from(slow.clone()))).is_pending()
    );
    drop(groups.pop());
    until("its waker is called", || slow.called.load(SeqCst));
    sleep(Duration::from_millis(1200));
    well(pair.iter().map(Group::barrier));
    slow.open();
}

#[test]
fn a_library_that_panics_ends_all_that_is_waited_for_here_and_elsewhere() {
    let (ranks, groups) = members(3);
    ranks[1].told.panics.store(true, SeqCst);
    let barriers: Vec<_> = groups.iter().map(Group::barrier).collect();
    for (rank, barrier) in all(barriers).into_iter().enumerate() {
        let (lost, text) = lost(barrier);
        assert_eq!(lost, Some(1), "rank {rank}: {text}");
        assert!(rank != 1 || text.contains("panicked: a library's own fault"), "{text}");
    }
    // What is asked of it later is an error at once, and the others go on.
    assert_eq!(lost(wait(groups[1].barrier())).0, Some(1));
    assert_eq!(lost(wait(groups[1].shrink())).0, Some(1));
    assert!(well([0, 2].map(|rank| groups[rank].shrink())).iter().all(|rest| rest.size() == 2));
}

#[test]
fn the_library_has_few_calls_at_once_however_many_are_queued() {
    const CALLS: usize = 2000;
    let (ranks, groups) = members(2);
    let barriers: Vec<_> = (0..CALLS).map(|_| groups[0].barrier()).collect();
    until("it has what it may", || ranks[0].told.under_way.load(SeqCst) == 32);
    sleep(Duration::from_millis(20));
    assert_eq!(ranks[0].told.most.load(SeqCst), 32);
    // A group beside it does not wait for that.
    let theirs: Vec<_> = (0..CALLS).map(|_| groups[1].barrier()).collect();
    well(barriers.into_iter().chain(theirs));
    assert_eq!(ranks[0].told.starts.load(SeqCst), CALLS + 1, "and the one that opened the group");
    assert!(ranks.iter().all(|rank| rank.told.most.load(SeqCst) <= 32));
}

#[test]
fn what_the_library_has_of_a_group_is_freed_also_where_it_broke() {
    let (ranks, groups) = members(2);
    for round in 1..=10 {
        let short = well(groups.iter().map(|group| group.split(0)));
        // Some the library has, some wait for it, and some of theirs are never made.
        let waits: Vec<_> = (0..100).map(|_| short[1].barrier()).collect();
        until("it has what it may", || ranks[1].told.under_way.load(SeqCst) == 32);
        short[0].spoil("all_reduce", "an operand");
        assert!(all(waits).iter().all(Result::is_err));
        for group in &short {
            let error = wait(group.barrier()).expect_err("it broke");
            assert!(error.message().contains("the operand of rank 0 has failed"), "{error}");
        }
        drop(short);
        for rank in &ranks {
            until("it is aborted, and freed", || {
                rank.told.aborts.load(SeqCst) == round && rank.told.frees.load(SeqCst) == round
            });
        }
    }
    drop(groups);
    ranks.iter().for_each(|rank| until("nothing of a call is kept", || rank.is_through()));
}
