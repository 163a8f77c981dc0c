//! Where the largest or smallest element so far is, as one op. Only host devices are asked for it;
//! elsewhere `cummax` and `cummin` make it of scans.

use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::check::{checked, dim_of};
use crate::ops::no_gradient;

/// Of a value to the places along a dimension: the last one of equals, and of NaN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningPlaces {
    pub largest: bool,
    pub dim: isize,
}

impl Operation for RunningPlaces {
    fn name(&self) -> &str {
        if self.largest { "cummax" } else { "cummin" }
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        dim_of(&inputs[0].shape, self.dim)?;
        Ok(Meta { shape: inputs[0].shape.clone(), dtype: DType::I64 })
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        200u64.saturating_add(output.shape.numel() as u64)
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, largest) = (run.inputs[0], self.largest);
        let dim = checked(self.dim, x.shape.len());
        index::scan_places(largest, x, dim, &run.output, run.parallel);
        Ok(())
    }
}
