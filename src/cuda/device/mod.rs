//! NVIDIA's side of a GPU: memory, kernels, libraries, graphs, and the steps that use them.
//!
//! The device's thread and its reapers (`cuda/worker`) decide when a step runs; this folder knows
//! how. `context` holds all that the device's thread works with, `step` queues one step, and the
//! rooms below do the parts: `memory` makes [`DeviceView`]s and a [`Site`], `launch` turns a fused
//! program or an op on such views into kernels on a stream, `modules` compiles and loads the
//! kernels, `libraries` calls cuBLAS, cuDNN and NCCL, and `graph` runs a region's calls. The CUDA C
//! of the kernels stands in `cuda/kernels`.
//!
//! `context` and `step` ask this of a `launch::launcher::Launcher`, one a device, made and used on
//! the device's thread:
//!
//! - `new(gpu, pool, background) -> Launcher` is cheap: libraries are probed when they are needed,
//!   and a missing library is no panic;
//! - `group(&mut self, site, program, shape, inputs, outputs, end)` launches a fused program over
//!   `shape`: inputs are broadcast by strides of 0, each of `program.outputs` has one output, and a
//!   reduction of a register may follow ([`End`](launch::group::End)). An output may be the memory
//!   of a contiguous input that nobody reads later;
//! - `node(&mut self, site, op, inputs, output, in_place)` launches any `Op` that is not
//!   elementwise; of `Op::View` only the reshape that copies. In place, the output is the memory of
//!   the input that `Operation::reuses` names;
//! - `copy(&mut self, site, from, to)` copies strided elements to contiguous memory, for reads;
//! - `clear(&mut self, idle)` unloads modules and ends cuBLAS handles; `idle` proves that nothing
//!   runs any more.
//!
//! Unsafe code stands with the calls of the driver (`libraries/nvidia`, `memory/pinned`,
//! `graph/executable`) and of the other libraries (`libraries`, `modules/compile`), and where
//! launches get their arguments (`launch/batch`, `graph/launch`). These files believe the views: an
//! address is a number, and the maker of a view answers for it, as on the host.
//!
//! Every call here is made on the device's own thread, with the context current. Nothing waits for
//! the device, nothing synchronises, and no destructor calls the driver.

pub(crate) mod background;
pub(crate) mod context;
pub(crate) mod driver_context;
pub(crate) mod graph;
pub(crate) mod index_check;
pub(crate) mod lanes;
pub(crate) mod launch;
pub(crate) mod libraries;
pub(crate) mod memory;
pub(crate) mod modules;
pub(crate) mod peers;
pub(crate) mod report;
pub(crate) mod step;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub(crate) mod timing;

use crate::error::{ErrorKind, bytes_of};
use crate::graph::operation::Refusal;
use cudarc::driver::sys;
use std::fmt;

/// The GPU that launches go to.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code)] // For traces, and for launches that fill the device.
pub(crate) struct Gpu {
    pub ordinal: i32,
    /// The primary context; current on the device's thread.
    pub context: libraries::nvidia::ContextHandle,
    /// Compute capability: (9, 0) is sm_90.
    pub capability: (u32, u32),
    pub multiprocessors: u32,
}

pub(crate) use crate::graph::device_run::{CudaView as DeviceView, CudaViewMut as DeviceViewMut};

/// A stream of the device, and its number from 0 (cuBLAS handles are kept by it).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub raw: libraries::nvidia::Raw,
    pub number: usize,
}

/// The step that launches belong to, as far as a launch needs to know.
pub(crate) trait Site {
    fn stream(&self) -> Stream;
    /// Device memory for this step alone, aligned to 256 bytes, not initialised; it is given back
    /// in stream order once the step's launches are queued.
    fn scratch(&self, bytes: usize) -> Result<u64, Trouble>;
    /// Address of the step's index error record (`INDEX_ERROR_BYTES`, zeroed in stream order).
    /// Asking for it makes the step read it back at its end: an index that was out of range fails
    /// the value.
    fn index_error(&self) -> Result<u64, Trouble>;
    /// Where launches are recorded instead of being made.
    fn launch_list(&self) -> Option<&graph::launch_list::LaunchList> {
        None
    }
}

/// The event that a deferred step waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// Something is made in the background: a kernel, a handle.
    Made,
    /// Something moves on the device: an operand is on its way, page-locked memory is lent.
    Moved,
}

/// Why a step could not be launched. Work that it queued before stays queued, and harms nobody.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// Memory could not be had: the step may be tried again once something was freed.
    OutOfMemory { bytes: usize },
    /// This op cannot be done, or not like this: it fails, and nothing else does.
    Refused(Refusal),
    /// Something that it needs is not there yet: the step is tried again.
    Later(Until),
    /// The driver answered with an error that ends the device: the call, and its status.
    Fault { call: &'static str, status: sys::CUresult },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::OutOfMemory { bytes } => write!(f, "out of memory: {}", bytes_of(*bytes)),
            Trouble::Refused(refusal) => refusal.fmt(f),
            Trouble::Later(Until::Made) => f.write_str("a kernel is being compiled"),
            Trouble::Later(Until::Moved) => f.write_str("an operand is on its way"),
            Trouble::Fault { call, status } => write!(f, "{call} says {}", describe(*status)),
        }
    }
}

impl Trouble {
    /// An op that has no kernel here.
    pub fn no_kernel(what: impl std::fmt::Display) -> Trouble {
        let message =
            format!("{what} has no CUDA kernel: copy its operands to the CPU with to_device");
        Trouble::Refused(Refusal { kind: ErrorKind::Kernel, message })
    }

    /// The same; where memory was asked for, with how much that was.
    pub fn of_size(self, bytes: usize) -> Trouble {
        if let Trouble::OutOfMemory { .. } = self { Trouble::OutOfMemory { bytes } } else { self }
    }

    /// The meaning of a call's result to the step that made it.
    pub fn of(call: &'static str, status: sys::CUresult) -> Result<(), Trouble> {
        use sys::CUresult::*;
        match status {
            CUDA_SUCCESS => Ok(()),
            CUDA_ERROR_OUT_OF_MEMORY => Err(Trouble::OutOfMemory { bytes: 0 }),
            // The call was wrong or too large for the device: the context is as it was.
            CUDA_ERROR_INVALID_VALUE
            | CUDA_ERROR_INVALID_IMAGE
            | CUDA_ERROR_INVALID_PTX
            | CUDA_ERROR_INVALID_SOURCE
            | CUDA_ERROR_JIT_COMPILER_NOT_FOUND
            | CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUDA_ERROR_NOT_FOUND
            | CUDA_ERROR_NOT_SUPPORTED
            | CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
            | CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => {
                let message = format!("{call}: {}", describe(status));
                Err(Trouble::Refused(Refusal { kind: ErrorKind::Kernel, message }))
            }
            _ => Err(Trouble::Fault { call, status }),
        }
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Trouble {
        Trouble::Refused(refusal)
    }
}

/// A driver's answer in words: its name and number.
pub(crate) fn describe(status: sys::CUresult) -> String {
    format!("{status:?} ({})", status as u32)
}
