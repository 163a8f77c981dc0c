//! Backpressure: the amount of queued work, and the tasks that wait for less of it.
//!
//! Counts ops and bytes of results from the call to the end (computed, fused, failed or skipped).
//! `ready` serves one producer: it ends when the count is below its limit. `admit` serves many:
//! permits go to one waiter after the other, in the order of asking, and only while the count is
//! below its limit. Knows nothing of nodes.

use crate::concurrent::sharded_counters::ShardedCounters;
use crate::guard::wake_all;
use crate::sync::{
    AtomicBool, AtomicUsize, CachePadded, Mutex, Ordering, fence, in_total_order, lock,
};
use std::collections::BTreeMap;
use std::task::Waker;

/// Results up to this size are not weighed: ops count for them.
const WEIGHED_FROM: usize = 4 << 10;

/// Limits of a device's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub ops_max: usize,
    pub bytes_max: usize,
    pub permits_max: usize,
}

pub(crate) struct Pressure {
    /// Ops that have come, and ops that have come to an end.
    ops: ShardedCounters<2>,
    /// Bytes of results that have come, written by callers; wraps around.
    bytes_came: CachePadded<AtomicUsize>,
    /// And those that have come to an end, written by the threads that run ops. One counter for
    /// both would go back and forth between two cores at each op.
    bytes_ended: CachePadded<AtomicUsize>,
    limits: QueueLimits,
    waiting: AtomicBool,
    waiters: Mutex<Waiters>,
}

/// Places in `Pressure::ops`.
const CAME: usize = 0;
const ENDED: usize = 1;

#[derive(Default)]
struct Waiters {
    /// Numbers are given once.
    next: u64,
    /// By number, as all waiters: leaving costs little, however many there are.
    ready: BTreeMap<u64, Waker>,
    /// The requests for a permit, in the order of asking, and whether each was granted.
    admit: BTreeMap<u64, (Waker, bool)>,
    permits: usize,
    /// The device has ended, or the queue is closed: nobody waits any more.
    open_gate: bool,
}

/// The state of a queued request for a permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Waiting,
    Granted,
}

impl Pressure {
    pub fn new(limits: QueueLimits) -> Pressure {
        Pressure {
            ops: ShardedCounters::default(),
            bytes_came: CachePadded::default(),
            bytes_ended: CachePadded::default(),
            limits,
            waiting: AtomicBool::new(false),
            waiters: Mutex::new(Waiters::default()),
        }
    }

    /// Ops and bytes that are queued or running.
    pub fn queued(&self) -> (usize, usize) {
        // First the ends: a thread that sees the end of an op sees, after that, that the op came.
        let (ops, bytes) = (self.ops.sum(ENDED), self.bytes_ended.load(Ordering::SeqCst));
        let ops = self.ops.sum(CAME).wrapping_sub(ops);
        (ops as usize, self.bytes_came.load(Ordering::SeqCst).wrapping_sub(bytes))
    }

    /// Ops that have ever come; wraps around.
    pub fn came(&self) -> u64 {
        self.ops.sum(CAME)
    }

    /// The weight of a result of this many bytes.
    #[inline]
    pub fn weight(bytes: usize) -> usize {
        if bytes < WEIGHED_FROM { 0 } else { bytes }
    }

    #[inline]
    pub fn enqueued(&self, bytes: usize) {
        self.ops.add(CAME, 1);
        let weight = Pressure::weight(bytes);
        if weight > 0 {
            self.bytes_came.fetch_add(weight, Ordering::Relaxed);
        }
    }

    /// One op with a result of `bytes` has come to an end; `ops` many with the sum of their weights
    /// go through [`Pressure::finished_many`].
    pub fn finished(&self, ops: usize, bytes: usize) {
        self.finished_many(ops, Pressure::weight(bytes));
    }

    pub fn finished_many(&self, ops: usize, weight: usize) {
        self.count_off(ops, weight);
        self.wake_if_below();
    }

