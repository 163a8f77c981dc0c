//! The one door to atomics, locks and cells; [`threads`] and [`clock`] are those to threads and
//! time.
//!
//! Engine, graph, host, tensor and ground name these things through here and nowhere else, so that
//! the explorers of orders run the code that ships:
//!
//! - Under `--cfg futensor_loom` the types are loom's: small models see every order that memory
//!   allows. Code that no model runs, or that would only make a model longer, takes its types from
//!   [`plain`], and loom does not follow those.
//! - Under `--cfg futensor_shuttle` all of them are shuttle's, `plain` ones too: programs over the
//!   whole engine see orders of threads (`tests/schedules`).
//! - Else all are `std`'s, and cost what those cost.

pub(crate) mod clock;
#[cfg(futensor_shuttle)]
pub(crate) mod schedule;
pub(crate) mod threads;

#[cfg(futensor_loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
};

#[cfg(not(futensor_loom))]
pub(crate) use plain::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, fence,
};

/// Types that loom does not follow: counters and switches that are no part of a lock-free protocol,
/// statics, and the locks of layers above the engine.
#[allow(unused_imports)] // Under each `cfg` some.
pub(crate) mod plain {
    #[cfg(futensor_shuttle)]
    pub(crate) use super::schedule::OnceLock;
    #[cfg(futensor_shuttle)]
    pub(crate) use shuttle::sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    };

    #[cfg(not(futensor_shuttle))]
    pub(crate) use std::sync::{
        Condvar, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    };
}

/// Declares globals of the process: `statics! { static COUNT: AtomicUsize = AtomicUsize::new(0);
/// }`. Each schedule that is explored has its own.
#[cfg(not(futensor_shuttle))]
macro_rules! statics {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$attribute])* static $name: $type = $value;)*
    };
}
#[cfg(futensor_shuttle)]
macro_rules! statics {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $(shuttle::lazy_static! { $(#[$attribute])* static ref $name: $type = $value; })*
    };
}
pub(crate) use statics;

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

/// A value alone in its lines, so that a core that writes it often takes no other value out of
/// others' caches. Two lines, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub T);

impl<T> std::ops::Deref for CachePadded<T> {
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

/// Locks, and goes on after a panic elsewhere: the guarded values are valid between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The same for a [`plain`] lock.
pub(crate) fn lock_plain<T>(mutex: &plain::Mutex<T>) -> plain::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
