//! What is meant: nodes, inference, fusion, plans. Pure: no threads, no devices.

pub(crate) mod program;