    /// Counts ops off. The caller then [wakes](Self::wake_if_below) the waiters.
    #[inline]
    pub fn count_off(&self, ops: usize, weight: usize) {
        self.count_bytes_off(weight);
        // SeqCst: in one order with `waiting`, see `ready`.
        self.ops.add_in_order(ENDED, ops as u64);
    }

    /// The same without a locked access, for a caller that takes a node back from the intake before
    /// it wakes the waiters (see [`Intake::meet`](super::intake::Intake::meet)), or has a `fence`
    /// there.
    #[inline]
    pub fn count_off_early(&self, ops: usize, weight: usize) {
        self.count_bytes_off(weight);
        self.ops.add(ENDED, ops as u64);
    }

    #[inline]
    fn count_bytes_off(&self, weight: usize) {
        if weight > 0 {
            self.bytes_ended.fetch_add(weight, Ordering::Release);
        }
    }

    /// True while a task waits for less to be queued, or shortly after.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Wakes the tasks that wait for less to be queued, if the queue is below its limits.
    #[inline]
    pub fn wake_if_below(&self) {
        in_total_order();
        if self.waiting.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    fn is_below(&self) -> bool {
        let (ops, bytes) = self.queued();
        ops <= self.limits.ops_max && bytes <= self.limits.bytes_max
    }

    #[cold]
    fn wake(&self) {
        // Of two threads that have counted off, each in its row, one sees both.
        fence(Ordering::SeqCst);
        if !self.is_below() && !lock(&self.waiters).open_gate {
            return;
        }
        let mut woken = Vec::new();
        let mut waiters = lock(&self.waiters);
        woken.extend(std::mem::take(&mut waiters.ready).into_values());
        self.grant(&mut waiters, &mut woken);
        let still = waiters.admit.values().any(|(_, granted)| !granted);
        self.waiting.store(still, Ordering::SeqCst);
        drop(waiters);
        wake_all(woken);
    }

    /// Gives free permits to the first requests.
    fn grant(&self, waiters: &mut Waiters, woken: &mut Vec<Waker>) {
        if !self.is_below() && !waiters.open_gate {
            return;
        }
        let free =
            if waiters.open_gate { usize::MAX } else { self.limits.permits_max - waiters.permits };
        let mut given = 0;
        for (waker, granted) in
            waiters.admit.values_mut().filter(|(_, granted)| !granted).take(free)
        {
            *granted = true;
            given += 1;
            woken.push(std::mem::replace(waker, Waker::noop().clone()));
        }
        waiters.permits += given;
    }

    /// True where the queue is below its limits; else the waker goes onto the list under `id`.
    pub fn ready(&self, id: &mut Option<u64>, waker: &Waker) -> bool {
        if self.is_below() {
            if let Some(id) = id.take() {
                self.forget_ready(id);
            }
            return true;
        }
        let fresh = waker.clone();
        let mut waiters = lock(&self.waiters);
        if waiters.open_gate {
            return true;
        }
        let key = *id.get_or_insert(waiters.next);
        if key == waiters.next {
            waiters.next += 1;
        }
        let before = waiters.ready.insert(key, fresh);
        // After this, a thread that ends an op sees the flag, or this one sees the op's end.
        self.waiting.store(true, Ordering::SeqCst);
        let is_below = self.is_below();
        let ours = if is_below { waiters.ready.remove(&key) } else { None };
        drop(waiters);
        drop((before, ours));
        is_below
    }

    pub fn forget_ready(&self, id: u64) {
        let left = lock(&self.waiters).ready.remove(&id);
        drop(left);
    }

    /// A permit at once, if one is free, no request is waiting, and the queue is below its limits.
    pub fn try_admit(&self) -> bool {
        let mut waiters = lock(&self.waiters);
        let first = waiters.admit.values().all(|(_, granted)| *granted);
        let free = waiters.permits < self.limits.permits_max && self.is_below() && first;
        if free || waiters.open_gate {
            waiters.permits += 1;
            return true;
        }
        false
    }

    /// Puts a request at the end of the line, at the call, and names it.
    pub fn ask(&self) -> u64 {
        let mut waiters = lock(&self.waiters);
        let key = waiters.next;
        waiters.next += 1;
        waiters.admit.insert(key, (Waker::noop().clone(), false));
        self.waiting.store(true, Ordering::SeqCst);
        let mut woken = Vec::new();
        self.grant(&mut waiters, &mut woken);
        drop(waiters);
        wake_all(woken);
        key
    }

    /// The state of a request; a granted one leaves the line.
    pub fn turn(&self, key: u64, waker: &Waker) -> Turn {
        let fresh = waker.clone();
        let mut waiters = lock(&self.waiters);
        self.waiting.store(true, Ordering::SeqCst);
        let mut woken = Vec::new();
        self.grant(&mut waiters, &mut woken);
        let (turn, left) = match waiters.admit.get_mut(&key) {
            Some((old, false)) => (Turn::Waiting, Some(std::mem::replace(old, fresh))),
            _ => {
                let granted = waiters.admit.remove(&key);
                (Turn::Granted, granted.map(|(old, _)| old))
            }
        };
        drop(waiters);
        drop(left);
        wake_all(woken);
        turn
    }

    /// Takes a request out of the line; its permit goes to the next one.
    pub fn withdraw(&self, key: u64) {
        let left = lock(&self.waiters).admit.remove(&key);
        if left.is_some_and(|(_, granted)| granted) {
            self.release();
        }
    }

    /// True while no task waits, and no permit is out.
    #[cfg(futensor_shuttle)]
    pub fn is_at_rest(&self) -> bool {
        let waiters = lock(&self.waiters);
        waiters.ready.is_empty() && waiters.admit.is_empty() && waiters.permits == 0
    }

    /// The tasks that wait for less to be queued or for a permit, and the permits that are out.
    pub fn waiting(&self) -> (usize, usize) {
        let waiters = lock(&self.waiters);
        let asking = waiters.admit.values().filter(|(_, granted)| !granted).count();
        (waiters.ready.len() + asking, waiters.permits)
    }

    /// A permit comes back.
    pub fn release(&self) {
        let mut woken = Vec::new();
        let mut waiters = lock(&self.waiters);
        waiters.permits -= 1;
        self.grant(&mut waiters, &mut woken);
        drop(waiters);
        wake_all(woken);
    }

    /// The device has ended: every waiter goes through, and meets the error at its op.
    pub fn open_gate(&self) {
        lock(&self.waiters).open_gate = true;
        self.wake();
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    fn pressure(ops_max: usize, permits_max: usize) -> Pressure {
        Pressure::new(QueueLimits { ops_max, bytes_max: 1 << 20, permits_max })
    }

    #[test]
    fn ready_ends_when_the_count_falls_to_the_limit() {
        let p = pressure(1, 1);
        p.enqueued(0);
        p.enqueued(0);
        let (waker, count) = futures_test_waker();
        let mut id = None;
        assert!(!p.ready(&mut id, &waker));
        p.finished(1, 0);
        assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 1);
        assert!(p.ready(&mut id, &waker));
    }

    #[test]
    fn permits_go_in_the_order_of_asking_and_a_withdrawn_grant_goes_on() {
        let p = pressure(10, 1);
        assert!(p.try_admit());
        let (a, b) = (p.ask(), p.ask());
        let waker = Waker::noop();
        assert_eq!(p.turn(a, waker), Turn::Waiting);
        assert!(!p.try_admit());
        p.release();
        assert_eq!(p.turn(b, waker), Turn::Waiting);
        p.withdraw(a);
        assert_eq!(p.turn(b, waker), Turn::Granted);
        p.release();
        assert!(p.try_admit());
    }

    #[test]
    fn a_full_queue_admits_nobody() {
        let p = pressure(0, 4);
        p.enqueued(1 << 21);
        assert!(!p.try_admit());
        p.finished(1, 1 << 21);
        assert!(p.try_admit());
    }

    fn futures_test_waker() -> (Waker, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
        struct Count(std::sync::Arc<std::sync::atomic::AtomicUsize>);
        impl std::task::Wake for Count {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        (Waker::from(std::sync::Arc::new(Count(count.clone()))), count)
    }
}
