//! Matrix products, and sums of products by labels.

mod matmul;

mod vectors;

pub(crate) mod einsum;
