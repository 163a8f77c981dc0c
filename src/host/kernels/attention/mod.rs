//! Kernels of attention: scaled dot products, over pages of a cache, and the rotation of positions.

pub(crate) mod backward;
pub(crate) mod paged;
pub(crate) mod rope;
pub(crate) mod scaled;
