//! For inference services: dynamic batching as a tower `Service`, and results as they complete.
//!
//! A [`Batcher`] gathers requests and passes them to a function that queues the work of a batch and
//! returns a value for each request; a [`Timer`] is its clock. [`completed`] is a stream of results
//! in the order of their completion. No runtime is assumed: an answer is a plain future, and the
//! default timer is a thread of the process. No other module imports this one.
//!
//! Requests that arrive while a batch runs share the next one, and a request that is dropped is in
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
//!     rows(&no_grad(|| net.forward(&x)))  // queues the batch, without waiting
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
//! `examples/server` serves a batcher over HTTP, with deadlines, admission and an orderly shutdown;
//! `examples/embed` batches sentences by length.

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
