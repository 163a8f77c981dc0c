//! Calls of a region: step by step, or as one CUDA graph.
//!
//! `region_call` queues the steps one by one. `record` runs the same steps into a `launch_list`
//! instead, and makes a `region_graph` of the list. `replay` keeps the graphs of a plan and picks
//! one for a call, `launch` launches it, and `executable` holds the driver's calls on graphs.

pub(super) mod executable;
pub(super) mod launch;
pub(super) mod launch_list;
pub(super) mod record;
pub(crate) mod region_call;
pub(super) mod region_graph;
pub(crate) mod replay;
