//! The arithmetic. Kernels take views of host memory and a way to run in parallel; they know no
//! nodes, no engine and no devices, and never allocate results.

pub(crate) mod cpu;
// Checked by the package `tests/nvrtc` too.
#[allow(dead_code)] // Some of it only `tests/nvrtc` uses, and without the feature nobody does.
pub(crate) mod cuda;
pub(crate) mod philox;

#[allow(unused_imports)] // `Serial` is for tests.
pub(crate) use crate::view::{Parallel, Serial, View, ViewMut};
