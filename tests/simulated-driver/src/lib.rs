//! A CUDA driver, cuBLAS, cuDNN, NCCL and NVRTC without a GPU, for tests.
//!
//! Built as a shared library, this stands in for `libcuda.so.1`, `libcublas.so.13`,
//! `libcublasLt.so.13`, `libcudnn.so.9`, `libnccl.so.2` and `libnvrtc.so.13`, so that an unmodified
//! client runs its whole CUDA path on a machine without a GPU. Kernels are the same CUDA C,
//! compiled by g++ behind a shim; device memory is host memory between guard pages; one stream
//! moves at a time, picked by a seed, so that a failing seed replays; faults come on demand; and a
//! vector-clock check reports work that nothing orders, whatever the result was.
//!
//! Linked as a Rust library, it is the client of that: `harness::enter` starts a test program under
//! the simulated driver, `Simulator` controls it.
//!
//! | what | where |
//! |---|---|
//! | the C boundary | `ffi` pointers and handles, `status` codes |
//! | the machine | `sim` state and lock, `scheduler` its thread, `work` what an item does, `random` |
//! | entry points | `devices`, `contexts`, `streams`, `events`, `allocate`, `pools`, `copies`, `module`, `launch`, `graph`, `blas`, `blaslt`, `dnn`, `nccl`, `nvrtc`, `nvtx` |
//! | memory | `arena` pages, `memory` the table |
//! | kernels | `scan` and `compile` (with `shim/`), `image`, `fibers`, `trap`, `limit`; `gemm`, `convolve` |
//! | checks and faults | `race`, `shared`, `pinned`, `faults`, `report`, `control` |
//! | for tests | `client`, `harness` |
//!
//! What it is not: no GPU memory model, no lockstep of warps, no tensor cores, no timing, no
//! texture or surface, no managed memory, one address space for host and device (a host that reads
//! device memory is not caught).
//!
//! Environment: `FUTENSOR_SIM_SEED`, `FUTENSOR_SIM_DEVICES` (1), `FUTENSOR_SIM_MEMORY` (bytes a
//! device, 8 GiB), `FUTENSOR_SIM_DRIVER` and `FUTENSOR_SIM_NVRTC` (versions of CUDA: 13.0, and 0.1,
//! which no NVRTC of NVIDIA's has), `FUTENSOR_SIM_CUDNN` (its version, 91500), `FUTENSOR_SIM_NCCL`
//! (what goes wrong there), `FUTENSOR_SIM_KERNEL_LIMIT` (milliseconds a launch),
//! `FUTENSOR_SIM_CACHE` (compiled kernels), `FUTENSOR_SIM_SHARED` (1: races in shared memory are
//! looked for), `FUTENSOR_SIM_REUSE` (1: pools give out again what was freed), `FUTENSOR_SIM_CXX`
//! (g++), `FUTENSOR_SIM_VERBOSE` (reports to stderr).

// The names and argument lists of the entry points are NVIDIA's.
#![allow(non_snake_case)]

mod allocate;
mod arena;
mod blas;
mod blaslt;
mod compile;
mod contexts;
mod control;
mod convolve;
mod copies;
mod devices;
mod dnn;
mod events;
mod faults;
mod ffi;
mod fibers;
mod gemm;
mod graph;
mod image;
mod launch;
mod limit;
mod memory;
mod module;
mod nccl;
mod nvrtc;
mod nvtx;
mod pinned;
mod pools;
mod race;
mod random;
mod report;
mod scan;
mod scheduler;
mod shared;
mod sim;
mod status;
mod streams;
mod trap;
mod work;

pub mod client;
pub mod harness;

pub use client::Simulator;
pub use report::Stats;

pub use status::{
    DEVICE_UNAVAILABLE, ECC_UNCORRECTABLE, ILLEGAL_ADDRESS, LAUNCH_FAILED, LAUNCH_OUT_OF_RESOURCES,
    OUT_OF_MEMORY, Status, UNKNOWN,
};
