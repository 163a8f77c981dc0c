//! The driver's entry points, as `libcuda` has them.

pub mod allocate;
pub mod contexts;
pub mod copies;
pub mod devices;
pub mod errors;
pub mod events;
pub mod graph;
pub mod launch;
pub mod module;
pub mod pools;
pub mod streams;
