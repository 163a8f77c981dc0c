//! Sources: users' futures that supply values, polled by dedicated threads.
//!
//! A user's poll may take long, and so may the drop of a future's captures. Neither happens under a
//! lock, or on a thread that runs steps. Each device has a few threads for this: they start with
//! the first source and end after a period of idling. A simulated device polls its sources between
//! two events.

use crate::guard::contained;
use crate::sync::plain::{AtomicUsize, Condvar, Mutex, Ordering::Relaxed};
use crate::sync::{clock, lock_plain as lock, threads};
use std::collections::VecDeque;
use std::time::Duration;

/// The number of threads of a device: more slow polls than this delay other sources.
const THREADS: usize = 4;
/// How long an idle thread waits for another job.
const LINGER: Duration = Duration::from_millis(500);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Jobs {
    list: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
pub(crate) struct Sources {
    jobs: Mutex<Jobs>,
    changed: Condvar,
    /// The number of futures that have not been dropped.
    held: AtomicUsize,
}

/// Counts a user's future: created with the future, and dropped just after it.
pub(crate) struct Held(&'static Sources);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Relaxed);
    }
}

impl Sources {
    /// Counts a future.
    pub fn hold(&'static self) -> Held {
        self.held.fetch_add(1, Relaxed);
        Held(self)
    }

    /// The number of futures that have not been dropped, and of jobs that have not begun.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed) + lock(&self.jobs).list.len()
    }

    /// Queues a job, for a thread or for the caller of [`run`](Self::run).
    pub fn put(&'static self, by_thread: bool, job: impl FnOnce() + Send + 'static) {
        let mut jobs = lock(&self.jobs);
        jobs.list.push_back(Box::new(job));
        if !by_thread {
            return;
        }
        self.changed.notify_one();
        if jobs.list.len() <= jobs.idle || jobs.threads == THREADS {
            return;
        }
        jobs.threads += 1;
        drop(jobs);
        if threads::start("futensor-sources".into(), || self.live()).is_err() {
            lock(&self.jobs).threads -= 1;
            // Without any thread the caller runs the job.
            while lock(&self.jobs).threads == 0 && self.run() {}
        }
    }

    /// Runs one job; false if there is none.
    pub fn run(&self) -> bool {
        let job = lock(&self.jobs).list.pop_front();
        let any = job.is_some();
        if let Some(job) = job {
            contained(job);
        }
        any
    }

    fn live(&self) {
        loop {
            while self.run() {}
            let mut jobs = lock(&self.jobs);
            if jobs.list.is_empty() {
                jobs.idle += 1;
                jobs = clock::wait_for(&self.changed, &self.jobs, jobs, LINGER);
                jobs.idle -= 1;
                if jobs.list.is_empty() {
                    jobs.threads -= 1;
                    return;
                }
            }
        }
    }
}
