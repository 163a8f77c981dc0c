//! The host: a device whose values lie in this machine's memory.
//!
//! Its memory, its crew of threads, how one step runs on it, and its kernels. The CPU device and the simulated one
//! share all of it. Knows nodes and kernels; when a step runs is the engine's part.

pub(crate) mod block;
pub(crate) mod crew;
pub(crate) mod kernels;
pub(crate) mod memory;
pub(crate) mod step;
