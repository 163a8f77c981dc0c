//! The host: a device whose values lie in this machine's memory.
//!
//! Here are its workers (which are the engine on this device), their thread pool, its steps and its
//! kernels. The simulated device is the host under a seed.

pub(crate) mod cpu;
pub(crate) mod kernels;
pub(crate) mod runner;
pub(crate) mod simulated;
pub(crate) mod simulation;
pub(crate) mod step;
pub(crate) mod thread_pool;
pub(crate) mod threads;
mod unoptimised;
mod wake_queue;
