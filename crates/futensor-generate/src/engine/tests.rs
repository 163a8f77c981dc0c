//! The engine on a model that a seed moves: requests that come, read slowly, hang up and are late;
//! steps that fail. The model keeps tokens in its pages and chooses by what it finds there, so a
//! page that is given to two, freed too early or shared wrongly shows in somebody's tokens.

use super::driver::{Client, Driver, Readers};
use super::stream::{Channel, Tokens};
use super::{Command, Shared, Stats};
use crate::batch_planner::{Job, Limits, Step};
use crate::constraint::{Constraint, Grammar, Grammars};
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::model::{Choice, Runner, Wish};
use crate::request::{End, Token};
use crate::sampling::Sampling;
use crate::tokenizer::testing::vocabulary;
use crate::tokenizer::{Text, Tokenizer};
use futures_core::Stream;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}

/// The token that follows these: never one that ends a text, but after every eleventh or so.
fn next(tokens: &[u32]) -> u32 {
    let hash = tokens.iter().fold(17u64, |h, &t| h.wrapping_mul(31).wrapping_add(t as u64 + 1));
    if hash % 11 == 0 { 1 } else { 2 + (hash % 97) as u32 }
}

/// What is to happen to the steps under way: how many may be through, and which is to fail.
#[derive(Default)]
struct World {
    through: u64,
    queued: u64,
    fails: Option<u64>,
}

struct Simulated {
    world: Arc<Mutex<World>>,
    /// The tokens that pages hold, by place.
    kept: Vec<Option<u32>>,
    last: Vec<u32>,
    page: usize,
    slots: usize,
}

struct Flight {
    world: Arc<Mutex<World>>,
    number: u64,
    choices: Vec<Choice>,
}

impl Future for Flight {
    type Output = Result<Vec<Choice>>;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let world = lock(&self.world);
        if world.through <= self.number {
            return Poll::Pending;
        }
        let failed = world.fails.is_some_and(|at| at <= self.number);
        drop(world);
        match failed {
            true => Poll::Ready(Err(Error::from(futensor::Error::custom("step", "a fault")))),
            false => Poll::Ready(Ok(std::mem::take(&mut self.choices))),
        }
    }
}

impl Runner for Simulated {
    type Flight = Flight;

    fn queue(&mut self, step: &Step, wishes: &[Wish]) -> Flight {
        let mut tokens = Vec::new();
        for row in &step.rows {
            let token = row.token.unwrap_or(self.last[row.slot]);
            self.kept[row.page as usize * self.page + row.place] = Some(token);
            tokens.push((row, token));
        }
        let mut choices = Vec::new();
        for (row, token) in tokens.into_iter().filter(|(row, _)| row.chooses) {
            let table = &step.tables[&row.slot];
            let at =
                |k: usize| self.kept[table[k / self.page] as usize * self.page + k % self.page];
            let seen: Vec<u32> =
                (0..=row.position).map(|k| at(k).expect("it was written")).collect();
            assert_eq!(seen.last(), Some(&token));
            self.last[row.slot] = next(&seen);
            choices.push(Choice { token: next(&seen), ..Choice::default() });
        }
        assert_eq!(choices.len(), wishes.len());
        let number = lock(&self.world).queued;
        lock(&self.world).queued += 1;
        Flight { world: self.world.clone(), number, choices }
    }

    fn reset(&mut self) {
        self.kept.fill(None);
        self.last = vec![0; self.slots];
        lock(&self.world).fails = None;
    }
}

/// Somebody who asked, and what is to be seen of it.
struct Asker {
    tokens: Tokens,
    prompt: Vec<u32>,
    most: usize,
    read: Vec<u32>,
    deadline: Option<Duration>,
    /// Reads so seldom.
    every: u64,
}

impl Asker {
    /// Reads one; true where that was the end.
    fn read(&mut self, faults: bool, now: Duration, cx: &mut Context<'_>) -> bool {
        let Poll::Ready(item) = Pin::new(&mut self.tokens).poll_next(cx) else { return false };
        match item.expect("the end comes with the last token") {
            Ok(Token { id, end, .. }) => {
                let all = [&self.prompt[..], &self.read].concat();
                assert_eq!(id, next(&all), "what follows {all:?}");
                self.read.push(id);
                let expected = match (id, self.read.len() == self.most) {
                    (1, _) => Some(End::Stop),
                    (_, true) => Some(End::Length),
                    _ => None,
                };
                assert_eq!(end, expected);
                end.is_some()
            }
            Err(error) if error.is_deadline() => {
                assert!(self.deadline.is_some_and(|at| at <= now));
                true
            }
            Err(error) => {
                assert!(error.device().is_some() && faults, "{error}");
                true
            }
        }
    }
}

