//! The thread pool: every idle compute thread takes pieces of one kernel (its *parts*).
//!
//! A worker that runs a large step offers its parts here, and idle workers take some. The offering
//! worker works as well, so a job always ends, with or without help. The static schedule gives each
//! worker a partition of the parts, the same from job to job, since its last results lie in its own
//! caches; then the worker goes on with the parts that other workers have not begun. Called by
//! kernels through [`Parallel`], and by idle workers. Knows nothing of steps or streams.

#![allow(unsafe_code)]

use crate::guard::{Kernel, discard};
use crate::sync::plain::{AtomicUsize, Ordering};
use crate::sync::threads::{spin_loop, yield_now};
use crate::sync::{Mutex, lock};
use crate::view::Parallel;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

type Part = dyn Fn(usize) + Sync;

/// One parallel kernel while it runs.
struct Job {
    /// The kernel's closure. It is alive until `Member::run` returns, and that waits for `helpers`
    /// to be gone.
    part: *const Part,
    partitions: Box<[Partition]>,
    helpers: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The parts that one worker begins with.
struct Partition {
    next: AtomicUsize,
    end: usize,
}

impl Partition {
    /// Whoever finds nothing writes nothing, so that the line stays with all who look.
    fn take(&self) -> Option<usize> {
        let next = self.has_some().then(|| self.next.fetch_add(1, Ordering::Relaxed));
        next.filter(|&i| i < self.end)
    }

    fn has_some(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.end
    }
}

// SAFETY: `part` is `Sync` and outlives every use: see `Member::run`.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    fn has_some(&self) -> bool {
        self.partitions.iter().any(Partition::has_some)
    }

    fn work(&self, me: usize) {
        let (before, from_me) = self.partitions.split_at(me);
        for partition in from_me.iter().chain(before) {
            while let Some(i) = partition.take() {
                // SAFETY: the owner is still inside `Member::run`, and leaves only once no helper
                // is counted.
                let part = unsafe { &*self.part };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| part(i))) {
                    self.partitions.iter().for_each(|partition| {
                        partition.next.store(partition.end, Ordering::Relaxed)
                    });
                    let mut first = lock(&self.panic);
                    if first.is_none() {
                        *first = Some(panic);
                    } else {
                        drop(first);
                        discard(panic);
                    }
                    return;
                }
            }
        }
    }
}

/// The threads of one device.
pub(crate) struct ThreadPool {
    threads: usize,
    jobs: Mutex<Vec<Arc<Job>>>,
    /// The number of jobs on offer, so that an idle worker need not take the lock to see that there
    /// is none.
    offered: AtomicUsize,
    /// The number of calls of regions that are under way, whose kernels come in a row. A hint.
    rows: AtomicUsize,
    workers: Box<dyn Workers>,
}

/// The threads of a pool, as their owner knows them.
pub(crate) trait Workers: Send + Sync {
    /// Wakes so many sleeping workers, if there are so many.
    fn wake(&self, count: usize);
    /// True where one besides the caller is awake, or had better be: steps that ask come in a row.
    fn are_awake(&self) -> bool;
}

impl ThreadPool {
    pub fn new(threads: usize, workers: impl Workers + 'static) -> ThreadPool {
        ThreadPool {
            threads,
            jobs: Mutex::new(Vec::new()),
            offered: AtomicUsize::new(0),
            rows: AtomicUsize::new(0),
            workers: Box::new(workers),
        }
    }

    /// The pool for a kernel that this worker runs.
    pub fn member(&self, me: usize) -> Member<'_> {
        debug_assert!(me < self.threads);
        Member { pool: self, me }
    }

    /// Has this worker take parts of a job, if there is a job; true where it did.
    pub fn help(&self, me: usize) -> bool {
        if self.offered.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let job = {
            let jobs = lock(&self.jobs);
            let Some(job) = jobs.iter().find(|job| job.has_some()) else {
                return false;
            };
            // Under the lock: the owner takes the job off the list before it waits for helpers.
            job.helpers.fetch_add(1, Ordering::Relaxed);
            job.clone()
        };
        let kernel = Kernel::begin();
        job.work(me);
        drop(kernel);
        // Release: the writes of the parts come before the owner sees this helper gone.
        job.helpers.fetch_sub(1, Ordering::Release);
        true
    }

    /// True where a job has parts that nobody has begun.
    pub fn has_work(&self) -> bool {
        self.offered.load(Ordering::Relaxed) != 0
    }

    /// True while helpers had better stay awake.
    pub fn is_awake(&self) -> bool {
        self.rows.load(Ordering::Relaxed) != 0
    }

    /// Runs a call whose kernels come in a row: helpers had better stay awake.
    pub fn in_a_row<R>(&self, run: impl FnOnce() -> R) -> R {
        self.rows.fetch_add(1, Ordering::Relaxed);
        let _row = Row(self);
        run()
    }
}

