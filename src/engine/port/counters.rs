//! The counters of a device, and the log of its detached errors.

use crate::concurrent::sharded_counters::ShardedCounters;
use crate::error::Error;
use crate::sync::plain::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::sync::{CachePadded, Mutex, lock};

/// Counters of the threads that run ops.
///
/// The law: an op is counted as started, and as failed, before its value is published. No decision
/// of the engine's depends on a counter.
#[derive(Default)]
pub(crate) struct Counters {
    /// Steps of the engine's.
    pub started: AtomicU64,
    pub fused: AtomicU64,
    pub skipped: AtomicU64,
    pub failed: AtomicU64,
    pub in_flight: AtomicUsize,
    pub events: AtomicU64,
    /// Steps that were launched as one graph.
    pub graphs: AtomicU64,
    /// Ops of steps whose values are published and that are still counted as queued.
    pub closing: AtomicUsize,
    /// The same of the small step that the engine runs just now. Only the attending worker writes
    /// it.
    pub closing_small: AtomicUsize,
}

/// Places in [`PollCounters::counts`].
const INLINE: usize = 0;
const BARRIERS: usize = 1;

/// Counters of polls.
///
/// The law: each thread counts in a row of its own, and a reader adds the rows up.
#[derive(Default)]
pub(crate) struct PollCounters {
    counts: ShardedCounters<2>,
    /// Nanoseconds that awaits have waited.
    waited_ns: CachePadded<AtomicU64>,
}

impl PollCounters {
    /// A poll has run a small step.
    #[inline]
    pub fn ran_inline(&self) {
        self.counts.add(INLINE, 1);
    }

    /// An await has ended.
    #[inline]
    pub fn ended_barrier(&self) {
        self.counts.add(BARRIERS, 1);
    }

    /// An await has waited for so long.
    pub fn waited(&self, ns: u64) {
        self.waited_ns.fetch_add(ns, Relaxed);
    }

    /// Small steps that polls have run.
    pub fn inline(&self) -> u64 {
        self.counts.sum(INLINE)
    }

    /// Awaits that have ended.
    pub fn barriers(&self) -> u64 {
        self.counts.sum(BARRIERS)
    }

    /// Nanoseconds that awaits have waited.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Relaxed)
    }
}

/// Errors of detached work since the last `waitall`.
#[derive(Default)]
pub(crate) struct Detached {
    pub kept: Vec<Error>,
    /// The number of errors beside the kept ones.
    pub more: usize,
}

/// The number of detached errors that are kept.
const ERRORS_KEPT: usize = 64;

/// The log of detached errors.
///
/// The law: the error of a detached node is in the log before anybody sees the node's end.
#[derive(Default)]
pub(crate) struct ErrorLog(Mutex<Detached>);

impl ErrorLog {
    /// Notes the error of a detached node.
    pub fn note(&self, error: &Error) {
        let mut errors = lock(&self.0);
        if errors.kept.len() < ERRORS_KEPT {
            errors.kept.push(error.clone());
        } else {
            errors.more += 1;
        }
    }

    /// The errors since the last call.
    pub fn take(&self) -> Detached {
        std::mem::take(&mut *lock(&self.0))
    }
}
