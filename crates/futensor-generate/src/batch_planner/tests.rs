//! The order of work: slots, rows, pages and pieces of prompts, without a model.

use super::*;

const LIMITS: Limits = Limits { slots: 3, rows: 8, rows_beside: 2, pages: 8, page: 2, context: 16 };

fn job(prompt: &[u32], tokens: usize) -> Job {
    Job {
        prompt: prompt.to_vec(),
        tokens,
        deadline: None,
        room: 100,
        one_by_one: false,
        held: false,
    }
}

impl BatchPlanner {
    /// Every page is somewhere, and everything is counted once.
    pub fn check(&self) {
        let tables: Vec<&[Page]> = self.running.values().map(|s| &s.table[..]).collect();
        self.pages.check(&tables);
        let mut slots: Vec<usize> =
            self.running.values().map(|s| s.slot).chain(self.slots.iter().copied()).collect();
        slots.sort();
        assert_eq!(slots, (0..self.limits.slots).collect::<Vec<_>>(), "every slot is somewhere");
        for sequence in self.running.values() {
            assert!(
                sequence.table.len() <= sequence.length_max.div_ceil(self.limits.page),
                "it holds no more than it may need"
            );
        }
    }

    /// Takes in who waits, and plans.
    fn step(&mut self) -> Option<Step> {
        self.admit();
        self.plan()
    }
}

/// Concludes the step, every choosing row with this token.
fn conclude(planner: &mut BatchPlanner, step: &Step, token: u32) -> Vec<Event> {
    let events = planner.conclude(step, true);
    for event in &events {
        if let Event::Token { id, .. } = event {
            planner.learn(*id, token);
        }
    }
    planner.settle(step);
    planner.check();
    events
}

#[test]
fn the_next_step_is_planned_before_anybody_has_read_the_last() {
    let mut planner = BatchPlanner::new(LIMITS);
    planner.submit(1, job(&[7, 8, 9], 3));
    let first = planner.step().unwrap();
    assert_eq!(
        first.rows.iter().map(|r| (r.token, r.position, r.chooses)).collect::<Vec<_>>(),
        [(Some(7), 0, false), (Some(8), 1, false), (Some(9), 2, true)]
    );
    let second = planner.step().unwrap();
    assert_eq!((second.rows.len(), second.rows[0].token, second.rows[0].position), (1, None, 3));
    let third = planner.step().unwrap();
    assert!(planner.step().is_none(), "three tokens are all there will be");
    conclude(&mut planner, &first, 1);
    conclude(&mut planner, &second, 2);
    assert_eq!(conclude(&mut planner, &third, 3), [Event::Token { id: 1, choice: 0, last: true }]);
    assert_eq!((planner.running().len(), planner.pages().used()), (0, 0));
}

#[test]
fn a_prompt_goes_in_pieces_beside_those_who_wait_for_their_next_token() {
    let mut planner = BatchPlanner::new(LIMITS);
    planner.submit(1, job(&[1], 8));
    let step = planner.step().unwrap();
    conclude(&mut planner, &step, 5);
    planner.submit(2, job(&[1, 2, 3, 4, 5], 1));
    let rows =
        |step: &Step| step.rows.iter().map(|r| (r.id, r.position, r.chooses)).collect::<Vec<_>>();
    let step = planner.step().unwrap();
    assert_eq!(rows(&step), [(1, 1, true), (2, 0, false), (2, 1, false)]);
    conclude(&mut planner, &step, 5);
    let step = planner.step().unwrap();
    assert_eq!(rows(&step), [(1, 2, true), (2, 2, false), (2, 3, false)]);
    conclude(&mut planner, &step, 5);
    assert_eq!(rows(&planner.step().unwrap()), [(1, 3, true), (2, 4, true)]);
}

#[test]
fn a_common_beginning_is_computed_once_even_in_the_same_step() {
    let mut planner = BatchPlanner::new(LIMITS);
    planner.submit(1, job(&[1, 2, 3, 4, 5], 1));
    planner.submit(2, job(&[1, 2, 3, 4, 6], 1));
    let step = planner.step().unwrap();
    let positions =
        |id| step.rows.iter().filter(|r| r.id == id).map(|r| r.position).collect::<Vec<_>>();
    assert_eq!((positions(1), positions(2)), (vec![0, 1, 2, 3, 4], vec![4]));
    let table = |slot: usize| step.tables[&slot].clone();
    let (a, b) = (table(step.rows[0].slot), table(step.rows[5].slot));
    assert!(a[..2] == b[..2] && a[2] != b[2]);
    conclude(&mut planner, &step, 9);
    assert_eq!(planner.pages().used(), 0);
    // And later, by who comes when nobody uses it.
    planner.submit(3, job(&[1, 2, 3, 4], 1));
    let step = planner.step().unwrap();
    assert_eq!(
        step.rows.iter().map(|r| r.position).collect::<Vec<_>>(),
        [2, 3],
        "the last is always computed"
    );
    assert_eq!(planner.shared_tokens(), 6);
}

