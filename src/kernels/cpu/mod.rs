//! CPU loops.

#[allow(unsafe_code)] // Elements are moved through raw addresses: views have any stride.
pub(crate) mod copy;
pub(crate) mod index;
mod isa;
pub(crate) mod matmul;
mod nest;
pub(crate) mod reduce;
pub(crate) mod softmax;

#[cfg(test)]
mod testing;