struct Run {
    shared: Arc<Shared>,
    driver: Driver<Simulated>,
    world: Arc<Mutex<World>>,
    tokenizer: Arc<Tokenizer>,
    next: u64,
}

impl Run {
    fn new(limits: Limits, buffer: usize, tokenizer: Arc<Tokenizer>) -> Run {
        let readers =
            Readers { buffer, pause: Duration::from_secs(1_000), end: Duration::from_secs(2_000) };
        Run::with(limits, readers, tokenizer)
    }

    fn with(limits: Limits, readers: Readers, tokenizer: Arc<Tokenizer>) -> Run {
        let shared = Arc::new(Shared::default());
        let world = Arc::new(Mutex::new(World::default()));
        let kept = vec![None; (limits.pages + 1) * limits.page];
        let (page, slots) = (limits.page, limits.slots);
        let simulated = Simulated { world: world.clone(), kept, last: vec![0; slots], page, slots };
        let driver = Driver::new(shared.clone(), limits, simulated, readers);
        Run { shared, driver, world, tokenizer, next: 0 }
    }

    fn ask(
        &mut self,
        prompt: Vec<u32>,
        most: usize,
        deadline: Option<Duration>,
        one_by_one: bool,
    ) -> Asker {
        self.ask_with(prompt, most, deadline, one_by_one, None)
    }

    fn ask_with(
        &mut self,
        prompt: Vec<u32>,
        most: usize,
        deadline: Option<Duration>,
        one_by_one: bool,
        grammar: Option<Arc<Grammar>>,
    ) -> Asker {
        let id = self.next;
        self.next += 1;
        let channel = Arc::new(Channel::default());
        let client = Client {
            id,
            channel: channel.clone(),
            tokenizer: self.tokenizer.clone(),
            text: Text::new(&[]),
            guide: None,
            sampling: Arc::new(Sampling::default()),
            prompt: prompt.len(),
            counts: Default::default(),
            counted: 0,
            logprobs: None,
            ignore_end: false,
            begun: false,
            full: None,
        };
        let held = grammar.is_some();
        let job = Job { prompt: prompt.clone(), tokens: most, deadline, room: 0, one_by_one, held };
        self.shared.open.fetch_add(1, AcqRel);
        assert!(self.shared.send(Command::New(Box::new(client), job)));
        if let Some(grammar) = grammar {
            assert!(self.shared.send(Command::Compiled(id, Ok(grammar))));
        }
        let tokens = Tokens::new(id, channel, self.shared.clone());
        Asker { tokens, prompt, most, read: Vec::new(), deadline, every: 1 }
    }

    fn stats(&self) -> Stats {
        *lock(&self.shared.stats)
    }
}