/// What a step's rows are: whose, and at which position.
fn rows(step: &Step) -> Vec<(Id, usize)> {
    step.rows.iter().map(|row| (row.id, row.position)).collect()
}

#[test]
fn who_asks_for_much_takes_what_it_uses() {
    let mut planner = BatchPlanner::new(LIMITS);
    // Each may come to need all eight pages.
    (1..=3).for_each(|id| planner.submit(id, job(&[id as u32], 15)));
    let step = planner.step().unwrap();
    assert_eq!((planner.running().len(), step.rows.len(), planner.pages().used()), (3, 3, 3));
    conclude(&mut planner, &step, 9);
    assert_eq!(LIMITS.admits(15, 2), Err(Refusal::TooLong));
    assert_eq!(Limits { pages: 7, ..LIMITS }.admits(15, 1), Err(Refusal::TooLarge));
    assert_eq!(LIMITS.admits(0, 1), Err(Refusal::Empty));
}

#[test]
fn the_last_waits_again_where_there_is_no_page_and_goes_on_where_it_was() {
    let mut planner = BatchPlanner::new(Limits { slots: 2, pages: 8, rows_beside: 8, ..LIMITS });
    planner.submit(1, job(&[1; 7], 9));
    planner.submit(2, job(&[2; 3], 5));
    let mut read: BTreeMap<Id, usize> = BTreeMap::new();
    let mut steps = 0;
    while let Some(step) = planner.step() {
        for event in conclude(&mut planner, &step, 9) {
            let Event::Token { id, .. } = event else { panic!("{event:?}") };
            *read.entry(id).or_default() += 1;
        }
        steps += 1;
        assert!(steps < 30, "somebody waits for ever");
    }
    assert_eq!((read[&1], read[&2], planner.preempted()), (9, 5, 1));
    assert_eq!((planner.pages().used(), planner.waiting()), (0, 0));
}

#[test]
fn small_ones_overtake_within_bounds() {
    let mut planner = BatchPlanner::new(LIMITS);
    planner.submit(1, job(&[1; 9], 7));
    let step = planner.step().unwrap();
    conclude(&mut planner, &step, 9);
    // Five of eight pages: seven tokens more do not fit behind it.
    planner.submit(2, job(&[2; 9], 1));
    let small = |planner: &mut BatchPlanner, id: Id| {
        planner.submit(id, job(&[3], 1));
        planner.step().is_some_and(|step| {
            let went = rows(&step).iter().any(|(other, _)| *other == id);
            planner.room(1, 0, false);
            conclude(planner, &step, 9);
            went
        })
    };
    let went = (3..40).filter(|&id| small(&mut planner, id)).count();
    assert_eq!(went, OVERTAKE_MAX);
    planner.end(1);
    let step = planner.step().unwrap();
    assert!(rows(&step).contains(&(2, 0)));
}

#[test]
fn one_that_nobody_reads_gives_up_what_it_has() {
    let mut planner = BatchPlanner::new(LIMITS);
    planner.submit(1, job(&[1; 7], 9));
    let step = planner.step().unwrap();
    assert!(!planner.pause(1));
    conclude(&mut planner, &step, 9);
    assert_eq!(planner.running().len(), 1, "there is room for what it says");
    planner.room(1, 0, false);
    assert!(planner.pause(1) && !planner.pause(1));
    assert_eq!((planner.running().len(), planner.waiting(), planner.pages().used()), (0, 1, 0));
    assert!(planner.step().is_none() && planner.paused().eq([1]));
    planner.resume(1, 5);
    planner.admit();
    // What its pages held was nobody else's yet.
    assert_eq!(rows(&planner.plan().unwrap()), [(1, 6), (1, 7)]);
    // One that is needed gives it up at once, whoever came first.
    let mut planner = BatchPlanner::new(LIMITS);
    planner.submit(1, job(&[1; 9], 7));
    planner.submit(2, job(&[2; 3], 12));
    for _ in 0..20 {
        let Some(step) = planner.step() else { break };
        conclude(&mut planner, &step, 9);
        planner.room(1, 0, false);
    }
    assert_eq!((planner.paused().collect::<Vec<_>>(), planner.running().len()), (vec![1], 0));
}

