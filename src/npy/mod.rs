//! Loads and saves NumPy's files without blocking: an array in a `.npy`, arrays by name in a
//! `.npz`.
//!
//! A separate thread reads and writes, and the elements go to the device as they come. NumPy's
//! `load` reads what is saved here; what `save`, `savez` and `savez_compressed` write is read here,
//! in both byte orders and both orders of elements. Python objects are refused, as NumPy refuses
//! them without `allow_pickle`: reading a file never runs anything.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::{Device, npy};
//! let device = Device::cpu();
//! # let folder = std::env::temp_dir();
//! # let path = folder.join(format!("futensor-doc-{}.npy", std::process::id()));
//! npy::save(&path, &device.arange(0., 6., 1.).reshape([2, 3])).await?;
//! let x = npy::load(&path, &device).await?;
//! assert_eq!(x.to_vec::<f32>().await?, [0., 1., 2., 3., 4., 5.]);
//! # std::fs::remove_file(&path).unwrap();
//!
//! # let path = folder.join(format!("futensor-doc-{}.npz", std::process::id()));
//! npy::save_npz(&path, [("x", &x), ("y", &device.zeros([3]))]).await?;
//! let all = npy::load_npz(&path, &device).all().await?;                     // a map by name
//! assert_eq!(all["y"].dims(), [3]);
//! # std::fs::remove_file(&path).unwrap();
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```

mod header;
mod read;
mod write;

pub use crate::files::{All, Load, LoadOptions, NextTensor, Progress, Save};
pub use read::{LoadArray, load, load_bytes, load_npz, load_npz_bytes, load_npz_with};
pub use write::{save, save_npz};
