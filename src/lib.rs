//! Async/await tensors.

mod dtype;
mod error;
mod op;
mod shape;
mod sync;

mod graph;
mod kernels;
mod tensor;

pub use dtype::{DType, Element, Scalar};
pub use error::{Error, Result};
pub use shape::Shape;
