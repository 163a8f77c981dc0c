//! Functions of whole rows: softmax, its logarithm and its loss, and normalisation.

pub(crate) mod logsumexp;
pub(crate) mod nll;
pub(crate) mod norm;
pub(crate) mod softmax;
