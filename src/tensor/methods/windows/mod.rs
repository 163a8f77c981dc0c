//! Sliding windows: convolution, pooling, interpolation.

pub(crate) mod conv;

pub(crate) mod pool;

pub(crate) mod interpolate;
