//! The completion: a cell that is written once, with the tasks that wait for it.
//!
//! The state word holds the phase of the value, and the flags that the graph and the engine set
//! beside it. The winner of a claim is the only writer. The end wakes every waiter that registered
//! before; a later waiter finds the value. Knows nothing of the value.

#![allow(unsafe_code)]

use crate::concurrent::waiters::Waiters;
use crate::guard::wake_all;
use crate::sync::{AtomicU32, Mutex, Ordering, UnsafeCell, in_total_order, lock};
use std::task::Waker;

/// How far a value has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Phase {
    /// Nobody computes it yet.
    Pending = 0,
    /// A claimer computes it. A watchdog may take the claim away.
    Claimed = 1,
    /// Its writer writes. Nobody else touches the cell.
    Writing = 2,
    /// There, for good.
    Done = 3,
    /// It ended with an error, which is there for good.
    Failed = 4,
    /// It became part of another step, and will never be there: nobody can observe it.
    Fused = 5,
}

const PHASE: u32 = 7;
/// The node is in the intake, or about to be: the thread that sets the flag pushes the node, and
/// the thread that takes the node out clears the flag.
pub(crate) const QUEUED: u32 = 8;
/// Detached: the node runs even without a handle. Never cleared.
pub(crate) const DETACHED: u32 = 16;
/// A task has waited for the node: the node is not to be delayed. Never cleared.
pub(crate) const AWAITED: u32 = 32;
/// The node has an entry in the task table: a poll may no longer claim it. Set and cleared by the
/// engine, under its lock.
pub(crate) const ENTERED: u32 = 64;
/// A waker has been on the list of waiters: the end looks there. Never cleared.
const WAITERS: u32 = 128;
/// The node stands for a value while a region's closure is traced: it is claimed from the start and
/// never computed. Set before anybody else has the node.
pub(crate) const TRACED: u32 = 256;
/// The engine visits the node just now, by the link that lay in the intake. Only the worker that
/// took the link sets the flag, and clears it before the link goes.
pub(crate) const VISITED: u32 = 512;

fn phase_of(state: u32) -> Phase {
    match state & PHASE {
        0 => Phase::Pending,
        1 => Phase::Claimed,
        2 => Phase::Writing,
        3 => Phase::Done,
        4 => Phase::Failed,
        _ => Phase::Fused,
    }
}

/// A state word as it was at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct State(u32);

impl State {
    pub fn phase(self) -> Phase {
        phase_of(self.0)
    }
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
    /// Nobody has waited for it, and nothing is to happen at its end.
    pub fn ends_unseen(self) -> bool {
        self.0 & !(PHASE | QUEUED) == 0
    }
    /// Done or failed: the cell can be read.
    pub fn is_complete(self) -> bool {
        matches!(self.phase(), Phase::Done | Phase::Failed)
    }
}

pub(crate) struct Completion<T> {
    state: AtomicU32,
    cell: UnsafeCell<Option<T>>,
    waiters: Mutex<Waiters>,
}

// SAFETY: the cell is written by the one claimer and read only after a phase that is read with
// Acquire and was stored with Release after the write.
unsafe impl<T: Send + Sync> Send for Completion<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Completion<T> {}

impl<T> Completion<T> {
    /// A value to come, with flags.
    #[inline]
    pub fn pending(flags: u32) -> Completion<T> {
        Completion {
            state: AtomicU32::new(flags),
            cell: UnsafeCell::new(None),
            waiters: Mutex::new(Waiters::default()),
        }
    }

    /// Sets a flag of a value that nobody else has yet: at no cost, where [`set`](Self::set) is a
    /// locked access.
    #[inline]
    pub fn mark(&mut self, flag: u32) {
        // Relaxed: handing the value on is what makes it seen.
        self.state.store(self.state.load(Ordering::Relaxed) | flag, Ordering::Relaxed);
    }

    /// A value that is there, or an error.
    pub fn completed(value: T, failed: bool) -> Completion<T> {
        let phase = if failed { Phase::Failed } else { Phase::Done };
        Completion {
            state: AtomicU32::new(phase as u32),
            cell: UnsafeCell::new(Some(value)),
            waiters: Mutex::new(Waiters::default()),
        }
    }

    pub fn state(&self) -> State {
        State(self.state.load(Ordering::Acquire))
    }

    /// The state, in one order with all accesses that are SeqCst; [`unclaim`](Self::unclaim) is one
    /// of them.
    pub fn state_in_order(&self) -> State {
        in_total_order();
        State(self.state.load(Ordering::SeqCst))
    }