#[test]
fn a_reader_without_room_stops_its_own_request_alone() {
    let mut planner = BatchPlanner::new(LIMITS);
    planner.submit(1, Job { room: 1, ..job(&[1], 5) });
    planner.submit(2, job(&[1], 5));
    let step = planner.step().unwrap();
    assert_eq!(step.rows.len(), 2);
    let next = planner.step().unwrap();
    assert_eq!(
        next.rows.iter().map(|r| r.id).collect::<Vec<_>>(),
        [2],
        "one token is on its way already"
    );
    conclude(&mut planner, &step, 3);
    conclude(&mut planner, &next, 3);
    planner.room(1, 1, false);
    assert_eq!(planner.step().unwrap().rows.len(), 2);
}

#[test]
fn who_needs_the_last_token_waits_for_it_and_deadlines_end_anybody() {
    let mut planner = BatchPlanner::new(LIMITS);
    let deadline = Some(Duration::from_secs(3));
    planner.submit(1, Job { one_by_one: true, deadline, ..job(&[1], 9) });
    let step = planner.step().unwrap();
    assert!(planner.step().is_none());
    conclude(&mut planner, &step, 3);
    let step = planner.step().unwrap();
    assert_eq!(step.rows[0].token, Some(3));
    assert!(planner.expire(Duration::from_secs(2)).is_empty());
    assert_eq!(planner.deadline(), deadline);
    assert_eq!(planner.expire(Duration::from_secs(3)), [Event::Late { id: 1 }]);
    assert_eq!((planner.expire(Duration::from_secs(4)), planner.deadline()), (vec![], None));
    assert!(conclude(&mut planner, &step, 3).is_empty());
    assert_eq!(planner.running().len(), 0);
}

#[test]
fn whoever_goes_away_costs_the_same_however_many_wait() {
    let took = |count: u64| {
        let mut planner = BatchPlanner::new(Limits { slots: 1, ..LIMITS });
        for id in 0..count {
            planner.submit(
                id,
                Job { deadline: Some(Duration::from_secs(id)), held: id % 3 == 0, ..job(&[1], 1) },
            );
        }
        planner.step();
        // From the middle, so that a list would be moved up or looked through. The quickest hundred
        // of the first half: the rest of a machine's work is not counted.
        let ids: Vec<u64> = (0..count).map(|id| (id + count / 2) % count).collect();
        let quickest = ids[..count as usize / 2].chunks_exact(100).map(|some| {
            let begin = std::time::Instant::now();
            some.iter().for_each(|&id| planner.end(id));
            begin.elapsed()
        });
        let quickest = quickest.min().unwrap();
        ids[count as usize / 2..].iter().for_each(|&id| planner.end(id));
        assert_eq!((planner.waiting(), planner.deadline()), (0, None));
        quickest
    };
    let (few, many) = (took(2_000), took(40_000));
    // With twenty times as many: a logarithm more, and what a cache does not hold.
    assert!(many < few * 8, "{few:?} {many:?}");
}

#[test]
fn one_that_is_held_is_overtaken_and_keeps_its_place_and_its_deadline() {
    let mut planner = BatchPlanner::new(Limits { slots: 1, ..LIMITS });
    planner.submit(1, Job { held: true, deadline: Some(Duration::from_secs(1)), ..job(&[1], 1) });
    planner.submit(2, Job { held: true, ..job(&[2], 1) });
    planner.submit(3, job(&[3], 1));
    planner.submit(4, job(&[4], 1));
    let step = planner.step().unwrap();
    assert_eq!((step.rows[0].id, planner.waiting(), planner.deadline().is_some()), (3, 3, true));
    planner.release(2);
    conclude(&mut planner, &step, 5);
    assert_eq!(planner.step().unwrap().rows[0].id, 2);
    assert_eq!(planner.expire(Duration::from_secs(1)), [Event::Late { id: 1 }]);
    planner.release(1);
    assert_eq!(planner.waiting(), 1);
}
