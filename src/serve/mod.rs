//! At home in a service: dynamic batching as a tower `Service`.
//!
//! [`Batcher`] gathers requests and hands them to a function that queues the work of a batch and returns
//! a value for each; [`Timer`] is what tells it that time has passed. For servers; nothing below knows it.
//! No runtime is assumed: an answer is a plain future, and the default timer a thread of the process.

mod answer;
mod batcher;
mod timer;

pub use answer::Answer;
pub use batcher::{BatchOptions, BatchStats, Batcher, rows};
pub use timer::{ManualTimer, Timer};
