//! The libraries beside the driver: cuBLAS, cuBLASLt, cuDNN, NCCL, NVRTC and a profiler for NVTX,
//! with the plain loops (`gemm`, `convolve`) that the first three share.

pub mod blas;
pub mod blaslt;
pub mod convolve;
pub mod dnn;
pub mod gemm;
pub mod nccl;
pub mod nvrtc;
pub mod nvtx;
