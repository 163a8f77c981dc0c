//! What can be asked beside the table: one op a file, each behind the one trait.

pub(crate) mod attention;
pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod classes;
pub(crate) mod conv;
pub(crate) mod cumprod;
pub(crate) mod cumsum;
pub(crate) mod custom;
pub(crate) mod embedding;
pub(crate) mod gather;
pub(crate) mod index_copy;
pub(crate) mod index_select;
pub(crate) mod logsumexp;
pub(crate) mod matmul;
pub(crate) mod nll;
pub(crate) mod nonzero;
pub(crate) mod norm;
pub(crate) mod one_hot;
pub(crate) mod others;
pub(crate) mod paged_attention;
pub(crate) mod pool;
pub(crate) mod quantized;
pub(crate) mod roll;
pub(crate) mod rope;
pub(crate) mod scatter;
pub(crate) mod scatter_add;
pub(crate) mod slice_assign;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod top_p;
pub(crate) mod topk;
pub(crate) mod triangle;
pub(crate) mod turned;

#[cfg(all(test, not(futensor_loom)))]
mod cost_tests;
