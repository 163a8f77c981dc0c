//! Sources: futures of the user's that bring values, polled where nobody waits for the poll.
//!
//! A poll may take long, whatever it ought to do, and so may the drop of what a source holds. No
//! lock is held around either, and no thread that runs steps does it: a device has a few threads
//! for that, which come with the first source and go when they have had nothing to do for a while.
//! A simulated device does it between two events.

use crate::guard::contained;
use crate::sync::plain::{Condvar, Mutex};
use crate::sync::{clock, lock_plain as lock, threads};
use std::collections::VecDeque;
use std::time::Duration;

/// Threads of a device at once: so many polls may take long before others wait for them.
const THREADS: usize = 4;
/// How long a thread waits for more.
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
}

impl Sources {
    /// Has a job done, soon: by a thread, or by whoever calls [`run`](Self::run).
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
            // With no thread at all the caller does it.
            while lock(&self.jobs).threads == 0 && self.run() {}
        }
    }

    /// Does one job; false where there is none.
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
