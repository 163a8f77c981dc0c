//! Devices in a forked process. Threads stay with the parent, so no op would ever run in the child,
//! and every await there would wait for ever. In the child such devices have ended.
//!
//! The handler runs between `fork` and the child's next step. At that moment a thread that is not
//! there may hold any lock, so the handler walks a list that only grows, and sets flags.

#![allow(unsafe_code)]

use crate::sync::plain::{AtomicBool, AtomicU32};
#[cfg(all(unix, not(any(futensor_loom, futensor_shuttle))))]
use crate::sync::plain::{AtomicPtr, OnceLock, Ordering::*};

/// The device is lost or shut down: every pending value and every later one fails.
pub(super) const ENDED: u32 = 1;
/// Each result is checked for what is not finite.
pub(super) const CHECKED: u32 = 2;

/// The switches of a device's life. Each is set once and for good.
#[derive(Default)]
pub(super) struct Switches {
    /// [`ENDED`] and [`CHECKED`]: an op whose device has neither has nothing else to ask.
    pub state: AtomicU32,
    /// The device is the parent process's: this process was forked off.
    pub forked: AtomicBool,
}

/// A device's switches, and the devices that were opened before it.
#[cfg(all(unix, not(any(futensor_loom, futensor_shuttle))))]
struct Listed {
    switches: &'static Switches,
    next: *mut Listed,
}

#[cfg(all(unix, not(any(futensor_loom, futensor_shuttle))))]
static LIST: AtomicPtr<Listed> = AtomicPtr::new(std::ptr::null_mut());

/// Lists a device, for the life of the process, as ports live.
#[cfg(all(unix, not(any(futensor_loom, futensor_shuttle))))]
pub(super) fn list(switches: &'static Switches) {
    static HANDLER: OnceLock<()> = OnceLock::new();
    HANDLER.get_or_init(|| {
        // SAFETY: the handler does what may be done in a child of a process with threads. (A
        // refusal leaves the child to wait, as it did before.)
        let _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    let listed = Box::into_raw(Box::new(Listed { switches, next: LIST.load(Acquire) }));
    loop {
        // SAFETY: it is ours until the exchange.
        let next = unsafe { (*listed).next };
        match LIST.compare_exchange(next, listed, AcqRel, Acquire) {
            Ok(_) => return,
            // SAFETY: as above.
            Err(seen) => unsafe { (*listed).next = seen },
        }
    }
}

#[cfg(all(unix, not(any(futensor_loom, futensor_shuttle))))]
extern "C" fn forked() {
    let mut at = LIST.load(Acquire);
    // SAFETY: what is listed is whole and stays.
    while let Some(listed) = unsafe { at.as_ref() } {
        listed.switches.forked.store(true, Relaxed);
        listed.switches.state.fetch_or(ENDED, Relaxed);
        at = listed.next;
    }
}
