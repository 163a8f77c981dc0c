//! Products of matrices.

pub(crate) mod matmul;
pub(crate) mod quantized;
pub(crate) mod turned;
