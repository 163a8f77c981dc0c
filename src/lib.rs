//! Async/await tensors.

mod completion;
mod counted;
mod dtype;
mod error;
mod op;
mod shape;
mod sync;
mod view;

mod backend;
mod engine;
mod graph;
mod kernels;

pub use dtype::{DType, Element, Scalar};
pub use error::{Error, Result};
pub use graph::operation::{CpuRun, Meta, Operation, Refusal};
pub use shape::Shape;
pub use view::{Parallel, View, ViewMut};
