//! Sliding windows: convolution, pooling, interpolation.

pub(crate) mod conv;

pub(crate) mod pool;

mod adaptive;

pub(crate) mod interpolate;

pub(crate) mod patches;
