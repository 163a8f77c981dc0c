//! Matrix products, and sums of products by labels.

mod matmul;

pub(crate) mod einsum;
