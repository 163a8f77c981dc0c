//! The shared parts of file formats: a reading thread, with a stream that passes tensors to the
//! device; and a writing thread, fed by a future.
//!
//! Called by `safetensors/` and `gguf/`, which know the formats.

mod elements;
mod handoff;
mod load;
mod save;

#[cfg(feature = "safetensors")]
pub use load::LoadMetadata;
pub use load::{All, Load, LoadOptions, NextTensor, Progress};
#[cfg(feature = "gguf")]
pub(crate) use load::{Loaded, error_at, off_thread};
pub(crate) use load::{Part, Reading, load};
pub use save::Save;
pub(crate) use save::{Piece, known_failure, save};

/// The most bytes that wait between a file and a device, unless a single tensor is larger.
const AHEAD_BYTES: usize = 64 << 20;
/// The number of bytes per read or write.
const CHUNK: usize = 1 << 20;
