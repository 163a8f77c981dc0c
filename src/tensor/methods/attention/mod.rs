//! Attention, and rotary positions.

pub(crate) mod scaled;
