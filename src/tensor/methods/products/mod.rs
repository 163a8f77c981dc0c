//! Products of matrices, and sums of products by name.

mod matmul;

pub(crate) mod einsum;