    /// Sets flags and returns the state before.
    pub fn set(&self, flags: u32) -> State {
        State(self.state.fetch_or(flags, Ordering::AcqRel))
    }

    /// Clears flags and returns the state before.
    pub fn clear(&self, flags: u32) -> State {
        State(self.state.fetch_and(!flags, Ordering::AcqRel))
    }

    /// Clears flags at the cost of a plain store.
    ///
    /// # Safety
    /// Nobody else can reach the value.
    pub unsafe fn unmark(&self, flags: u32) {
        self.state.store(self.state.load(Ordering::Relaxed) & !flags, Ordering::Relaxed);
    }

    /// Clears one flag, which is set, and sets another, which is not; returns the state before.
    pub fn exchange(&self, clear: u32, set: u32) -> State {
        let before = State(self.state.fetch_xor(clear | set, Ordering::AcqRel));
        debug_assert!(before.has(clear) && !before.has(set));
        before
    }

    /// The value or error, once it is there.
    pub fn get(&self) -> Option<&T> {
        if self.state().is_complete() {
            // SAFETY: complete is final; the write came before the Release store that we acquired.
            self.cell.with(|cell| unsafe { (*cell).as_ref() })
        } else {
            None
        }
    }

    /// Moves a pending value to `to` if none of `unless` is set; true for the one caller that did.
    pub fn claim(&self, to: Phase, unless: u32) -> bool {
        let mut now = self.state.load(Ordering::Relaxed);
        loop {
            if phase_of(now) != Phase::Pending || now & unless != 0 {
                return false;
            }
            let next = now & !PHASE | to as u32;
            match self.state.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
    }

    /// Takes the right to write from a claim; false where another thread took it.
    pub fn begin_writing(&self) -> bool {
        let mut now = self.state.load(Ordering::Relaxed);
        while phase_of(now) == Phase::Claimed {
            let next = now & !PHASE | Phase::Writing as u32;
            match self.state.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Gives the right to write back: the value is pending again. Returns the state before.
    ///
    /// # Safety
    /// The caller holds the right to write (phase Writing), and has it no more.
    pub unsafe fn unclaim(&self) -> State {
        debug_assert!(self.is_writing());
        // SeqCst: either the thread that drops the last handle sees this, or the next visit sees
        // the drop.
        State(self.state.fetch_xor(Phase::Writing as u32 ^ Phase::Pending as u32, Ordering::SeqCst))
    }

    /// For checks. Relaxed: a read that made the cell's accesses safe would hide one that is not.
    fn is_writing(&self) -> bool {
        phase_of(self.state.load(Ordering::Relaxed)) == Phase::Writing
    }

    /// Writes the value and wakes everybody.
    ///
    /// # Safety
    /// As [`unclaim`](Self::unclaim).
    pub unsafe fn write(&self, value: T, failed: bool) {
        debug_assert!(self.is_writing());
        // SAFETY: the caller alone may touch the cell; readers wait for the phase below.
        self.cell.with_mut(|cell| unsafe { *cell = Some(value) });
        self.leave(if failed { Phase::Failed } else { Phase::Done });
    }

    /// Puts a value where it will be read, once [`publish`](Self::publish) says so, and lends it to
    /// be filled in.
    ///
    /// # Safety
    /// The caller holds the right to write (phase Writing), and keeps it.
    #[inline]
    pub unsafe fn fill_in<R>(&self, value: T, fill: impl FnOnce(&mut T) -> R) -> R {
        debug_assert!(self.is_writing());
        // SAFETY: as in `write`; what is there before is overwritten by the same right.
        self.cell.with_mut(|cell| unsafe { fill((*cell).insert(value)) })
    }

    /// Publishes the value that was [filled in](Self::fill_in): wakes all waiters.
    ///
    /// # Safety
    /// As [`unclaim`](Self::unclaim), and something was filled in.
    pub unsafe fn publish(&self) {
        debug_assert!(self.is_writing());
        self.leave(Phase::Done);
    }

    /// [`publish`](Self::publish), at the cost of a plain store.
    ///
    /// # Safety
    /// The same; and nobody else can reach the value, or has waited for it.
    #[inline]
    pub unsafe fn publish_alone(&self) {
        debug_assert!(self.is_writing() && !self.state().has(WAITERS));
        self.state.store(Phase::Done as u32, Ordering::Relaxed);
    }

    /// Marks a value as fused away.
    ///
    /// # Safety
    /// As [`unclaim`](Self::unclaim).
    pub unsafe fn fuse(&self) {
        debug_assert!(self.is_writing());
        self.leave(Phase::Fused);
    }

    /// Writes an error and wakes everybody. `note` is told the flags that the value ends with;
    /// where one is set while it looks, it is told again.
    ///
    /// # Safety
    /// As [`unclaim`](Self::unclaim).
    pub unsafe fn fail(&self, value: T, mut note: impl FnMut(State)) {
        debug_assert!(self.is_writing());
        // SAFETY: as in `write`.
        self.cell.with_mut(|cell| unsafe { *cell = Some(value) });
        let mut now = self.state();
        loop {
            note(now);
            let next = now.0 & !PHASE | Phase::Failed as u32;
            match self.state.compare_exchange(now.0, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(before) => return self.wake(State(before)),
                Err(seen) => now = State(seen),
            }
        }
    }

    fn leave(&self, to: Phase) {
        // Writing is left by its one writer, so xor turns exactly these bits.
        let flip = Phase::Writing as u32 ^ to as u32;
        // Release: the write above comes first. Acquire: the list below is whole.
        self.wake(State(self.state.fetch_xor(flip, Ordering::AcqRel)));
    }

    fn wake(&self, before: State) {
        if before.has(WAITERS) {
            let woken = std::mem::take(&mut *lock(&self.waiters));
            wake_all(woken.into_wakers());
        }
    }

    /// Puts a waker on the list (again), unless the value is complete: then true.
    pub fn register(&self, id: &mut Option<u32>, waker: &Waker) -> bool {
        if id.is_some_and(|id| lock(&self.waiters).has(id, waker)) {
            // The end takes the list, and has not yet.
            return false;
        }
        let fresh = waker.clone();
        let mut waiters = lock(&self.waiters);
        let replaced = waiters.put(id, fresh);
        // Under the lock: either the writer sees the flag and takes the list after us, or we see
        // the end. As late as can be: a writer that sees the flag waits for the lock, and
        // allocating under it made one in ten awaits sleep.
        let before = State(self.state.fetch_or(WAITERS, Ordering::AcqRel));
        let ours = before.is_complete().then(|| id.take().and_then(|id| waiters.leave(id)));
        let left = (replaced, ours);
        drop(waiters);
        drop(left);
        before.is_complete()
    }

    /// Takes a waker off the list; once for each id. Nothing is left of it afterwards.
    pub fn deregister(&self, id: u32) {
        let left = lock(&self.waiters).leave(id);
        drop(left);
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    impl Count {
        fn new() -> (Arc<Count>, Waker) {
            let count = Arc::new(Count::default());
            (count.clone(), Waker::from(count))
        }
        fn woken(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn places_that_are_given_back_are_taken_again_and_each_waiter_is_woken_once() {
        let value = Completion::<u32>::pending(0);
        let wakers: Vec<_> = (0..5).map(|_| Count::new()).collect();
        let mut ids = [None; 5];
        for (id, (_, waker)) in ids.iter_mut().zip(&wakers) {
            assert!(!value.register(id, waker));
        }
        for k in [1, 3] {
            value.deregister(ids[k].take().unwrap());
        }
        let (late, waker) = Count::new();
        let mut id = None;
        assert!(!value.register(&mut id, &waker));
        assert!(!value.register(&mut id, &waker), "again, by the same waker");
        assert!(!value.register(&mut ids[0], &waker), "again, by another");
        assert_eq!(lock(&value.waiters).places(), 5);
        assert!(value.claim(Phase::Writing, 0));
        // SAFETY: claimed by us.
        unsafe { value.write(1, false) };
        let woken: Vec<usize> = wakers.iter().map(|(count, _)| count.woken()).collect();
        assert_eq!((woken, late.woken()), (vec![0, 0, 1, 0, 1], 2));
        // After the end: nothing is on the list, and nothing comes.
        ids.into_iter().chain([id]).flatten().for_each(|id| value.deregister(id));
        assert!(value.register(&mut None, &waker));
        assert_eq!(Arc::strong_count(&late), 2);
    }

    #[test]
    fn a_flag_that_is_set_while_an_error_is_written_is_noted_before_anybody_sees_the_error() {
        let value = Completion::<u32>::pending(0);
        assert!(value.claim(Phase::Writing, 0));
        let mut noted = Vec::new();
        let note = |state: State| {
            assert!(!value.state().is_complete());
            noted.push(state.has(DETACHED));
            value.set(DETACHED);
        };
        // SAFETY: claimed by us.
        unsafe { value.fail(1, note) };
        assert_eq!(noted, [false, true]);
        assert_eq!(value.state().phase(), Phase::Failed);
    }
}

#[cfg(all(test, futensor_loom))]
pub(crate) mod loom_tests {
    use super::*;
    use crate::sync::AtomicBool;
    use loom::sync::{Arc, Notify};
    use std::task::Wake;

    /// Loom's `Notify` may wake for nothing: what counts is that it was notified.
    pub(crate) struct NotifyWaker(pub Notify, pub AtomicBool);
    impl Wake for NotifyWaker {
        fn wake(self: std::sync::Arc<Self>) {
            self.1.store(true, Ordering::SeqCst);
            self.0.notify();
        }
    }

    #[test]
    fn a_waiter_that_registers_beside_the_end_is_woken_or_told() {
        loom::model(|| {
            let value = Arc::new(Completion::<u32>::pending(0));
            assert!(value.claim(Phase::Writing, 0));
            let writer = value.clone();
            // SAFETY: claimed above, for this thread.
            let thread = loom::thread::spawn(move || unsafe { writer.write(7, false) });
            let waker = std::sync::Arc::new(NotifyWaker(Notify::new(), AtomicBool::new(false)));
            if !value.register(&mut None, &Waker::from(waker.clone())) {
                // A registered waiter sleeps until it is woken: a lost wake is a deadlock, and loom
                // sees it.
                while !waker.1.load(Ordering::SeqCst) {
                    waker.0.wait();
                }
            }
            assert_eq!(value.get(), Some(&7));
            thread.join().unwrap();
        });
    }

    /// Fills the cell in, finds that it cannot go on, and gives the right to write back.
    fn try_and_give_back(value: &Completion<u32>) {
        if value.claim(Phase::Writing, 0) {
            // SAFETY: claimed by us.
            unsafe {
                value.fill_in(1, |_| {});
                value.unclaim();
            }
        }
    }

    #[test]
    fn who_claims_what_was_given_back_writes_after_who_gave_it_back() {
        loom::model(|| {
            let value = Arc::new(Completion::<u32>::pending(0));
            let other = value.clone();
            let thread = loom::thread::spawn(move || try_and_give_back(&other));
            // The owner of the claim has the cell: loom sees two accesses of which none comes
            // before the other.
            try_and_give_back(&value);
            thread.join().unwrap();
        });
    }

    #[test]
    fn who_takes_over_a_claim_writes_after_what_was_written_before_the_claim() {
        loom::model(|| {
            let value = Arc::new(Completion::<u32>::pending(0));
            let other = value.clone();
            let thread = loom::thread::spawn(move || {
                try_and_give_back(&other);
                assert!(other.claim(Phase::Claimed, 0));
            });
            // A watchdog's way: what is claimed and not written yet.
            while !value.begin_writing() {
                loom::thread::yield_now();
            }
            // SAFETY: the right to write was just taken.
            unsafe { value.write(2, true) };
            thread.join().unwrap();
        });
    }

    #[test]
    fn of_two_claimers_one_writes() {
        loom::model(|| {
            let value = Arc::new(Completion::<u32>::pending(0));
            let other = value.clone();
            let thread = loom::thread::spawn(move || {
                let won = other.claim(Phase::Claimed, ENTERED);
                if won && other.begin_writing() {
                    // SAFETY: the right to write was just taken.
                    unsafe { other.write(1, false) };
                }
                won
            });
            let mine = value.claim(Phase::Writing, ENTERED);
            if mine {
                // SAFETY: the right to write was just taken.
                unsafe { value.write(2, false) };
            }
            let theirs = thread.join().unwrap();
            assert!(mine != theirs);
            assert_eq!(value.get(), Some(&if mine { 2 } else { 1 }));
        });
    }

    #[test]
    fn a_watchdog_and_a_late_writer_leave_one_result() {
        loom::model(|| {
            let value = Arc::new(Completion::<u32>::pending(0));
            assert!(value.claim(Phase::Claimed, 0));
            let other = value.clone();
            let thread = loom::thread::spawn(move || {
                if other.begin_writing() {
                    // SAFETY: the right to write was just taken.
                    unsafe { other.write(1, false) };
                }
            });
            if value.begin_writing() {
                // SAFETY: the right to write was just taken.
                unsafe { value.write(2, true) };
            }
            thread.join().unwrap();
            assert!(value.get().is_some());
        });
    }
}
