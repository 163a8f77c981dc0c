//! Loads the tensors of files that PyTorch's `torch.save` wrote (`.pth`, `.pt`, `.bin`, `.ckpt`),
//! without blocking and without running anything.
//!
//! Such a file is a zip archive with a pickle: a program for a small machine, which in Python may
//! call any function. Here the program only builds values. It knows how tensors, parameters and
//! dictionaries are made; everything else that it names stays a name. So a hostile file can do no
//! more than be refused.
//!
//! The names are those of the dictionary, `fc.weight`. Where dictionaries, lists and tuples hold
//! others, their keys and positions are joined by dots: of a checkpoint
//! `{"model": net.state_dict(), "epoch": 3}` the names begin with `model.`, and
//! [`Load::metadata`] has `epoch` as text, as all numbers, texts and truth values.
//!
//! ```no_run
//! # async fn run() -> futensor::Result<()> {
//! use futensor::nn::{self, Module};
//! use futensor::{Device, pth};
//! let device = Device::try_gpu(0);
//! let net = nn::Linear::new(784, 10, &device);
//! let weights = pth::load("linear.pth", &device).all().await?;              // a map by name
//! net.load_state(weights)?;
//! # Ok(()) }
//! ```
//!
//! Files from before PyTorch 1.6, which are no archives, and files with a whole model
//! (`torch.save(model, path)`) are refused with the line of Python that writes a readable one.

mod pickle;
mod read;
mod rebuild;

pub use crate::files::{All, Load, LoadMetadata, LoadOptions, NextTensor, Progress};
pub use read::{load, load_bytes, load_with};
