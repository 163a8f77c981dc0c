//! How a device does it: memory, threads, and running one step. Knows nodes and kernels; does not
//! know when or where a step runs, which is the engine's part.

pub(crate) mod block;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod host;
