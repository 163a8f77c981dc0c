//! Models on `futensor`, and the files that they come from.
//!
//! ```no_run
//! # futensor::block_on(async {
//! use futensor::{DType, Device};
//! use futensor_models::{Bert, Folder};
//! let device = Device::try_gpu(0);
//! // A plain folder, or the hub's cache of a model. Nothing is downloaded.
//! let folder = Folder::open("models--sentence-transformers--all-MiniLM-L6-v2").await?;
//! let bert = Bert::from_folder_with(&device, &folder, DType::F32, |progress| {
//!     eprint!("\r{:3.0} %", progress.fraction() * 100.0);
//! })
//! .await?;
//! let rows = [vec![101, 1037, 4937, 102], vec![101, 7592, 102]]; // of a tokenizer
//! let vectors: Vec<f32> = bert.embed(&rows).to_vec().await?;
//! assert_eq!(vectors.len(), 2 * bert.config().hidden_size);
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # Finding your way
//!
//! - [`Bert`]: BERT's encoder, for sentence embeddings; all-MiniLM is one.
//! - [`Folder`]: a model's folder, as Hugging Face's hub lays it out. [`Folder::load`] is a stream
//!   of its tensors, with [`Progress`].
//! - [`Tensors`]: a model's tensors by name, for a model of your own: each is taken once, with its
//!   shape checked, and none may be left over.
//!
//! # What it promises
//!
//! - **A file is used whole or refused.** A shard or a tensor that is missing, one that is left
//!   over or has another shape, and a configuration of another architecture each end in an error
//!   that names the file and the tensor.
//! - **No executor thread reads a file.** Threads of their own do.
//! - **The network is not used.**

mod bert;
mod error;
mod folder;
mod load;
mod tensors;

pub use bert::{Bert, BertConfig};
pub use error::{Error, Result};
pub use folder::Folder;
pub use futensor::safetensors::Progress;
pub use load::{All, Loading, Next};
pub use tensors::Tensors;
