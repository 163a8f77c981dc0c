//! The life of a device: whether it has ended, and for which reason.

use super::fork::{CHECKED, ENDED, Switches};
use crate::error::{Error, ErrorKind};
use crate::sync::plain::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use crate::sync::{CachePadded, Mutex, lock};
use std::any::Any;
use std::panic::Location;
use std::sync::Weak;

/// Whether a device is there.
///
/// The law: a device ends once and for good. The reason is there before the end is seen, and the
/// first reason stays. Each op reads the switches, so they have lines of their own.
pub(crate) struct Life {
    pub(super) switches: CachePadded<Switches>,
    reason: Mutex<Option<(ErrorKind, String)>>,
    /// The common token of the `Device` handles, while there is a handle.
    pub token: Mutex<Weak<dyn Any + Send + Sync>>,
}

impl Life {
    pub(super) fn new(is_checked: bool) -> Life {
        let none: Weak<dyn Any + Send + Sync> = Weak::<()>::new();
        let state = AtomicU32::new(if is_checked { CHECKED } else { 0 });
        let switches = CachePadded(Switches { state, ..Switches::default() });
        Life { switches, reason: Mutex::new(None), token: Mutex::new(none) }
    }

    /// From now on everything fails with this kind and message.
    pub fn end(&self, kind: ErrorKind, message: impl Into<String>) {
        lock(&self.reason).get_or_insert((kind, message.into()));
        self.switches.state.fetch_or(ENDED, Relaxed);
    }

    /// True once every new op fails.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.switches.state.load(Relaxed) & ENDED != 0
    }

    /// True where each result is checked for what is not finite.
    pub fn is_checked(&self) -> bool {
        self.switches.state.load(Relaxed) & CHECKED != 0
    }

    /// True while the device has not ended, and checks nothing.
    #[inline]
    pub fn is_usual(&self) -> bool {
        self.switches.state.load(Relaxed) == 0
    }

    /// True of a device that was shut down in order: nothing of it is lost.
    pub fn is_shut_down(&self) -> bool {
        matches!(&*lock(&self.reason), Some((ErrorKind::Shutdown, _)))
    }

    /// True in a process that was forked after the device was opened: its threads are not here.
    pub fn is_forked(&self) -> bool {
        self.switches.forked.load(Relaxed)
    }

    /// The error of an await in such a process.
    #[cold]
    pub fn forked_error(&self, op: &str, at: &'static Location<'static>) -> Error {
        let text = "the device belongs to the parent process, and its threads do not exist in \
                    this one: open a device after the fork";
        Error::new(ErrorKind::DeviceLost, op, text, at)
    }

    /// The error with which `op` fails because the device has ended.
    pub fn end_error(&self, op: &str, at: &'static Location<'static>) -> Option<Error> {
        if self.is_forked() {
            return Some(self.forked_error(op, at));
        }
        let (kind, message) = lock(&self.reason).clone()?;
        Some(Error::new(kind, op, message, at))
    }

    /// Notes, as threads start, whether the last `Device` handle is gone: values may ask for work
    /// after that. Otherwise [`Runner::abandon`](super::Runner::abandon) sets the flag.
    pub fn note_abandoned(&self, abandoned: &AtomicBool) {
        // First the flag: a handle that goes just now sets it again.
        abandoned.store(false, SeqCst);
        if lock(&self.token).strong_count() == 0 {
            abandoned.store(true, SeqCst);
        }
    }
}
