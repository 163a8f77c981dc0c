//! The parts that several threads touch at once, each a data structure of its own: counted boxes
//! and their memory, completions and their waiters, counters.
//!
//! Ground for the graph and the engine. Knows nothing of nodes, values or devices. The lock-free
//! parts have loom models beside them (`loom_tests`).

pub(crate) mod completion;
pub(crate) mod counted;
mod free_lists;
pub(crate) mod live_counts;
pub(crate) mod sharded_counters;
mod waiters;

pub(crate) use free_lists::trim;
