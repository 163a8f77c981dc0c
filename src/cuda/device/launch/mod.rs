//! From a fused program or an op to kernels and library calls on a stream.
//!
//! `launcher` is the way in. `group` plans fused programs, `op` any other op, `product` and
//! `convolution` choose between a library and kernels of this crate. `batch` keeps a step's
//! launches until all that the step needs is there; `args` lays out the arguments of a launch.

pub(super) mod args;
pub(super) mod batch;
pub(super) mod convolution;
pub(super) mod group;
pub(crate) mod launcher;
pub(crate) mod op;
pub(super) mod product;
