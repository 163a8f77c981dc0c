//! The parts behind the doors under `--cfg futensor_shuttle` that `shuttle` lacks or spells
//! otherwise.
//!
//! A schedule is one run of a program, whose threads take turns as the explorer says. Nothing may
//! outlive a schedule: else the next one would begin elsewhere, and a failing schedule would not
//! replay. So each schedule makes the process's globals anew, and [`end`] waits for all threads and
//! frees everything else that lives as long as the process.

use super::plain::{Mutex, MutexGuard};
use shuttle::current::{TaskId, me};
pub(crate) use shuttle::hint::spin_loop;
use shuttle::rand::{RngCore, thread_rng};
use shuttle::thread::{AccessError, Builder, JoinHandle, Thread, yield_now};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::{Add, Sub};
use std::rc::Rc;
use std::time::Duration;

// All threads of a schedule are one to the system, and are moved to another by nobody.
std::thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
    static LIVES: RefCell<Vec<JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
    /// Thread-local values that need no drop, by thread and key.
    static LASTING: RefCell<HashMap<(TaskId, usize), Rc<dyn Any>>> = RefCell::default();
    static AT_END: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
}

/// Begins a schedule.
pub fn begin() {
    NOW.set(0);
    LASTING.take();
    // Of a schedule that has failed.
    std::mem::forget((LIVES.take(), AT_END.take()));
}

/// Ends a schedule: waits for the engine's threads, and frees what they have used.
pub fn end() {
    while let Some(life) = LIVES.with_borrow_mut(Vec::pop) {
        assert!(life.join().is_ok(), "a thread of the engine's panicked");
    }
    AT_END.take().into_iter().for_each(|free| free());
}

/// To be done when no thread of the engine's is left.
pub(crate) fn at_end(free: impl FnOnce() + 'static) {
    AT_END.with_borrow_mut(|list| list.push(Box::new(free)));
}

/// One in `n`.
fn chance(n: u64) -> bool {
    thread_rng().next_u64() % n == 0
}

/// The core of a thread on a machine of two, which moves it as it likes.
pub(crate) fn core() -> usize {
    chance(2) as usize
}

/// The life of a thread.
pub(crate) struct Life;

impl Life {
    pub fn begin(name: String, life: impl FnOnce() + Send + 'static) -> Thread {
        let handle = Builder::new().name(name).spawn(life).expect("shuttle starts every thread");
        let thread = handle.thread().clone();
        LIVES.with_borrow_mut(|lives| lives.push(handle));
        thread
    }
}

/// A time, in nanoseconds since the schedule began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Instant(u64);

impl Instant {
    /// Mostly a little later than at the last look. One time in sixteen whatever waits for time has
    /// run out.
    pub fn now() -> Instant {
        let passed = if chance(16) { 1_000_000_000 } else { 50 };
        NOW.set(NOW.get() + passed);
        Instant(NOW.get())
    }
    pub fn elapsed(&self) -> Duration {
        Instant::now() - *self
    }
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        *self - earlier
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time.as_nanos() as u64)
    }
}

/// Time runs out, or a thread notifies, or nothing is the matter: the waiter looks again.
pub(crate) fn wait_for<'a, T>(mutex: &'a Mutex<T>, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    drop(guard);
    yield_now();
    super::lock_plain(mutex)
}

/// A while passes for the others.
pub(crate) fn sleep(time: Duration) {
    NOW.set(NOW.get() + time.as_nanos() as u64);
    yield_now();
}

/// `std`'s, but for who comes while another makes the value: it waits as for any lock.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    cell: std::sync::OnceLock<T>,
    making: Mutex<()>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> OnceLock<T> {
    pub const fn new() -> OnceLock<T> {
        OnceLock { cell: std::sync::OnceLock::new(), making: Mutex::new(()) }
    }
    pub fn get(&self) -> Option<&T> {
        self.cell.get()
    }
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let _making = super::lock_plain(&self.making);
        if self.cell.get().is_none() {
            let made = make();
            let _ = self.cell.set(made);
        }
        self.cell.get().expect("made above, if not before")
    }
    pub fn set(&self, value: T) -> Result<(), T> {
        let _making = super::lock_plain(&self.making);
        self.cell.set(value)
    }
    pub fn into_inner(self) -> Option<T> {
        self.cell.into_inner()
    }
}

/// Thread-local values.
pub(crate) struct LocalKey<T: 'static>(pub shuttle::thread::LocalKey<T>);

/// `std::thread_local`, over [`LocalKey`].
macro_rules! local {
    () => {};
    (
        $(#[$attribute:meta])* $vis:vis static $name:ident: $type:ty = const { $value:expr }
        $(; $($rest:tt)*)?
    ) => {
        $(#[$attribute])* $vis static $name: $crate::sync::schedule::LocalKey<$type> =
            $crate::sync::schedule::LocalKey(shuttle::thread::LocalKey {
                init: || $value,
                _p: std::marker::PhantomData,
            });
        $($crate::sync::schedule::local!($($rest)*);)?
    };
    (
        $(#[$attribute:meta])* $vis:vis static $name:ident: $type:ty = $value:expr
        $(; $($rest:tt)*)?
    ) => {
        $crate::sync::schedule::local!(
            $(#[$attribute])* $vis static $name: $type = const { $value } $(; $($rest)*)?
        );
    };
}
pub(crate) use local;

impl<T: 'static> LocalKey<T> {
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f).expect("it is there until its thread ends")
    }
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        if std::mem::needs_drop::<T>() {
            return self.0.try_with(f);
        }
        // As `std` has it: it is there while the others are dropped.
        let at = (me(), std::ptr::from_ref(self) as usize);
        let known = LASTING.with_borrow(|all| all.get(&at).cloned());
        let value = known.unwrap_or_else(|| {
            let value: Rc<dyn Any> = Rc::new((self.0.init)());
            LASTING.with_borrow_mut(|all| all.insert(at, value.clone()));
            value
        });
        Ok(f(value.downcast_ref().expect("a key has one type")))
    }
}

impl<T: 'static> LocalKey<Cell<T>> {
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(Cell::take)
    }
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> LocalKey<RefCell<T>> {
    pub fn with_borrow<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.with(|cell| f(&cell.borrow()))
    }
    pub fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
        self.with(|cell| f(&mut cell.borrow_mut()))
    }
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.replace(value));
    }
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(RefCell::take)
    }
}
