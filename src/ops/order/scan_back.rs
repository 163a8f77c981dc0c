//! What flows back through running products, as one op. Only host devices are asked for it, and
//! only where nobody asks for the gradient's own gradient; elsewhere the rule is made of scans.

use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::no_gradient;

/// Of `g`, `x` and its running products along a dimension, which have one shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningProductBack {
    pub dim: usize,
}

impl Operation for RunningProductBack {
    fn name(&self) -> &str {
        "cumprod"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (g, x, y) = (inputs[0], inputs[1], inputs[2]);
        if g != x || y != x || !matches!(x.dtype, DType::F32 | DType::F64) {
            return Err(Refusal::shape(format!("{} and {} for {}", g.shape, y.shape, x.shape)));
        }
        Ok(x.clone())
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        200u64.saturating_add(output.shape.numel() as u64)
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let [g, x, y] = [0, 1, 2].map(|i| run.inputs[i]);
        index::scan_back(g, x, y, self.dim, &run.output, run.parallel);
        Ok(())
    }
}
