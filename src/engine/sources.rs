//! Sources: futures of the user's that bring values, polled where nobody waits for the poll.
//!
//! A poll may take long, whatever it ought to do, and so may the drop of what a source holds. No lock is held around either,
//! and no thread that runs steps does it: a device has a few threads for that, which come with the first source and go
//! when they have had nothing to do for a while. A simulated device does it between two events.

use super::port::Port;
use crate::graph::node::NodeLink;
use crate::sync::lock_plain as lock;
use crate::wakes::contained;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::task::Waker;
use std::time::Duration;

/// Threads of a device at once: so many polls may take long before others wait for them.
const THREADS: usize = 4;
/// How long a thread waits for more.
const LINGER: Duration = Duration::from_millis(500);

/// What is to be done.
pub(crate) enum Job {
    Poll(NodeLink, Waker),
    /// What a source held that nobody wants any more.
    Drop(Box<dyn Any + Send>),
}

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
    /// Has a job done, soon.
    pub fn put(&self, port: &'static Port, job: Job) {
        let mut jobs = lock(&self.jobs);
        jobs.list.push_back(job);
        if port.driver.polls_sources() {
            return;
        }
        self.changed.notify_one();
        if jobs.list.len() <= jobs.idle || jobs.threads == THREADS {
            return;
        }
        jobs.threads += 1;
        drop(jobs);
        let thread = std::thread::Builder::new().name(format!("futensor-{}-source", port.name));
        if thread.spawn(move || port.sources.live(port)).is_err() {
            lock(&self.jobs).threads -= 1;
            // With no thread at all the caller does it.
            while lock(&self.jobs).threads == 0 && self.run(port) {}
        }
    }

    /// Does one job; false where there is none.
    pub fn run(&self, port: &'static Port) -> bool {
        let job = lock(&self.jobs).list.pop_front();
        match job {
            None => return false,
            Some(Job::Poll(node, waker)) => contained(|| port.poll_source(node, &waker)),
            Some(Job::Drop(what)) => contained(|| drop(what)),
        }
        true
    }

    fn live(&self, port: &'static Port) {
        loop {
            while self.run(port) {}
            let mut jobs = lock(&self.jobs);
            if jobs.list.is_empty() {
                jobs.idle += 1;
                jobs = self.changed.wait_timeout(jobs, LINGER).unwrap_or_else(|p| p.into_inner()).0;
                jobs.idle -= 1;
                if jobs.list.is_empty() {
                    jobs.threads -= 1;
                    return;
                }
            }
        }
    }
}
