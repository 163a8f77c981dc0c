//! At home in a service: dynamic batching as a tower `Service`, and results as they complete.
//!
//! [`Batcher`] gathers requests and hands them to a function that queues the work of a batch and
//! returns a value for each; [`Timer`] is what tells it that time has passed. [`completed`] is a
//! stream of results in the order of their completion. For servers; nothing below knows it. No
//! runtime is assumed: an answer is a plain future, and the default timer a thread of the process.
//!
//! Requests that come while a batch is under way share the next one, and whoever goes away is in
//! none:
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::serve::{BatchOptions, Batcher, rows};
//! use futensor::{Device, nn, nn::Module, no_grad};
//! let device = Device::cpu();
//! let net = nn::from_fn(|x| x * 2.0);  // or a model, with its weights loaded
//! let options = BatchOptions::default().batch_max(3);
//! let batcher = Batcher::new(options, move |requests: &[[f32; 2]]| {
//!     let x = device.from_slice(requests.as_flattened(), [requests.len(), 2]);
//!     rows(&no_grad(|| net.forward(&x)))  // queues the batch, and waits for nothing
//! });
//! let gone = batcher.submit([9.0, 9.0]);
//! drop(gone);                                                     // its client hung up
//! let answers = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]].map(|request| batcher.submit(request));
//! for (answer, want) in answers.into_iter().zip([[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]]) {
//!     assert_eq!(answer.await?.to_vec::<f32>().await?, want);
//! }
//! let stats = batcher.stats();
//! assert_eq!((stats.batches, stats.answered, stats.left_waiting), (1, 3, 1));
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```
//!
//! `examples/server` puts one behind HTTP, with deadlines, admission and an orderly end;
//! `examples/embed` batches sentences by their length.

mod again;
mod answer;
mod batcher;
mod completed;
mod options;
mod queue;
mod rows;
mod slot;
mod timer;
mod waiting;

pub use answer::Answer;
pub use batcher::Batcher;
pub use completed::{Completed, completed};
pub use options::{BatchOptions, BatchStats};
pub use rows::rows;
pub use timer::{ManualTimer, Timer};
