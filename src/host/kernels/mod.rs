//! CPU loops.
//!
//! `unsafe` is reopened for the files that walk raw addresses: a view may have any stride, so there
//! is no slice to index.

#[allow(unsafe_code)]
pub(crate) mod attention;
#[allow(unsafe_code)]
pub(crate) mod conv;
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
pub(crate) mod paged;
#[allow(unsafe_code)]
pub(crate) mod pool;
#[allow(unsafe_code)]
pub(crate) mod quantized;
pub(crate) mod random;
#[allow(unsafe_code)]
pub(crate) mod reduce;
#[allow(unsafe_code)]
pub(crate) mod rope;
pub(crate) mod simd;
#[allow(unsafe_code)]
pub(crate) mod softmax;
pub(crate) mod stream;

#[cfg(test)]
mod testing;
