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
mod ops;
mod tensor;

pub use dtype::{DType, Element, Scalar};
pub use engine::record::{Ran, RecordedOp, RecordedStep};
pub use error::{Error, Result};
pub use graph::operation::{CpuRun, Meta, Operation, Refusal};
pub use shape::Shape;
pub use tensor::barrier::{Admit, Permit, Ready, Shutdown, WaitAll, WaitEverything, waitall};
pub use tensor::benchmark::{Benchmark, Measured};
pub use tensor::custom::{custom, custom_fn};
pub use tensor::device::{CpuOptions, Device, Stats};
pub use tensor::dims::{Dims, Index, Indices};
pub use tensor::future::{TensorFuture, Wait};
pub use tensor::generator::Generator;
pub use tensor::operand::Operand;
#[cfg(feature = "ndarray")]
pub use tensor::read::ToNdarray;
pub use tensor::read::{Item, NonZero, Shown, ToVec};
pub use tensor::record::Recording;
pub use tensor::simulated::{SimOptions, Simulation};
pub use tensor::tensor::Tensor;
pub use tensor::views::{cat, stack};
pub use view::{Parallel, View, ViewMut};
