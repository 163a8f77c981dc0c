//! Threads for work that takes long or may wait for the GPU: to compile, to load modules, to make a
//! library's handles, to page-lock memory, to call wakers, to drop values that users' ops have
//! captured. The device's thread asks for such work, defers the steps that need it, and looks again
//! when it is called back.
//!
//! The pool knows nothing of its jobs. Its threads start with work, up to a limit, and end with
//! [`Background::end`], before the context closes.

use super::libraries::nvidia::ContextHandle;
use super::{Trouble, Until};
use crate::graph::operation::Refusal;
use crate::guard::{
    DeferredDrops, DeferredWakes, Leftovers, Wakers, caught, discard_unlocked, wake_all,
};
use crate::host::threads::lower_priority;
use crate::process_end::inside;
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

    /// The thing that was made.
    ///
    /// # Errors
    /// Why it could not be made; [`Trouble::Later`] where it is not there yet.
    pub fn get(&self) -> Result<&T, Trouble> {
        self.0
            .get()
            .map_or(Err(Trouble::Later(Until::Made)), |made| made.as_ref().map_err(Clone::clone))
    }

    /// The thing that was made, for its only owner.
    pub fn take(self) -> Option<T> {
        Arc::into_inner(self.0)?.into_inner()?.ok()
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Wakers and values of users: woken and dropped with this, whether its job runs or the device ends
/// before.
struct OfUsers(Wakers, Leftovers);

impl Drop for OfUsers {
    fn drop(&mut self) {
        wake_all(std::mem::take(&mut self.0));
        std::mem::take(&mut self.1).into_iter().for_each(discard_unlocked);
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    /// Threads that call a user's code, which may wait for another job.
    away: usize,
    over: bool,
}

/// Threads that do the same kind of work.
struct ThreadPool {
    queue: Mutex<Queue>,
    more: Condvar,
    context: ContextHandle,
    /// Tells the device's thread that something was made.
    on_done: Arc<dyn Fn() + Send + Sync>,
    most: usize,
    lowered: bool,
}

impl ThreadPool {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(self: Arc<ThreadPool>) {
        self.context.make_current();
        if self.lowered {
            lower_priority(10);
        }
        let mut queue = self.queue();
        while !queue.over {
            match queue.jobs.pop_front() {
                Some(job) => {
                    drop(queue);
                    // In this order: a drop may wait for a task that is woken.
                    let (later, woken) = (DeferredDrops::begin(), DeferredWakes::begin());
                    job();
                    (self.on_done)();
                    queue = self.queue();
                    if later.has_some() || woken.has_some() {
                        queue.away += 1;
                        // Where there can be no other thread, jobs wait until this one is back.
                        let _ = self.hire(&mut queue);
                        drop(queue);
                        self.more.notify_one();
                        drop((woken, later));
                        queue = self.queue();
                        queue.away -= 1;
                    }
                }
                None => {
                    queue.idle += 1;
                    queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.idle -= 1;
                }
            }
        }
    }

    fn put(self: &Arc<ThreadPool>, job: Job) {
        let mut queue = self.queue();
        if queue.over {
            drop(queue);
            return drop(job);
        }
        queue.jobs.push_back(job);
        if self.hire(&mut queue).is_err() && queue.threads.is_empty() {
            // There can be no thread: this one does the job, and the device's thread waits here.
            let job = queue.jobs.pop_back();
            drop(queue);
            job.into_iter().for_each(|job| job());
            return;
        }
        drop(queue);
        self.more.notify_one();
    }

    /// One more thread, where those at hand are too few for the jobs.
    fn hire(self: &Arc<ThreadPool>, queue: &mut Queue) -> std::io::Result<()> {
        if queue.idle < queue.jobs.len() && queue.threads.len() < self.most + queue.away {
            let pool = self.clone();
            let name = thread::Builder::new().name("futensor-background".into());
            queue.threads.push(name.spawn(move || pool.live())?);
        }
        Ok(())
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

/// The urgency of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// A step waits for it.
    Now,
    /// Nobody waits: it will be of use.
    Sometime,
    /// A copy of elements that somebody waits for.
    Copy,
}

/// Such threads of one device.
#[derive(Clone)]
pub(crate) struct Background {
    pools: [Arc<ThreadPool>; 3],
    /// How many things have been made.
    made: Arc<AtomicU64>,
}

impl Background {
    pub fn new(context: ContextHandle, on_done: Arc<dyn Fn() + Send + Sync>) -> Background {
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let pool = |most: usize, lowered: bool| {
            let (queue, more, on_done) = (Mutex::default(), Condvar::new(), on_done.clone());
            Arc::new(ThreadPool { queue, more, context, on_done, most, lowered })
        };
        let some = (cores / 2).clamp(1, 4);
        Background {
            pools: [pool(some, false), pool(1, true), pool(some, false)],
            made: Arc::default(),
        }
    }

    /// Has something made, with the context current.
    pub fn make<T: Send + Sync + 'static>(
        &self,
        wanted: Wanted,
        what: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
    ) -> Pending<T> {
        let pending = Pending(Arc::new(OnceLock::new()));
        let (to, count) = (pending.clone(), self.made.clone());
        self.pools[wanted as usize].put(Box::new(move || {
            let _inside = inside();
            let made = caught(what).unwrap_or_else(|words| Err(Refusal::kernel(words).into()));
            let _ = to.0.set(made);
            count.fetch_add(1, Release);
        }));
        pending
    }

    /// Has wakers called and leftovers dropped, by a thread that nobody else needs meanwhile.
    pub fn see_to(&self, wakers: Wakers, leftovers: Leftovers) {
        let of_users = OfUsers(wakers, leftovers);
        self.pools[Wanted::Copy as usize].put(Box::new(move || drop(of_users)));
    }

    /// How many things have been made: a missing thing may be there once there are more.
    pub fn made(&self) -> u64 {
        self.made.load(Acquire)
    }

    /// Nothing is being made.
    pub fn is_idle(&self) -> bool {
        let idle = |pool: &Arc<ThreadPool>| {
            let queue = pool.queue();
            queue.jobs.is_empty() && queue.idle + queue.away == queue.threads.len()
        };
        self.pools.iter().all(idle)
    }

    /// Waits for jobs that have begun, and drops the others.
    pub fn end(&self) {
        self.pools.iter().for_each(|pool| pool.end());
    }
}
