//! Attention, and the rotation of positions.

pub(crate) mod scaled;
