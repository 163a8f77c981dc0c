//! The tables of calls that a kernel library makes; the shim has the same.

use std::ffi::c_char;

/// The calls that a kernel library makes; `futsim_api` in the shim.
#[allow(missing_docs)]
#[repr(C)]
pub struct Api {
    pub barrier: extern "C" fn(u32, u32, u32) -> u32,
    pub warp: extern "C" fn(u32, u32, u64, *mut [u64; 32]) -> u32,
    pub trap: extern "C" fn(u32, u32, *const c_char),
}

/// `futsim_hooks` of the shim.
#[allow(missing_docs)]
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Hooks {
    pub shared: extern "C" fn(u64, usize, usize),
    pub touch: extern "C" fn(u64, u32, usize, usize, u32),
}
