//! GPUs: device options, and CUDA kernels of custom ops.
//!
//! [`Device::cuda`](crate::Device::cuda) and [`Device::try_gpu`](crate::Device::try_gpu) open a GPU
//! with default options. A custom [`Operation`](crate::custom::Operation) supplies [CUDA
//! C](CudaKernel), which a [`CudaRun`] launches; both types exist without the feature `cuda` too,
//! so that an op compiles everywhere.

// All code that knows GPUs: `gpu` opens one; `worker` drives the engine's machine on a dedicated
// thread; `device` makes the driver's calls; `ops` maps ops to kernels; `kernels` is their CUDA C.
// Nothing outside this folder calls CUDA.

#[cfg(feature = "cuda")]
pub(crate) mod convolution;
#[cfg(feature = "cuda")]
pub(crate) mod device;
mod devices;
#[cfg(all(feature = "cuda", feature = "ranks", unix))]
mod exchange;
#[cfg_attr(not(feature = "cuda"), path = "no_gpu.rs")]
pub(crate) mod gpu;
// Also checked by the package `tests/nvrtc`.
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
#[cfg(feature = "cuda")]
pub use kernels::halves::HalfProducts;
