//! A CUDA driver, cuBLAS, cuDNN, NCCL and NVRTC without a GPU, for tests.
//!
//! This crate is two things. As a shared library it is the driver, which an unmodified client finds
//! under the libraries' own names. Linked as a Rust library, it is the client of that:
//! [`harness::enter`] starts a test program under the simulated driver, and [`Simulator`] controls
//! it.
//!
//! | what | where |
//! |---|---|
//! | the C boundary | `ffi` pointers and handles, `status` codes, `control` what tests call |
//! | the machine | `machine`: its state and lock, its thread, what an item of work does, faults |
//! | entry points | `driver`; `libraries`: cuBLAS, cuBLASLt, cuDNN, NCCL, NVRTC, NVTX |
//! | memory | `memory`: pages, and the table of allocations |
//! | kernels | `kernels`: read, compiled (with `shim/`), loaded, run |
//! | findings | `checks`: races, shared memory, pinned buffers, the report |
//! | for tests | `client`, `harness` |
//!
#![doc = include_str!("../README.md")]
// The names and argument lists of the entry points are NVIDIA's.
#![allow(non_snake_case)]

mod checks;
mod control;
mod driver;
mod ffi;
mod kernels;
mod libraries;
mod machine;
mod memory;
mod random;
mod status;

pub mod client;
pub mod harness;

pub use checks::report::Stats;
pub use client::Simulator;

pub use status::{
    DEVICE_UNAVAILABLE, ECC_UNCORRECTABLE, ILLEGAL_ADDRESS, LAUNCH_FAILED, LAUNCH_OUT_OF_RESOURCES,
    OUT_OF_MEMORY, Status, UNKNOWN,
};
