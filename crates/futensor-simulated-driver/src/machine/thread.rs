//! The state of a thread of the client's.

use crate::ffi::{Handle, Kind, handle};
use std::cell::Cell;

thread_local! {
    /// The context current on this thread; 0 for none.
    pub static CURRENT: Cell<u64> = const { Cell::new(0) };
    /// True while this thread runs a `cuLaunchHostFunc` function.
    pub static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    /// True of a thread that has launched something.
    pub static LAUNCHES: Cell<bool> = const { Cell::new(false) };
    /// True where a blocking call is a mistake (`futsim_forbid_blocking`).
    pub static MUST_NOT_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// The handle of the context current on this thread; 0 for none.
pub fn current_handle() -> Handle {
    match CURRENT.get() {
        0 => 0,
        context => handle(Kind::Context, context),
    }
}
