//! When and where ops run: the port and the intake, the scheduler and its machine, small ops,
//! limits, sources and recordings; and the running of a step on any device.

pub(crate) mod events;
#[cfg(all(feature = "ranks", unix))]
pub(crate) mod exchange;
pub(crate) mod fused;
pub(crate) mod intake;
pub(crate) mod limits;
pub(crate) mod machine;
pub(crate) mod port;
pub(crate) mod pressure;
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod scheduler;
pub(crate) mod small;
pub(crate) mod sources;
pub(crate) mod step;
pub(crate) mod trims;

#[cfg(all(test, not(futensor_loom)))]
mod tests;
