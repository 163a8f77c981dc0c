//! Kernels of sliding windows: convolution and pooling.

pub(crate) mod adaptive;
pub(crate) mod around;
pub(crate) mod conv;
mod largest;
pub(crate) mod patches;
mod planes;
pub(crate) mod pool;
pub(crate) mod resample;
pub(crate) mod sample;
