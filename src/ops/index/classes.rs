//! Each row's element at its class number: `gather`, for the losses.

use super::gather::Gather;
use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};

/// `(logs, target)` with as many dimensions each, along `dim`.
pub(crate) struct Classes {
    pub dim: isize,
    /// What the user called.
    pub name: &'static str,
}

impl Classes {
    fn gather(&self) -> Gather {
        Gather { dim: self.dim, name: self.name, from_end: false }
    }
}

impl Operation for Classes {
    fn name(&self) -> &str {
        self.name
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        self.gather().infer(inputs)
    }
    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        self.gather().estimate_ns(inputs, output)
    }
    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        self.gather().gradient_needs(wanted)
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        self.gather().gradient(call)
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        self.gather().run_cpu(run)
    }
}
