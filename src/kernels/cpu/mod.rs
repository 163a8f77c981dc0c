//! CPU loops.

pub(crate) mod elementwise;
pub(crate) mod math;
pub(crate) mod random;
pub(crate) mod simd;
