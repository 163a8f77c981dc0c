//! The guard around user code: ops, futures, their captures, the payloads of their panics. User
//! code may panic, also in a drop; it may take long, or call back into the engine. So the engine
//! calls and drops it under a guard, without holding a lock.

use crate::room::NoRoom;
use crate::sync::threads::thread_local;
use crate::sync::{self, Mutex, MutexGuard};
use smallvec::SmallVec;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakers to be called.
pub(crate) type Wakers = SmallVec<[Waker; 2]>;

/// Users' values to be dropped.
pub(crate) type Leftovers = Vec<Box<dyn Any + Send>>;

/// Calls user code; returns its result, or the message of its panic.
pub(crate) fn caught<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(panic_message)
}

/// The message of a panic.
pub(crate) fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.or_else(|| panic.downcast_ref::<NoRoom>().map(NoRoom::to_string));
    discard(panic);
    text.unwrap_or_else(|| "a panic without a message".into())
}

/// Runs user code for its effect. A panic is reported by the panic hook, and goes no further.
pub(crate) fn contained(code: impl FnOnce()) {
    let _ = caught(code);
}

/// Calls each of these wakers, even if another one panics. Wakers are cloned, called and dropped
/// outside every lock: a waker may own an await of the very value that it waits for, or a permit.
/// So if a thread [holds a lock](lock), or [defers wakes](DeferredWakes), wakers are
/// called after that.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        let mut waker = Some(waker);
        let _ = WOKEN.try_with(|woken| {
            if let Some(list) = &mut *woken.borrow_mut() {
                list.extend(waker.take());
            }
        });
        if let Some(waker) = waker {
            contained(|| waker.wake());
        }
    }
}

/// Drops a user's value, and contains a panic of the drop.
pub(crate) fn discard<T>(it: T) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(it))) else { return };
    // The payload is user code as well. If its drop panics too, the second payload is leaked.
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(another);
    }
}

thread_local! {
    /// The values to be dropped once this thread holds no lock of the engine; `None`
    /// while drops need not be deferred.
    static LATER: RefCell<Option<Leftovers>> = const { RefCell::new(None) };
    /// The wakers to be called later, while this thread defers wakes.
    static WOKEN: RefCell<Option<Wakers>> = const { RefCell::new(None) };
}

/// Drops a user's value as [`discard`] does: immediately, or after the thread's
/// [deferral](DeferredDrops).
pub(crate) fn discard_unlocked<T: Send + 'static>(it: T) {
    if !std::mem::needs_drop::<T>() {
        return;
    }
    let mut it = Some(it);
    // A thread that is ending has no list.
    let _ = LATER.try_with(|later| {
        if let Some(list) = &mut *later.borrow_mut()
            && let Some(it) = it.take()
        {
            list.push(Box::new(it));
        }
    });
    discard(it);
}

thread_local! {
    /// Whether this thread runs a user's kernel, or a part of any kernel.
    static KERNEL: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, this thread runs a kernel. A wait in the kernel would keep the device from the
/// very work that is waited for.
pub(crate) struct Kernel(bool);

impl Kernel {
    pub fn begin() -> Kernel {
        Kernel(KERNEL.replace(true))
    }

    /// True while this thread runs a kernel.
    pub fn is_on() -> bool {
        KERNEL.get()
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        KERNEL.set(self.0);
    }
}

/// While it lives, this thread defers the drops of users' values. Made before a lock is taken.
pub(crate) struct DeferredDrops(bool);

impl DeferredDrops {
    pub fn begin() -> DeferredDrops {
        LATER.with_borrow_mut(|later| {
            let outermost = later.is_none();
            later.get_or_insert_default();
            DeferredDrops(outermost)
        })
    }

    /// True while a value waits to be dropped.
    pub fn has_some(&self) -> bool {
        LATER.with_borrow(|later| later.as_ref().is_some_and(|list| !list.is_empty()))
    }

    /// Ends the deferral and returns the values, for the caller to drop. None inside another
    /// deferral.
    #[allow(dead_code)] // For devices whose thread has others drop them.
    pub fn end(mut self) -> Leftovers {
        if std::mem::take(&mut self.0) {
            LATER.take().unwrap_or_default()
        } else {
            Leftovers::new()
        }
    }

    /// Drops the waiting values. The thread holds no lock now.
    pub fn let_go(&self) {
        while self.has_some() {
            let list = LATER.with_borrow_mut(|later| later.as_mut().map(std::mem::take));
            list.into_iter().flatten().for_each(discard);
        }
    }
}

impl Drop for DeferredDrops {
    fn drop(&mut self) {
        if self.0 {
            let list = LATER.take();
            list.into_iter().flatten().for_each(discard);
        }
    }
}

/// Takes a lock under which wakers and users' values may be released: wakers are called, and values
/// dropped, once the lock is released and every other deferral has ended.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Locked<'_, T> {
    let (later, woken) = (DeferredDrops::begin(), DeferredWakes::begin());
    Locked { guard: sync::lock(mutex), _woken: woken, _later: later }
}