/// One seeded life of an engine: how often somebody waited again.
fn live(seed: u64, tokenizer: &Arc<Tokenizer>) -> u64 {
    let mut random = Random(seed);
    let mut pick = |n: u64| random.below(n);
    let (page, slots) = (1 + pick(4) as usize, 1 + pick(4) as usize);
    let context = 24;
    let pages = context / page + 1 + pick(6) as usize;
    let rows = slots + 1 + pick(8) as usize;
    let limits = Limits { slots, rows, rows_beside: 1 + pick(3) as usize, pages, page, context };
    let buffer = 1 + pick(4) as usize;
    let (pause, end) = (Duration::from_millis(1 + pick(30)), Duration::from_secs(1_000));
    let mut run = Run::with(limits, Readers { buffer, pause, end }, tokenizer.clone());
    let cx = &mut Context::from_waker(Waker::noop());
    let (mut askers, mut now, mut to_come, mut faults) =
        (Vec::new(), Duration::ZERO, 3 + pick(8), false);
    for round in 0.. {
        assert!(round < 5_000, "somebody waits for ever");
        if to_come > 0 && pick(3) == 0 {
            to_come -= 1;
            let length = 1 + pick(14) as usize;
            // Few tokens, so that beginnings are common.
            let prompt: Vec<u32> = (0..length).map(|_| 2 + pick(2) as u32).collect();
            let deadline = (pick(4) == 0).then(|| now + Duration::from_millis(pick(40)));
            let mut asker = run.ask(prompt, 1 + pick(9) as usize, deadline, pick(4) == 0);
            asker.every = 1 + pick(4);
            askers.push(asker);
        }
        if pick(16) == 0 && !askers.is_empty() {
            let who = pick(askers.len() as u64) as usize;
            drop(askers.swap_remove(who));
        }
        {
            let mut world = lock(&run.world);
            world.through += pick(2);
            world.through = world.through.min(world.queued);
            if pick(40) == 0 {
                world.fails = Some(world.through);
                faults = true;
            }
        }
        now += Duration::from_millis(pick(3));
        run.driver.poll(cx, now).expect("it is open");
        run.driver.planner().check();
        askers.retain_mut(|asker| round % asker.every != 0 || !asker.read(faults, now, cx));
        if askers.is_empty() && to_come == 0 {
            break;
        }
    }
    // Nobody is there any more: one step, or two, and everything is free.
    run.driver.poll(cx, now).expect("it is open");
    assert!(run.driver.flights() <= 2);
    lock(&run.world).through = u64::MAX;
    run.driver.poll(cx, now).expect("it is open");
    let stats = run.stats();
    assert_eq!(
        (stats.running, stats.waiting, stats.pages_used, run.driver.flights()),
        (0, 0, 0, 0),
        "{stats:?}"
    );
    assert_eq!(run.shared.open.load(Acquire), 0);
    run.driver.planner().check();
    stats.preempted
}

#[test]
fn no_page_is_lost_and_no_stream_without_end_whoever_hangs_up_is_late_or_fails() {
    let tokenizer = Arc::new(vocabulary().tokenizer().unwrap());
    let seeds = match std::env::var("FUTENSOR_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).unwrap(),
        Err(_) => 0..10_000,
    };
    let (mut lives, mut preempted) = (0, 0);
    for seed in seeds {
        let lived = std::panic::catch_unwind(|| live(seed, &tokenizer));
        lives += 1;
        preempted += lived.unwrap_or_else(|panic| {
            eprintln!("FUTENSOR_SEED={seed}");
            std::panic::resume_unwind(panic)
        });
    }
    assert!(lives < 100 || preempted > lives / 8, "{preempted} waited again in {lives} lives");
}

