//! Whose turn it is: one thread drives the engine, and another stands by.
//!
//! To tell of what has ended is to call wakers, which are a user's and may take long. So the thread
//! at the post says when it begins to; and the one that stands by, which looks every [`WATCH`],
//! takes the post over from one that does not come back. The engine itself lies behind a lock,
//! which nobody holds while it tells. No call pays for that with more than a few writes: to hand
//! wakers to another thread each time would cost a small collective as much as itself.

use super::work::{Next, Tell, Work};
use super::{Driver, Engine};
use crate::guard::{caught, contained};
use crate::host::threads::lower_priority;
use crate::sync::lock_plain as lock;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::Thread;
use std::time::Duration;

/// How often who stands by looks.
const WATCH: Duration = Duration::from_millis(2);
/// Threads at most: so many wakers may take long at once before others wait for them.
const THREADS: usize = 8;

#[derive(Default)]
pub(super) struct Post {
    /// Nothing once it is over.
    work: Mutex<Option<Work>>,
    /// The number of the thread that has it, and how many there have been.
    holder: AtomicU64,
    numbers: AtomicU64,
    threads: AtomicUsize,
    /// Who is woken by an order, while it sleeps; and who stands by.
    sleeper: Mutex<Option<Thread>>,
    second: Mutex<Option<Thread>>,
    asleep: AtomicBool,
    /// Nothing is under way, and has not been for a while: nobody needs to be watched.
    rests: AtomicBool,
    /// Which time it is that wakers are called, while they are, and how many times they were.
    telling: AtomicU64,
    told: AtomicU64,
}

impl Post {
    /// An order has come.
    pub fn wake(&self) {
        if self.asleep.load(SeqCst)
            && let Some(thread) = &*lock(&self.sleeper)
        {
            thread.unpark();
        }
    }

    fn tell(&self, tell: Tell) {
        let time = self.told.fetch_add(1, SeqCst) + 1;
        self.telling.store(time, SeqCst);
        contained(|| tell.tell());
        // Unless another has the post by now.
        let _ = self.telling.compare_exchange(time, 0, SeqCst, SeqCst);
    }
}

impl Driver {
    /// Begins to drive an engine.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn take_up(&'static self, engine: Box<dyn Engine>) -> io::Result<()> {
        *lock(&self.post.work) = Some(Work::new(self, engine));
        self.spawn(Driver::hold)?;
        // Without a second one wakers hold up calls, and nothing worse.
        let _ = self.spawn(Driver::stand_by);
        Ok(())
    }

    fn spawn(&'static self, life: fn(&'static Driver, u64)) -> io::Result<()> {
        let number = self.post.numbers.fetch_add(1, SeqCst);
        self.post.threads.fetch_add(1, SeqCst);
        let thread = std::thread::Builder::new().name("futensor-exchange".into());
        let lives = move || {
            lower_priority(8);
            life(self, number);
            self.post.threads.fetch_sub(1, SeqCst);
        };
        let spawned = thread.spawn(lives);
        if spawned.is_err() {
            self.post.threads.fetch_sub(1, SeqCst);
        }
        spawned.map(drop)
    }

    /// At the post, until it is over or another has it.
    fn hold(&'static self, number: u64) {
        let post = &self.post;
        let mut tells = Vec::new();
        while post.holder.load(SeqCst) == number {
            let turn = {
                let mut work = lock(&post.work);
                let Some(at_work) = &mut *work else { return };
                let turn = caught(|| at_work.turn(&mut tells));
                if !matches!(turn, Ok(Next::Turn | Next::Sleep(_))) {
                    // What a library may be writing to still stays.
                    std::mem::forget(work.take());
                }
                turn
            };
            if !tells.is_empty() {
                tells.drain(..).for_each(|tell| post.tell(tell));
            }
            match turn {
                Ok(Next::Turn) => {}
                Ok(Next::Sleep(longest)) => self.sleep(longest, number),
                Ok(Next::Over(in_order)) => return self.over(in_order),
                Err(words) => return self.breaks(&words),
            }
        }
        // It was held up, and another has taken the post.
        if lock(&post.second).is_none() {
            self.stand_by(number);
        }
    }

    /// Beside the post: takes it over from who is held up.
    fn stand_by(&'static self, number: u64) {
        let post = &self.post;
        *lock(&post.second) = Some(std::thread::current());
        loop {
            let before = post.telling.load(SeqCst);
            match post.rests.load(SeqCst) && before == 0 {
                true => std::thread::park(),
                false => std::thread::park_timeout(WATCH),
            }
            if lock(&self.inbox).finished.is_some() {
                return;
            }
            if before != 0 && post.telling.load(SeqCst) == before {
                break;
            }
        }
        *lock(&post.second) = None;
        post.holder.store(number, SeqCst);
        if post.threads.load(SeqCst) < THREADS {
            let _ = self.spawn(Driver::stand_by);
        }
        if let Some(work) = &mut *lock(&post.work) {
            work.moves();
        }
        self.hold(number);
    }

    fn sleep(&self, longest: Option<Duration>, number: u64) {
        let post = &self.post;
        *lock(&post.sleeper) = Some(std::thread::current());
        post.asleep.store(true, SeqCst);
        if !self.has_orders.load(SeqCst) && post.holder.load(SeqCst) == number {
            match longest {
                Some(longest) => std::thread::park_timeout(longest),
                None => {
                    post.rests.store(true, SeqCst);
                    std::thread::park();
                    post.rests.store(false, SeqCst);
                    if let Some(second) = &*lock(&post.second) {
                        second.unpark();
                    }
                }
            }
        }
        post.asleep.store(false, SeqCst);
    }

    /// Nothing more happens; and whether all went in order.
    fn over(&self, in_order: bool) {
        let orders = {
            let mut inbox = lock(&self.inbox);
            inbox.finished = Some(in_order);
            std::mem::take(&mut inbox.orders)
        };
        drop(orders);
        self.done.notify_all();
        if let Some(second) = &*lock(&self.post.second) {
            second.unpark();
        }
    }

    /// The thread at the post has panicked. Whoever waits for a call is told, as are the other
    /// ranks.
    fn breaks(&self, words: &str) {
        let text = format!("its thread for calls panicked: {words}");
        *lock(&self.broken) = Some(text.clone());
        self.over(false);
        self.worlds().iter().for_each(|world| world.fails(text.clone()));
    }
}
