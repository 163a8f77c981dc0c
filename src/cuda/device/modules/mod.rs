//! Compiled kernels: from the CUDA C of `cuda/kernels` to functions that a launch can name.
//!
//! `compile` calls NVRTC, `cache` keeps binaries on disk, `store` loads modules and finds functions
//! in them. `bounded_map` bounds their number.

pub(super) mod bounded_map;
pub(crate) mod cache;
pub(super) mod compile;
pub(crate) mod store;