/// A row of kernels; a panic ends it as well.
struct Row<'a>(&'a ThreadPool);

impl Drop for Row<'_> {
    fn drop(&mut self) {
        self.0.rows.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A worker as a member of the pool.
pub(crate) struct Member<'a> {
    pool: &'a ThreadPool,
    me: usize,
}

impl Parallel for Member<'_> {
    fn threads(&self) -> usize {
        self.pool.threads
    }

    fn is_awake(&self) -> bool {
        self.pool.is_awake() || self.pool.workers.are_awake()
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        let Member { pool, me } = *self;
        if parts <= 1 || pool.threads == 1 {
            return (0..parts).for_each(part);
        }
        // SAFETY: only the lifetime is changed; `Job::part` says why the closure outlives its uses.
        let part: *const Part = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(part)
        };
        let first = |worker: usize| worker * parts / pool.threads;
        let partition =
            |worker| Partition { next: AtomicUsize::new(first(worker)), end: first(worker + 1) };
        let job = Arc::new(Job {
            part,
            partitions: (0..pool.threads).map(partition).collect(),
            helpers: AtomicUsize::new(0),
            panic: Mutex::new(None),
        });
        lock(&pool.jobs).push(job.clone());
        pool.offered.fetch_add(1, Ordering::SeqCst);
        pool.workers.wake(parts.min(pool.threads) - 1);
        job.work(me);
        lock(&pool.jobs).retain(|j| !Arc::ptr_eq(j, &job));
        pool.offered.fetch_sub(1, Ordering::Relaxed);
        // No new helper can come; those counted finish the part they are in.
        let mut spins = 0u32;
        while job.helpers.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < 2000 { spin_loop() } else { yield_now() }
        }
        if let Some(panic) = lock(&job.panic).take() {
            resume_unwind(panic);
        }
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    /// Nobody sleeps who would have to be woken.
    struct Awake;

    impl Workers for Awake {
        fn wake(&self, _: usize) {}
        fn are_awake(&self) -> bool {
            false
        }
    }

    #[test]
    fn every_part_runs_once_with_helpers_and_a_panic_comes_back() {
        let pool = Arc::new(ThreadPool::new(2, Awake));
        let stop = Arc::new(AtomicUsize::new(0));
        let helper = std::thread::spawn({
            let (pool, stop) = (pool.clone(), stop.clone());
            move || {
                while stop.load(Ordering::Relaxed) == 0 {
                    pool.help(1);
                }
            }
        });
        for parts in [1, 2, 7, 1000] {
            let runs: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
            pool.member(0).run(parts, &|i| {
                runs[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(runs.iter().all(|r| r.load(Ordering::Relaxed) == 1));
        }
        let panic =
            catch_unwind(AssertUnwindSafe(|| pool.member(0).run(10, &|i| assert_ne!(i, 5))));
        assert!(panic.is_err());
        let panic = catch_unwind(AssertUnwindSafe(|| pool.in_a_row(|| assert!(!pool.is_awake()))));
        assert!(panic.is_err() && !pool.is_awake(), "a panic ends the row");
        stop.store(1, Ordering::Relaxed);
        helper.join().unwrap();
    }

    #[test]
    fn each_worker_begins_with_its_own_parts_and_ends_with_what_others_left() {
        let pool = ThreadPool::new(3, Awake);
        let order = |me: usize, parts: usize| {
            let seen = Mutex::new(Vec::new());
            pool.member(me).run(parts, &|i| lock(&seen).push(i));
            std::mem::take(&mut *lock(&seen))
        };
        assert_eq!(order(0, 7), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(order(1, 7), [2, 3, 4, 5, 6, 0, 1]);
        assert_eq!(order(2, 7), [4, 5, 6, 0, 1, 2, 3]);
        assert_eq!(order(2, 2), [1, 0]);
    }
}
