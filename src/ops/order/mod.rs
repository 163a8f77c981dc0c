//! Order along a dimension: sorting, and running sums and products.

pub(crate) mod cumprod;
pub(crate) mod cumsum;
pub(crate) mod others;
pub(crate) mod sort;
pub(crate) mod topk;
