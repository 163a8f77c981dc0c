//! Batches of data for training and inference, prefetched.
//!
//! A [`Loader`] splits a data set into batches, shuffled by a seed. [`Epoch`], one pass over the
//! data, is a `Stream` whose next batches are made by separate threads, and copied to the device,
//! while the device works on the current one. [`Examples`] holds a data set in host memory.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::{Device, data::{Examples, Loader}};
//! let device = Device::cpu();
//! let images = Examples::new(vec![0.5f32; 10 * 4], [2, 2])?;
//! let labels = Examples::new(vec![1i64; 10], ())?;
//! let loader = Loader::new(10, move |at, device|
//!     Ok((images.pick(at, device), labels.pick(at, device))))
//!     .batch_size(4)
//!     .shuffle(7);
//! for epoch in 0..2 {
//!     let mut batches = loader.epoch(epoch, &device);
//!     let mut seen = 0;
//!     while let Some(batch) = batches.next().await {
//!         let (x, y) = batch?;
//!         assert_eq!(x.dims()[1..], [2, 2]);
//!         seen += y.numel();
//!     }
//!     assert_eq!(seen, 10);
//! }
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```

mod examples;
mod loader;
mod order;

pub use examples::Examples;
pub use loader::{Epoch, Loader, NextBatch};
