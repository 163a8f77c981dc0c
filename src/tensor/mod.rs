//! What users hold: futures, tensors, devices, operators, reads.

pub(crate) mod barrier;
pub(crate) mod barriers;
pub(crate) mod benchmark;
pub(crate) mod block_on;
mod budget;
mod build;
#[cfg(feature = "serve")]
pub(crate) mod completed;
pub(crate) mod creation;
pub(crate) mod custom;
pub(crate) mod device;
pub(crate) mod dims;
mod display;
pub(crate) mod future;
pub(crate) mod generator;
mod methods;
mod more;
pub(crate) mod operand;
pub(crate) mod read;
pub(crate) mod record;
pub(crate) mod scope;
pub(crate) mod simulated;
#[allow(clippy::module_inception)]
pub(crate) mod tensor;
pub(crate) mod timeline;
pub(crate) mod views;
pub(crate) mod watch;
