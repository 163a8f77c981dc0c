//! CPU loops.
//!
//! `unsafe` is reopened for the files that walk raw addresses: a view may have any stride, so there
//! is no slice to index.

#[allow(unsafe_code)]
pub(crate) mod attention;
#[allow(unsafe_code)]
pub(crate) mod copy;
pub(crate) mod elementwise;
#[allow(unsafe_code)]
pub(crate) mod index;
mod isa;
mod load;
pub(crate) mod math;
#[allow(unsafe_code)]
pub(crate) mod matmul;
mod nest;
#[allow(unsafe_code)]
pub(crate) mod quantized;
pub(crate) mod random;
#[allow(unsafe_code)]
pub(crate) mod reduce;
#[allow(unsafe_code)]
pub(crate) mod rows;
mod run;
pub(crate) mod simd;
pub(crate) mod stream;
#[allow(unsafe_code)]
pub(crate) mod windows;

#[cfg(test)]
mod testing;
