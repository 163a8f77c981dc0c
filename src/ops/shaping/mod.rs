//! Ops that move elements and compute nothing.

pub(crate) mod cat;
pub(crate) mod roll;
pub(crate) mod slice_assign;
pub(crate) mod triangle;
