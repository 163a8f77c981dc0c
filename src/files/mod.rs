//! What the formats of files share: a thread that reads and a stream that hands to the device what
//! was read; a thread that writes what a future brings.
//!
//! Called by `safetensors/` and `gguf/`, which know what the bytes mean.

mod elements;
mod handoff;
mod load;
mod save;

pub use load::{All, Load, LoadOptions, NextTensor, Progress};
#[cfg(feature = "gguf")]
pub(crate) use load::{Loaded, error_at, off_thread};
pub(crate) use load::{Part, Reading, load};
pub use save::Save;
pub(crate) use save::{Piece, known_failure, save};

/// Most bytes that wait between a file and a device, one tensor apart.
const AHEAD_BYTES: usize = 64 << 20;
/// Bytes that are read or written at a time.
const CHUNK: usize = 1 << 20;
