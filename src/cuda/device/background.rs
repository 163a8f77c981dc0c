//! Threads that do what takes long or may wait for the GPU: compile, load modules, make a library's
//! handles, page-lock memory. The device's thread asks for it, puts off what needs it, and looks
//! again when the bell has rung.
//!
//! Knows nothing of what it is asked for. Its threads start with work, up to so many, and end with
//! [`Background::end`], before the context closes.

use super::nvidia::Opened;
use super::{Trouble, Until};
use crate::graph::operation::Refusal;
use crate::guard::caught;
use crate::host::threads::lower_priority;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

/// Something that is being made.
pub(crate) struct Pending<T>(Arc<OnceLock<Result<T, Trouble>>>);

impl<T> Clone for Pending<T> {
    fn clone(&self) -> Pending<T> {
        Pending(self.0.clone())
    }
}

impl<T> Pending<T> {
    pub fn is_there(&self) -> bool {
        self.0.get().is_some()
    }

    /// What was made.
    ///
    /// # Errors
    /// What kept it from being made; [`Trouble::Later`] where it is not there yet.
    pub fn get(&self) -> Result<&T, Trouble> {
        self.0.get().map_or(Err(Trouble::Later(Until::Made)), |made| made.as_ref().map_err(Clone::clone))
    }

    /// What was made, for who has the only one.
    pub fn take(self) -> Option<T> {
        Arc::into_inner(self.0)?.into_inner()?.ok()
    }
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    over: bool,
}

/// Threads that do the same kind of work.
struct Crew {
    queue: Mutex<Queue>,
    more: Condvar,
    context: Opened,
    /// Tells the device's thread that something was made.
    bell: Arc<dyn Fn() + Send + Sync>,
    most: usize,
    lowered: bool,
}

impl Crew {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) {
        self.context.make_current();
        if self.lowered {
            lower_priority(10);
        }
        let mut queue = self.queue();
        while !queue.over {
            match queue.jobs.pop_front() {
                Some(job) => {
                    drop(queue);
                    job();
                    (self.bell)();
                    queue = self.queue();
                }
                None => {
                    queue.idle += 1;
                    queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.idle -= 1;
                }
            }
        }
    }

    fn put(self: &Arc<Crew>, job: Job) {
        let mut queue = self.queue();
        queue.jobs.push_back(job);
        if queue.idle < queue.jobs.len() && queue.threads.len() < self.most {
            let crew = self.clone();
            let name = thread::Builder::new().name("futensor-background".into());
            match name.spawn(move || crew.live()) {
                Ok(thread) => queue.threads.push(thread),
                Err(_) if queue.threads.is_empty() => {
                    // There can be no thread: this one does it, and what needs it waits here.
                    let job = queue.jobs.pop_back();
                    drop(queue);
                    job.into_iter().for_each(|job| job());
                    return;
                }
                Err(_) => {}
            }
        }
        drop(queue);
        self.more.notify_one();
    }

    fn end(&self) {
        let (left, threads) = {
            let mut queue = self.queue();
            queue.over = true;
            (std::mem::take(&mut queue.jobs), std::mem::take(&mut queue.threads))
        };
        drop(left);
        self.more.notify_all();
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Who waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// A step.
    Now,
    /// Nobody: it will be of use.
    Sometime,
    /// Somebody who waits for elements: it is copied.
    Copy,
}

/// Such threads of one device.
#[derive(Clone)]
pub(crate) struct Background {
    crews: [Arc<Crew>; 3],
    /// How many things have been made.
    made: Arc<AtomicU64>,
}

impl Background {
    pub fn new(context: Opened, bell: Arc<dyn Fn() + Send + Sync>) -> Background {
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let crew = |most: usize, lowered: bool| {
            let (queue, more, bell) = (Mutex::default(), Condvar::new(), bell.clone());
            Arc::new(Crew { queue, more, context, bell, most, lowered })
        };
        let some = (cores / 2).clamp(1, 4);
        Background { crews: [crew(some, false), crew(1, true), crew(some, false)], made: Arc::default() }
    }

    /// Has something made, with the context current.
    pub fn make<T: Send + Sync + 'static>(
        &self,
        wanted: Wanted,
        what: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
    ) -> Pending<T> {
        let pending = Pending(Arc::new(OnceLock::new()));
        let (to, count) = (pending.clone(), self.made.clone());
        self.crews[wanted as usize].put(Box::new(move || {
            let made = caught(what).unwrap_or_else(|words| Err(Refusal::kernel(words).into()));
            let _ = to.0.set(made);
            count.fetch_add(1, Release);
        }));
        pending
    }

    /// How many things have been made: what was not there may be, once there are more.
    pub fn made(&self) -> u64 {
        self.made.load(Acquire)
    }

    /// Nothing is being made.
    pub fn is_idle(&self) -> bool {
        let idle = |crew: &Arc<Crew>| {
            let queue = crew.queue();
            queue.jobs.is_empty() && queue.idle == queue.threads.len()
        };
        self.crews.iter().all(idle)
    }

    /// Waits for what is being made; what has not been begun is let go.
    pub fn end(&self) {
        self.crews.iter().for_each(|crew| crew.end());
    }
}
