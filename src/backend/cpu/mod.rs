//! The CPU: its memory and its compute threads.

pub(crate) mod crew;
pub(crate) mod memory;
