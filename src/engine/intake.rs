//! The intake: the stack of queued nodes, and the attendance of workers.
//!
//! A push asks the engine to visit a node: the node is new, its last handle is gone, a task awaits
//! it, or its source has a value. Callers push without waiting. The engine takes the whole stack at
//! once and reverses it piece by piece, since the oldest node comes first. [`Attendance`] says
//! whether a worker attends to the intake: a push that finds no worker there appoints a parked one
//! and wakes it. Knows nothing of nodes.

#![allow(unsafe_code)]

use crate::concurrent::counted::{Inner, Link, peek, prefetch};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, in_total_order};
use std::ptr::null_mut;

/// A value that can lie in an intake, once at a time.
pub(crate) trait Linked: Sized {
    /// The pointer to the value that was pushed before. Only the intake uses it.
    fn next(&self) -> &AtomicPtr<Inner<Self>>;
}

pub(crate) struct Intake<T: Linked> {
    head: AtomicPtr<Inner<T>>,
}

impl<T: Linked> Intake<T> {
    pub fn new() -> Intake<T> {
        Intake { head: AtomicPtr::new(null_mut()) }
    }

    /// Puts a link in.
    ///
    /// # Safety
    /// The value is in no intake, and nobody else pushes it before it is taken out.
    pub unsafe fn push(&self, link: Link<T>) {
        let raw = link.into_raw();
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the link that was given to the intake keeps the value alive until it is
            // taken.
            unsafe { peek::<T>(raw) }.next().store(head, Ordering::Relaxed);
            // SeqCst: in one order with `Attendance`, so that either the pusher sees that nobody
            // attends or the leaver sees the push.
            match self.head.compare_exchange_weak(head, raw, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => head = seen,
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        in_total_order();
        self.head.load(Ordering::SeqCst).is_null()
    }

    /// True where the value at this address was pushed last.
    pub fn is_on_top(&self, address: usize) -> bool {
        std::ptr::eq(self.head.load(Ordering::Acquire), address as *mut Inner<T>)
    }

    /// Takes back the value at this address, if it was pushed last.
    ///
    /// # Safety
    /// The value is alive, and until this returns nobody but the caller can push it. So a value at
    /// the head has been there since before this began, and its pointer to the one before is still
    /// right.
    pub unsafe fn take_back(&self, address: usize) -> Option<Link<T>> {
        let raw = address as *mut Inner<T>;
        if self.head.load(Ordering::Acquire) != raw {
            return None;
        }
        // SAFETY: the caller promises that the value is alive.
        let before = unsafe { peek::<T>(raw) }.next().load(Ordering::Relaxed);
        self.head.compare_exchange(raw, before, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: the link that was given to the intake is now this thread's.
        Some(unsafe { Link::from_raw(raw) })
    }

    /// Comes before or after each push and each take-back in one order: a later one sees everything
    /// before this call, and this call sees everything before an earlier one. A task that begins to
    /// wait calls it, which is rare; so each op has one access less.
    pub fn meet(&self) {
        let mut head = self.head.load(Ordering::Relaxed);
        while let Err(seen) =
            self.head.compare_exchange_weak(head, head, Ordering::AcqRel, Ordering::Relaxed)
        {
            head = seen;
        }
    }

    /// Takes everything.
    pub fn take(&self) -> Batch<T> {
        if self.head.load(Ordering::Relaxed).is_null() {
            // A swap would take the line from the callers for nothing. A later push is seen later.
            return Batch::empty();
        }
        Batch { newest: self.head.swap(null_mut(), Ordering::SeqCst), oldest: null_mut() }
    }
}

impl<T: Linked> Drop for Intake<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// The links that were in the intake, oldest first.
pub(crate) struct Batch<T: Linked> {
    /// The part that is not reversed yet: each link leads to an older one.
    newest: *mut Inner<T>,
    /// The reversed part: each link leads to a newer one.
    oldest: *mut Inner<T>,
}

// SAFETY: the batch owns the links.
unsafe impl<T: Linked + Send + Sync> Send for Batch<T> {}

impl<T: Linked> Batch<T> {
    pub fn empty() -> Batch<T> {
        Batch { newest: null_mut(), oldest: null_mut() }
    }
    pub fn is_empty(&self) -> bool {
        in_total_order();
        self.newest.is_null() && self.oldest.is_null()
    }

    /// Reverses up to so many links; true where all are reversed, and the oldest is at hand.
    pub fn turn(&mut self, most: usize) -> bool {
        for _ in 0..most {
            if self.newest.is_null() {
                return true;
            }
            // SAFETY: taken, so this thread alone holds the links of the whole list.
            let next = unsafe { peek::<T>(self.newest) }.next();
            let before = next.load(Ordering::Relaxed);
            next.store(self.oldest, Ordering::Relaxed);
            // Another core wrote the value: the walk waits for its first line, and the other lines
            // come meanwhile.
            prefetch(self.newest);
            self.oldest = std::mem::replace(&mut self.newest, before);
        }
        self.newest.is_null()
    }
}

impl<T: Linked> Iterator for Batch<T> {
    type Item = Link<T>;
    fn next(&mut self) -> Option<Link<T>> {
        if !self.turn(usize::MAX) || self.oldest.is_null() {
            return None;
        }
        let raw = self.oldest;
        // SAFETY: the list's links are this thread's; each value is returned once.
        unsafe {
            self.oldest = peek::<T>(raw).next().load(Ordering::Relaxed);
            Some(Link::from_raw(raw))
        }
    }
}

impl<T: Linked> Drop for Batch<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// The attendance: the worker that attends to the intake, and the sleeping ones. Workers are
/// numbered from 0; there are at most 64.
pub(crate) struct Attendance {
    /// The number, plus one, of the worker that attends or was appointed; 0 for none.
    attendant: AtomicU32,
    /// A bit for each worker that sleeps or is about to.
    parked: AtomicU64,
}

impl Attendance {
    pub fn new() -> Attendance {
        Attendance { attendant: AtomicU32::new(0), parked: AtomicU64::new(0) }
    }

    /// True where a worker attends or was appointed.
    #[inline]
    pub fn is_attended(&self) -> bool {
        in_total_order();
        self.attendant.load(Ordering::SeqCst) != 0
    }

    /// After a push: the worker that the caller has to wake. None where one attends, or where all
    /// are at work: each looks at the intake when it is through.
    pub fn appoint(&self) -> Option<usize> {
        in_total_order();
        if self.attendant.load(Ordering::SeqCst) != 0 {
            return None;
        }
        let worker = self.unpark_any()?;
        // If another thread appointed a worker meanwhile, this one wakes for nothing, which is
        // harmless.
        let _ = self.attendant.compare_exchange(
            0,
            worker as u32 + 1,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        Some(worker)
    }

    /// A parked worker, taken off the list; the caller has to wake it.
    pub fn unpark_any(&self) -> Option<usize> {
        let mut parked = self.parked.load(Ordering::SeqCst);
        while parked != 0 {
            let bit = parked & parked.wrapping_neg();
            let before = self.parked.fetch_and(!bit, Ordering::SeqCst);
            if before & bit != 0 {
                return Some(bit.trailing_zeros() as usize);
            }
            parked = before & !bit;
        }
        None
    }

    /// The number of workers that sleep or are about to. A hint.
    pub fn sleeping(&self) -> usize {
        self.parked.load(Ordering::Relaxed).count_ones() as usize
    }

    /// True where this worker attends, having taken the post if it was free.
    pub fn attend(&self, worker: usize) -> bool {
        let me = worker as u32 + 1;
        match self.attendant.load(Ordering::Relaxed) {
            0 => self.attendant.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst).is_ok(),
            other => other == me,
        }
    }

    /// Leaves the post, if this worker has it. The caller then looks at the intake once more.
    pub fn leave(&self, worker: usize) -> bool {
        let me = worker as u32 + 1;
        self.attendant.load(Ordering::Relaxed) == me
            && self.attendant.compare_exchange(me, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Announces that this worker is about to sleep. The worker then looks at everything once more.
    pub fn park(&self, worker: usize) {
        self.parked.fetch_or(1 << worker, Ordering::SeqCst);
    }

    /// True while nobody has taken this worker off the list.
    pub fn is_parked(&self, worker: usize) -> bool {
        self.parked.load(Ordering::SeqCst) & 1 << worker != 0
    }

    /// Takes this worker off the list by itself; false where another thread has done so, and has
    /// appointed it.
    pub fn unpark(&self, worker: usize) -> bool {
        self.parked.fetch_and(!(1 << worker), Ordering::SeqCst) & 1 << worker != 0
    }
}

#[cfg(all(test, futensor_loom))]
mod loom_tests {
    use super::*;
    use crate::concurrent::completion::loom_tests::NotifyWaker;
    use crate::concurrent::counted::{Handle, Observed};
    use crate::engine::pressure::{Pressure, QueueLimits};
    use crate::sync::AtomicBool;
    use loom::sync::{Arc, Notify};
    use std::task::Waker;

    struct Item(usize, AtomicPtr<Inner<Item>>);
    impl Linked for Item {
        fn next(&self) -> &AtomicPtr<Inner<Item>> {
            &self.1
        }
    }
    impl Observed for Item {
        fn unobserved(_: Link<Item>) {}
    }
    /// Pushes a new item.
    fn push(intake: &Intake<Item>, n: usize) {
        // SAFETY: nobody else has it.
        unsafe { intake.push(item(n)) };
    }
    fn item(n: usize) -> Link<Item> {
        Handle::with_link(|| Item(n, AtomicPtr::new(null_mut()))).1
    }

    #[test]
    fn two_pushers_lose_nothing_and_each_keeps_its_order() {
        loom::model(|| {
            let intake = Arc::new(Intake::new());
            let other = intake.clone();
            let thread = loom::thread::spawn(move || {
                push(&other, 1);
                push(&other, 2);
            });
            push(&intake, 10);
            let mut seen: Vec<usize> = intake.take().map(|l| l.0).collect();
            thread.join().unwrap();
            seen.extend(intake.take().map(|l| l.0));
            let ones: Vec<usize> = seen.iter().copied().filter(|n| *n < 10).collect();
            assert_eq!((ones, seen.len()), (vec![1, 2], 3));
        });
    }

    #[test]
    fn what_is_taken_back_beside_a_taker_and_a_pusher_is_seen_once() {
        loom::model(|| {
            let intake = Arc::new(Intake::new());
            let (taker, pusher) = (intake.clone(), intake.clone());
            push(&intake, 1);
            let threads = [
                loom::thread::spawn(move || taker.take().map(|l| l.0).collect::<Vec<_>>()),
                loom::thread::spawn(move || {
                    push(&pusher, 2);
                    Vec::new()
                }),
            ];
            let mine = item(3);
            let (address, keep) = (mine.address(), mine.clone());
            // SAFETY: it is new.
            unsafe { intake.push(mine) };
            // SAFETY: `keep` keeps it, and it is pushed once.
            let mut seen: Vec<usize> =
                unsafe { intake.take_back(address) }.into_iter().map(|l| l.0).collect();
            drop(keep);
            for thread in threads {
                seen.extend(thread.join().unwrap());
            }
            seen.extend(intake.take().map(|l| l.0));
            seen.sort();
            assert_eq!(seen, [1, 2, 3]);
        });
    }

    #[test]
    fn who_begins_to_wait_beside_an_op_that_is_taken_back_sees_its_end_or_is_woken() {
        loom::model(|| {
            let limits = QueueLimits { ops_max: 0, bytes_max: 0, permits_max: 1 };
            let shared = Arc::new((Intake::new(), Pressure::new(limits)));
            let op = item(1);
            let (address, poll) = (op.address(), shared.clone());
            // SAFETY: it is new.
            unsafe { shared.0.push(op) };
            shared.1.enqueued(0);
            let thread = loom::thread::spawn(move || {
                poll.1.count_off_early(1, 0);
                // SAFETY: the intake keeps it, and nobody pushes it.
                assert!(unsafe { poll.0.take_back(address) }.is_some());
                poll.1.wake_if_below();
            });
            let notify = std::sync::Arc::new(NotifyWaker(Notify::new(), AtomicBool::new(false)));
            let (waker, mut id) = (Waker::from(notify.clone()), None);
            let mut is_ready = || shared.1.ready(&mut id, &waker);
            if !is_ready() && {
                shared.0.meet();
                !is_ready()
            } {
                while !notify.1.load(Ordering::SeqCst) {
                    notify.0.wait();
                }
                assert!(is_ready());
            }
            thread.join().unwrap();
        });
    }

    #[test]
    fn what_is_pushed_beside_a_worker_that_goes_to_sleep_is_seen() {
        loom::model(|| {
            let shared = Arc::new((Intake::new(), Attendance::new(), Notify::new()));
            assert!(shared.1.attend(0));
            let pusher = shared.clone();
            let thread = loom::thread::spawn(move || {
                push(&pusher.0, 1);
                if pusher.1.appoint().is_some() {
                    pusher.2.notify();
                }
            });
            // The worker's side, as the runner does it: announce, leave, look again, sleep.
            shared.1.park(0);
            shared.1.leave(0);
            if shared.0.is_empty() {
                while shared.1.is_parked(0) {
                    shared.2.wait();
                }
            } else {
                shared.1.unpark(0);
            }
            assert_eq!(shared.0.take().count(), 1);
            thread.join().unwrap();
        });
    }
}
