//! Ranks of one process: groups over real sockets and threads, whose engine is a meeting place in
//! memory. So all but the libraries is tried where there is neither an MPI nor a GPU.

mod coming;
mod held;
mod links;

use super::Options;
use super::driver::{Driver, begin};
use super::group::{Group, Waiting};
use crate::dtype::DType;
use crate::engine::exchange::{Call, Engine, Key, Through, What};
use crate::error::{Error, Result};
use crate::graph::value::Buffer;
use crate::memory::Memory;
use crate::sync::lock_plain as lock;
use std::collections::HashMap;
use std::future::Future;
use std::net::TcpListener;
use std::panic::Location;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{park_timeout, sleep, spawn};
use std::time::{Duration, Instant};

/// Longer than anything here takes, and shorter than what nothing here may wait for.
const SOON: Duration = Duration::from_secs(5);
const NEVER: Duration = Duration::from_secs(300);

/// Where the ranks of a test meet: how many have come to each call.
#[derive(Default)]
struct Place {
    came: Mutex<HashMap<(u64, (usize, usize), u64), usize>>,
}

/// What a test reads of an engine, and how it misbehaves.
#[derive(Default)]
struct Told {
    starts: AtomicUsize,
    under_way: AtomicUsize,
    most: AtomicUsize,
    aborts: AtomicUsize,
    frees: AtomicUsize,
    moves: AtomicUsize,
    panics: AtomicBool,
    /// It needs nobody else to open a group.
    opens_alone: AtomicBool,
}

struct Wire {
    place: Arc<Place>,
    told: Arc<Told>,
    /// Of each group its size and this rank's number, and how many calls of each kind were started.
    groups: HashMap<u64, (usize, usize)>,
    made: HashMap<(u64, (usize, usize)), u64>,
    under_way: Vec<(Call, (u64, (usize, usize), u64), usize)>,
}

impl Engine for Wire {
    fn combines(&self, _: DType) -> bool {
        true
    }
    fn writes_over(&self, _: &dyn Buffer) -> bool {
        false
    }
    fn room(&mut self, _: &Arc<Memory>, _: usize) -> Option<Arc<dyn Buffer>> {
        None
    }
    fn moves(&mut self) {
        self.told.moves.fetch_add(1, SeqCst);
    }
    fn start(&mut self, call: Call) {
        assert!(!self.told.panics.load(SeqCst), "a library's own fault");
        let id = call.group.1;
        if let What::Open(ranks, me) = &call.what {
            let at = ranks.iter().position(|rank| rank == me).expect("a member");
            self.groups.insert(id, (ranks.len(), at));
        }
        let (size, me) = self.groups[&id];
        let (pair, needed) = match call.what {
            What::Send(to) => ((me, to), 2),
            What::Recv(from) => ((from, me), 2),
            What::Open(..) if self.told.opens_alone.load(SeqCst) => ((usize::MAX, usize::MAX), 1),
            _ => ((usize::MAX, usize::MAX), size),
        };
        let made = self.made.entry((id, pair)).or_default();
        let meeting = (id, pair, *made);
        *made += 1;
        *lock(&self.place.came).entry(meeting).or_default() += 1;
        self.told.starts.fetch_add(1, SeqCst);
        self.under_way.push((call, meeting, needed));
        let now = self.under_way.len();
        self.told.under_way.store(now, SeqCst);
        self.told.most.fetch_max(now, SeqCst);
    }
    fn poll(&mut self, ended: &mut Vec<(Call, Through)>) {
        let came = lock(&self.place.came);
        let through =
            self.under_way.extract_if(.., |(_, meeting, needed)| came[meeting] == *needed);
        ended.extend(through.map(|(call, ..)| (call, Ok(()))));
        self.told.under_way.store(self.under_way.len(), SeqCst);
    }
    fn abort(&mut self, group: Key) {
        self.told.aborts.fetch_add(1, SeqCst);
        self.under_way.retain(|(call, ..)| call.group != group);
    }
    fn free(&mut self, group: Key) {
        assert!(
            !self.under_way.iter().any(|(call, ..)| call.group == group),
            "it is at work still"
        );
        self.told.frees.fetch_add(1, SeqCst);
    }
    fn in_flight(&self) -> usize {
        self.under_way.len()
    }
    fn finish(&mut self, _: bool) -> bool {
        true
    }
}

/// One member, with an engine of its own.
struct Rank {
    driver: &'static Driver,
    told: Arc<Told>,
    options: Options,
    at: String,
}

impl Rank {
    fn join(&self) -> Waiting<Group> {
        let plan = self.options.plan(|_| None).expect("a plan").expect("others");
        Group::join_by(plan, Ok(self.driver), Location::caller())
    }

    /// No thread of its groups is left.
    fn is_through(&self) -> bool {
        self.driver.worlds().is_empty()
    }
}

/// An address that nobody listens at.
fn address() -> String {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    free.local_addr().expect("its number").to_string()
}

/// So many that have not joined yet, and wait for nothing that should not be waited for.
fn strangers(size: usize) -> Vec<Rank> {
    let (place, at) = (Arc::new(Place::default()), address());
    let rank = |rank| {
        let told = Arc::new(Told::default());
        let (groups, made, under_way) = (HashMap::new(), HashMap::new(), Vec::new());
        let wire = Wire { place: place.clone(), told: told.clone(), groups, made, under_way };
        let options = Options::default().member(rank, size).address(&at).secret("words");
        let options = options.silence(NEVER).deadline(NEVER).arrival(NEVER).compares(false);
        Rank { driver: begin(Box::new(wire)).expect("a thread"), told, options, at: at.clone() }
    };
    (0..size).map(rank).collect()
}

fn members(size: usize) -> (Vec<Rank>, Vec<Group>) {
    let ranks = strangers(size);
    let groups = well(ranks.iter().map(Rank::join));
    (ranks, groups)
}

fn joined(ranks: &[Rank]) -> Vec<Result<Group>> {
    all(ranks.iter().map(Rank::join))
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// What each ends with, soon. They are polled side by side: to open a group takes all its members.
fn all<T>(of: impl IntoIterator<Item = Waiting<T>>) -> Vec<Result<T>> {
    let (mut of, since): (Vec<_>, _) =
        (of.into_iter().map(|wait| (wait, None)).collect(), Instant::now());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        for (wait, out) in of.iter_mut().filter(|(_, out)| out.is_none()) {
            if let Poll::Ready(ended) = pin!(wait).poll(&mut Context::from_waker(&waker)) {
                *out = Some(ended);
            }
        }
        if of.iter().all(|(_, out)| out.is_some()) {
            return of.into_iter().filter_map(|(_, out)| out).collect();
        }
        assert!(since.elapsed() < SOON, "it does not end");
        park_timeout(Duration::from_millis(100));
    }
}

fn wait<T>(of: Waiting<T>) -> Result<T> {
    all([of]).swap_remove(0)
}

/// That each ends well.
fn well<T>(of: impl IntoIterator<Item = Waiting<T>>) -> Vec<T> {
    all(of).into_iter().map(|ended| ended.expect("it ends well")).collect()
}

fn until(what: &str, is: impl Fn() -> bool) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < SOON, "it does not come to this: {what}");
        sleep(Duration::from_millis(1));
    }
}

fn lost<T>(of: Result<T>) -> (Option<usize>, String) {
    let error: Error = of.err().expect("one is lost");
    (error.lost_rank(), error.message().to_owned())
}
