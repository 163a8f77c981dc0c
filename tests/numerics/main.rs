//! Ops that other crates compute, by features: PyTorch's values and gradients, on the host and by
//! way of it, and what is refused.

mod fourier;
mod linalg;
mod support;
