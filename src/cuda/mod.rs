//! CUDA: everything that knows of GPUs.
//!
//! `gpu` is what a user asks for; `worker` drives the machine on a thread of its own; `device` knows the driver's
//! calls; `ops` says which kernels an op is; `kernels` is their CUDA C. Nothing outside of this folder calls CUDA.

#[cfg(feature = "cuda")]
pub(crate) mod device;
mod devices;
#[cfg_attr(not(feature = "cuda"), path = "no_gpu.rs")]
pub(crate) mod gpu;
// Checked by the package `tests/nvrtc` too.
#[cfg(feature = "cuda")]
#[allow(dead_code)] // Some of it only `tests/nvrtc` uses.
pub(crate) mod kernels;
#[cfg(feature = "cuda")]
pub(crate) mod ops;
#[cfg(feature = "cuda")]
pub(crate) mod worker;
