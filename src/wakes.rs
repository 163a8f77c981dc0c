//! Waking: wakers are code of the user's.
//!
//! They are cloned, woken and dropped outside of every lock: one may own an await of the very value that it waits for,
//! or a permit. And whatever one does when it is woken, the others are woken and the engine goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Runs the user's code for its effect. Of a panic the hook has told; it goes no further.
pub(crate) fn contained(code: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(code)) {
        // What was thrown is the user's as well: its drop may panic, and so may what that throws.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
    }
}

/// Wakes each of them, whatever another does.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        contained(|| waker.wake());
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_panic_whose_payload_panics_goes_no_further() {
        struct Loud;
        impl Drop for Loud {
            fn drop(&mut self) {
                panic!("a payload of a test panics");
            }
        }
        contained(|| std::panic::panic_any(Loud));
    }
}
