//! The meaning of ops: nodes, inference, fusion. Pure: no threads, no devices.

pub(crate) mod asker;
pub(crate) mod call;
pub(crate) mod claim;
pub(crate) mod cost;
pub(crate) mod device_run;
pub(crate) mod fuse;
pub(crate) mod infer;
pub(crate) mod node;
pub(crate) mod operation;
pub(crate) mod plan;
pub(crate) mod program;
pub(crate) mod refusal;
pub(crate) mod tape;
pub(crate) mod value;
pub(crate) mod work;
