//! Normalisation and losses.

mod norm;

pub(crate) mod losses;
