//! NVIDIA's libraries: how they are found, and this crate's calls to each.
//!
//! `search` finds a library's file; `driver`, `nvidia`, `blas`, `dnn`, `nccl` and `nvtx` hold the
//! calls. `handles`, `gemm`, `convolutions` and `library_call` prepare the calls of cuBLAS and
//! cuDNN for a step. NVRTC, the compiler, is in `modules/compile`.

pub(super) mod blas;
pub(super) mod convolutions;
pub(super) mod dnn;
pub(super) mod driver;
pub(super) mod gemm;
pub(super) mod handles;
pub(super) mod library_call;
#[cfg(all(feature = "ranks", unix))]
pub(crate) mod nccl;
pub(crate) mod nvidia;
pub(crate) mod nvtx;
pub(super) mod search;
