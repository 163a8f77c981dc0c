//! Normalisation and losses.

mod norm;

pub(crate) mod losses;

mod distances;

mod ctc;
