//! The one door to atomics, locks and cells, so that loom checks the code that ships.
//!
//! Lock-free parts name these types through here and nowhere else; under `--cfg futensor_loom`
//! they are loom's.

#[cfg(futensor_loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
};

#[cfg(not(futensor_loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// `std`'s cell behind loom's face: access goes through a closure that is given the pointer.
#[cfg(not(futensor_loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(futensor_loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Alone in its lines: what one core writes often does not take away what others look at. Two
/// lines, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Stands between two accesses that are SeqCst, in a place that relies on their one total order.
/// Loom takes SeqCst accesses for AcqRel ones (a limit that it states), and needs a fence to see
/// that order; without loom the accesses have it by themselves, and this is nothing.
#[inline(always)]
pub(crate) fn in_total_order() {
    #[cfg(futensor_loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Locks, and goes on after a panic elsewhere: what these locks guard is valid between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The same for a lock of `std`, in what loom does not run: statics, and layers above the engine.
pub(crate) fn lock_plain<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
