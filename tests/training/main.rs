//! Training: PyTorch's values, and what becomes of a step that fails or is asked for nonsense.

mod attention;
mod failures;
mod lazy;
mod mixed_precision;
mod monitor;
mod recurrent;
mod refusals;
mod summary;
mod support;
mod values;
