//! Selects the driving thread: one thread drives the engine, and another stands by.
//!
//! Reporting the end of a call runs wakers, which are user code and may take long. So the driving
//! thread announces when it begins to report. The standby thread checks every [`WATCH`], and takes
//! over if the driving thread does not come back. The engine is behind a lock that is not held
//! during reports. This costs each call only a few writes; passing wakers to another thread would
//! double the cost of a small collective.

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

/// The interval of the standby thread's checks.
const WATCH: Duration = Duration::from_millis(2);
/// The most threads: more slow wakers at the same time than this delay others.
const THREADS: usize = 8;

#[derive(Default)]
pub(super) struct Post {
    /// `None` after the end.
    work: Mutex<Option<Work>>,
    /// The number of the driving thread, and the count of threads so far.
    holder: AtomicU64,
    numbers: AtomicU64,
    threads: AtomicUsize,
    /// The driving thread while it sleeps, to be woken by an order; and the standby thread.
    sleeper: Mutex<Option<Thread>>,
    second: Mutex<Option<Thread>>,
    asleep: AtomicBool,
    /// Nothing has been in progress for a while: the standby thread need not watch.
    rests: AtomicBool,
    /// The number of the current report, while wakers run, and the count of reports.
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
        // Unless another thread has taken over by now.
        let _ = self.telling.compare_exchange(time, 0, SeqCst, SeqCst);
    }
}

impl Driver {
    /// Starts to drive an engine.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn take_up(&'static self, engine: Box<dyn Engine>) -> io::Result<()> {
        *lock(&self.post.work) = Some(Work::new(self, engine));
        self.spawn(Driver::hold)?;
        // Without a standby thread slow wakers delay calls, but nothing worse happens.
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

    /// Drives the engine, until the end or until another thread takes over.
    fn hold(&'static self, number: u64) {
        let post = &self.post;
        let mut tells = Vec::new();
        while post.holder.load(SeqCst) == number {
            let turn = {
                let mut work = lock(&post.work);
                let Some(at_work) = &mut *work else { return };
                let turn = caught(|| at_work.turn(&mut tells));
                if !matches!(turn, Ok(Next::Turn | Next::Sleep(_))) {
                    // Memory that a library may still write to is leaked.
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
        // This thread was held up, and another one has taken over.
        if lock(&post.second).is_none() {
            self.stand_by(number);
        }
    }

    /// The standby thread: takes over from a driving thread that is held up.
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

    /// Marks the driver as finished, in order or not.
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

    /// Handles a panic of the driving thread: all waiting calls and the other ranks are told.
    fn breaks(&self, words: &str) {
        let text = format!("its thread for calls panicked: {words}");
        *lock(&self.broken) = Some(text.clone());
        self.over(false);
        self.worlds().iter().for_each(|world| world.fails(text.clone()));
    }
}