/// See [`lock`]. The fields are dropped in order: the lock first.
pub(crate) struct Locked<'a, T> {
    guard: MutexGuard<'a, T>,
    _woken: DeferredWakes,
    _later: DeferredDrops,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// While it lives, this thread defers wakes. No user code may run meanwhile, since it could wait
/// for a deferred wake.
pub(crate) struct DeferredWakes(bool);

impl DeferredWakes {
    pub fn begin() -> DeferredWakes {
        WOKEN.with_borrow_mut(|woken| {
            let outermost = woken.is_none();
            woken.get_or_insert_default();
            DeferredWakes(outermost)
        })
    }

    /// True while a waker waits to be called.
    pub fn has_some(&self) -> bool {
        WOKEN.with_borrow(|woken| woken.as_ref().is_some_and(|list| !list.is_empty()))
    }

    /// Ends the deferral and returns the wakers, for the caller to call. None inside another
    /// deferral.
    pub fn end(mut self) -> Wakers {
        if std::mem::take(&mut self.0) { WOKEN.take().unwrap_or_default() } else { Wakers::new() }
    }
}

impl Drop for DeferredWakes {
    fn drop(&mut self) {
        if self.0 {
            wake_all(WOKEN.take().into_iter().flatten());
        }
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    use std::sync::Arc;
    use std::task::Wake;

    /// Panics when dropped, with another of its kind as the payload, this many times.
    struct Sore(u32);
    impl Drop for Sore {
        fn drop(&mut self) {
            if self.0 > 0 {
                std::panic::panic_any(Sore(self.0 - 1));
            }
        }
    }

    #[test]
    fn a_payload_that_panics_as_it_is_dropped_goes_no_further() {
        for depth in 0..4 {
            discard(Sore(depth));
            let words = caught(|| std::panic::panic_any(Sore(depth))).unwrap_err();
            assert_eq!(words, "a panic without a message");
        }
        assert_eq!(caught(|| panic!("so")).map(|()| 0), Err("so".into()));
        assert_eq!(caught(|| 7), Ok(7));
    }

    #[test]
    fn who_is_woken_under_a_lock_is_called_when_it_is_let_go_and_may_take_it() {
        struct Takes(Arc<Mutex<u32>>, Option<Waker>);
        impl Wake for Takes {
            fn wake(self: Arc<Self>) {
                *self.0.try_lock().expect("nobody holds it") += 1;
                wake_all(self.1.clone());
                // The drop may panic, and take the lock as well.
                discard_unlocked(Sore(1));
            }
        }
        let count = Arc::new(Mutex::new(0));
        let inner = Waker::from(Arc::new(Takes(count.clone(), None)));
        let outer = Waker::from(Arc::new(Takes(count.clone(), Some(inner))));
        for round in 0..2 {
            let held = lock(&count);
            wake_all([outer.clone(), outer.clone()]);
            assert_eq!(*held, 4 * round);
            drop(held);
            assert_eq!(*lock(&count), 4 * round + 4);
        }
    }

    #[test]
    fn what_is_put_off_goes_when_the_outermost_lets_go() {
        thread_local!(static GONE: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) });
        struct Says(u32);
        impl Drop for Says {
            fn drop(&mut self) {
                GONE.with_borrow_mut(|gone| gone.push(self.0));
                if self.0 > 10 {
                    discard_unlocked(Says(self.0 - 10));
                }
            }
        }
        let gone = || GONE.with_borrow_mut(std::mem::take);
        discard_unlocked(Says(1));
        assert_eq!(gone(), [1]);
        let outer = DeferredDrops::begin();
        discard_unlocked(Says(12));
        drop(DeferredDrops::begin());
        assert!(gone().is_empty() && outer.has_some());
        outer.let_go();
        assert_eq!(gone(), [12, 2]);
        discard_unlocked(Says(13));
        discard_unlocked(Sore(2));
        drop(outer);
        assert_eq!(gone(), [13, 3]);
    }
}
