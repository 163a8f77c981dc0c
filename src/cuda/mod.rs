//! GPUs: the options of a device, and the launch of the kernels of your own ops.
//!
//! [`Device::cuda`](crate::Device::cuda) and [`Device::try_gpu`](crate::Device::try_gpu) give a GPU
//! as it is. An [`Operation`](crate::custom::Operation) brings [CUDA C](CudaKernel), which a
//! [`CudaRun`] launches; both are there in a build without the feature `cuda` too, so that an op
//! compiles anywhere.

// Everything that knows of GPUs: `gpu` opens one; `worker` drives the machine on a thread of its
// own; `device` knows the driver's calls; `ops` says which kernels an op is; `kernels` is their
// CUDA C. Nothing outside of this folder calls CUDA.

#[cfg(feature = "cuda")]
pub(crate) mod convolution;
#[cfg(feature = "cuda")]
pub(crate) mod device;
mod devices;
#[cfg(all(feature = "cuda", feature = "ranks", unix))]
mod exchange;
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

pub use crate::graph::device_run::{CudaArg, CudaGrid, CudaKernel, CudaRun, CudaView, CudaViewMut};
#[cfg(feature = "cuda")]
pub use gpu::CudaOptions;
