//! CPU loops.

pub(crate) mod math;
pub(crate) mod simd;
