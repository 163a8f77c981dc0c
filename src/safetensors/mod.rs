//! Loads and saves tensors in the safetensors format, without blocking.
//!
//! [`load`] is a stream: a separate thread reads the file tensor by tensor, only a little ahead,
//! and each tensor is already being copied to the device when it is received; [`load_bytes`] takes
//! a file in memory. [`save`] is a future, and [`save_with_metadata`] writes metadata as well.
//! Names, shapes and types are those of the file, so weights that PyTorch saved load under
//! PyTorch's names.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::{Device, safetensors};
//! let device = Device::cpu();
//! let path = std::env::temp_dir()
//!     .join(format!("futensor-doc-{}.safetensors", std::process::id()));
//! safetensors::save(&path,
//!     [("layer.weight", device.ones([2, 3])), ("layer.bias", device.zeros([2]))]).await?;
//!
//! let mut tensors = safetensors::load(&path, &device);
//! while let Some(loaded) = tensors.next().await {
//!     let (name, tensor) = loaded?;
//!     println!("{name} {tensor}: {:.0} %", tensors.progress().fraction() * 100.0);
//! }
//! let all = safetensors::load(&path, &device).all().await?;     // a map by name
//! assert_eq!(all["layer.weight"].dims(), [2, 3]);
//! # std::fs::remove_file(&path).unwrap();
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```

mod read;
mod wire;
mod write;

pub use crate::files::{All, Load, LoadMetadata, LoadOptions, NextTensor, Progress, Save};
pub use read::{load, load_bytes, load_with};
pub use write::{save, save_with_metadata};

/// The largest header that is read.
const HEADER_MAX: u64 = 100 << 20;
