//! Checks while a program runs: work that nothing orders (`race`), races in shared
//! memory, host buffers that are touched too early (`pinned`); and the book of findings and
//! counters.

pub mod pinned;
pub mod race;
pub mod report;
pub mod shared;