/// Somebody who does not read gives up what he has, gets the rest when he does, and ends in the
/// end.
#[test]
fn one_that_nobody_reads_makes_room_and_ends() {
    let limits = Limits { slots: 1, rows: 4, rows_beside: 1, pages: 8, page: 2, context: 16 };
    let (pause, end) = (Duration::from_secs(5), Duration::from_secs(60));
    let readers = Readers { buffer: 2, pause, end };
    let mut run = Run::with(limits, readers, Arc::new(vocabulary().tokenizer().unwrap()));
    let cx = &mut Context::from_waker(Waker::noop());
    lock(&run.world).through = u64::MAX;
    let mut slow = run.ask(vec![4], 9, None, false);
    let mut quick = run.ask(vec![3], 2, None, false);
    let at = |seconds: u64| Duration::from_secs(seconds);
    assert_eq!(run.driver.poll(cx, at(1)), Some(Some(at(6))));
    assert_eq!(run.stats().running, 1);
    assert_eq!(run.driver.poll(cx, at(6)), Some(Some(at(61))));
    assert_eq!((run.stats().running, run.stats().preempted), (0, 1));
    while !quick.read(false, at(6), cx) {}
    // One read is a sign of life, and two of them are room.
    assert!(!slow.read(false, at(7), cx));
    assert_eq!(run.driver.poll(cx, at(50)), Some(Some(at(110))));
    assert!(!slow.read(false, at(51), cx));
    run.driver.poll(cx, at(51)).unwrap();
    assert!(!slow.read(false, at(52), cx) && slow.read.len() == 3);
    run.driver.poll(cx, at(53)).unwrap();
    run.driver.poll(cx, at(60)).unwrap();
    assert_eq!((run.stats().running, run.stats().waiting), (0, 1));
    assert_eq!(run.driver.poll(cx, at(300)), Some(None));
    let error = loop {
        match Pin::new(&mut slow.tokens).poll_next(cx) {
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(Some(Err(error))) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert!(error.is_deadline() && error.to_string().contains("nobody has read"), "{error}");
    assert_eq!((run.stats().failed, run.stats().waiting), (1, 0));
}

#[test]
fn what_is_open_when_the_thread_ends_ends_with_an_error() {
    let limits = Limits { slots: 1, rows: 4, rows_beside: 1, pages: 8, page: 2, context: 16 };
    let mut run = Run::new(limits, 4, Arc::new(vocabulary().tokenizer().unwrap()));
    let cx = &mut Context::from_waker(Waker::noop());
    let mut taken = run.ask(vec![2], 3, None, false);
    run.driver.poll(cx, Duration::ZERO).unwrap();
    let mut sent = run.ask(vec![3], 3, None, false);
    run.shared.closed.store(true, Release);
    assert!(run.driver.poll(cx, Duration::ZERO).is_none());
    drop(run.driver);
    for asker in [&mut taken, &mut sent] {
        let Poll::Ready(Some(Err(error))) = Pin::new(&mut asker.tokens).poll_next(cx) else {
            panic!("no end")
        };
        assert!(error.is_ended());
        assert!(matches!(Pin::new(&mut asker.tokens).poll_next(cx), Poll::Ready(None)));
    }
}

/// Wakes by a flag, once it may.
struct Rings {
    woken: AtomicBool,
    blocked: Mutex<bool>,
    free: Condvar,
}

impl Rings {
    fn new(blocked: bool) -> Arc<Rings> {
        Arc::new(Rings { woken: false.into(), blocked: blocked.into(), free: Condvar::new() })
    }
}

impl Wake for Rings {
    fn wake(self: Arc<Self>) {
        let blocked = lock(&self.blocked);
        drop(self.free.wait_while(blocked, |blocked| *blocked).unwrap());
        self.woken.store(true, Release);
    }
}

/// A reader whose waker blocks, and one whose grammar takes long: a neighbour goes on, and is woken
/// for each of his tokens, before they do.
#[test]
fn a_waker_or_a_grammar_that_takes_long_holds_nobody_up() {
    for grammar in [false, true] {
        let tokenizer = Arc::new(vocabulary().tokenizer().unwrap());
        let limits = Limits { slots: 2, rows: 4, rows_beside: 1, pages: 40, page: 2, context: 32 };
        let mut run = Run::new(limits, 4, tokenizer.clone());
        let compiled = grammar.then(|| {
            let (tell, told) = std::sync::mpsc::channel();
            let any = Constraint::Regex("(.|\n)*".into());
            Grammars::new(tokenizer.clone(), tokenizer.len())
                .compile(any.into(), move |g| tell.send(g).unwrap());
            told.recv().unwrap().unwrap()
        });
        // Nobody finds what it begins with.
        let held = compiled.as_ref().map(|grammar| grammar.hold());
        let mut slow = run.ask_with(vec![2], 20, None, grammar, compiled.clone());
        let mut quick = run.ask(vec![3], 20, None, false);
        let rings = [Rings::new(!grammar), Rings::new(false)];
        let wakers = rings.clone().map(Waker::from);
        let poll = |asker: &mut Asker, k: usize| {
            Pin::new(&mut asker.tokens).poll_next(&mut Context::from_waker(&wakers[k]))
        };
        assert!(poll(&mut slow, 0).is_pending() && poll(&mut quick, 1).is_pending());
        let (begin, mut read, cx) = (Instant::now(), 0, &mut Context::from_waker(Waker::noop()));
        while read < 12 {
            assert!(begin.elapsed() < Duration::from_secs(20), "held up, {grammar}");
            {
                let world = &mut *lock(&run.world);
                world.through = (world.through + 1).min(world.queued);
            }
            run.driver.poll(cx, begin.elapsed()).expect("it is open");
            if rings[1].woken.swap(false, AcqRel) {
                while let Poll::Ready(token) = poll(&mut quick, 1) {
                    assert!(token.expect("more").is_ok());
                    read += 1;
                }
            }
        }
        assert!(!rings[0].woken.load(Acquire));
        drop(held);
        *lock(&rings[0].blocked) = false;
        rings[0].free.notify_all();
        while !rings[0].woken.load(Acquire) {
            assert!(begin.elapsed() < Duration::from_secs(40), "never woken, {grammar}");
            lock(&run.world).through = u64::MAX;
            run.driver.poll(cx, begin.elapsed()).expect("it is open");
        }
        assert!(poll(&mut slow, 0).is_ready());
    }
}
