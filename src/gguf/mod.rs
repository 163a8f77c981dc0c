//! Loads and saves models in the GGUF format, including quantised weights, without blocking.
//!
//! [`open`] is a future: a separate thread reads the header, and checks every length and offset in
//! it against the file. [`Gguf::metadata`] has the model's settings, by key; [`Gguf::load`] is a
//! stream of the tensors, as in [`safetensors`](crate::safetensors). Quantised weights become a
//! [`Quantized`](crate::quant::Quantized), packed by the reading thread; those in other formats
//! ([`Blocks`]) become one that holds the same values, or float32. [`save`] writes a file.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::quant::{Format, Quantized, Weight};
//! use futensor::{Device, gguf};
//! let device = Device::cpu();
//! let path = std::env::temp_dir().join(format!("futensor-doc-{}.gguf", std::process::id()));
//! let weight = Quantized::from_tensor(&device.ones([16, 32]), Format::Q4_1)?;
//! let tensors = [("w.weight", Weight::from(weight)), ("w.bias", device.zeros([16]).into())];
//! gguf::save(&path, [("general.name", "a model".into())], tensors).await?;
//!
//! let file = gguf::open(&path).await?;
//! assert_eq!(file.metadata()["general.name"].as_str(), Some("a model"));
//! let all = file.load(&device).all().await?;                    // a map by name
//! assert_eq!(all["w.weight"].dims(), [16, 32]);
//! assert_eq!(all["w.weight"].linear(device.ones([32])).to_vec::<f32>().await?, [32.0; 16]);
//! # std::fs::remove_file(&path).unwrap();
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```

mod blocks;
mod header;
mod kind;
mod read;
mod source;
mod value;
mod write;

pub use crate::files::{All, Load, LoadOptions, NextTensor, Progress, Save};
pub use blocks::Blocks;
pub use header::TensorInfo;
pub use kind::Kind;
pub use read::{Gguf, Opening, open, open_bytes};
pub use value::{Array, Metadata, Value};
pub use write::save;

/// The first four bytes of a file.
const MAGIC: [u8; 4] = *b"GGUF";
/// The version that is written; version 2 has the same layout.
const VERSION: u32 = 3;
/// The key of the alignment of offsets, and its default.
const ALIGNMENT: (&str, u64) = ("general.alignment", 32);
/// The largest alignment: more than files use.
const ALIGNMENT_MAX: u64 = 1 << 20;
/// The most dimensions of a tensor, as in ggml.
const DIMS_MAX: usize = 4;
