//! Sliding windows: convolution and pooling.

pub(crate) mod conv;
pub(crate) mod pool;
