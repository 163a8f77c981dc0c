//! The shared parts of file formats: a reading thread, with a stream that passes tensors to the
//! device; and a writing thread, fed by a future.
//!
//! Called by `safetensors/`, `gguf/`, `npy/` and `pth/`, which know the formats.

#[cfg(any(feature = "npy", feature = "pth"))]
mod archive;
mod elements;
mod handoff;
mod load;
#[cfg(any(feature = "gguf", feature = "npy", feature = "safetensors"))]
mod save;

#[cfg(any(feature = "npy", feature = "pth"))]
pub(crate) use archive::Archive;
#[cfg(any(feature = "pth", feature = "safetensors"))]
pub use load::LoadMetadata;
#[cfg(any(feature = "gguf", feature = "npy", feature = "pth"))]
pub(crate) use load::Loaded;
pub use load::{All, Load, LoadOptions, NextTensor, Progress};
pub(crate) use load::{Layout, Part, Reading, load};
pub(crate) use load::{Opened, in_memory, opened};
#[cfg(feature = "gguf")]
pub(crate) use load::{error_at, off_thread};
#[cfg(any(feature = "gguf", feature = "npy", feature = "safetensors"))]
pub use save::Save;
#[cfg(feature = "npy")]
pub(crate) use save::save_archive;
#[cfg(any(feature = "gguf", feature = "npy", feature = "safetensors"))]
pub(crate) use save::{Piece, known_failure, save};

/// The most bytes that wait between a file and a device, unless a single tensor is larger.
const AHEAD_BYTES: usize = 64 << 20;
/// The number of bytes per read or write.
const CHUNK: usize = 1 << 20;
