//! `topk`: the largest or smallest along a dimension in order, or their positions.

use super::check::{checked, dim_of};
use super::sort::{give_back, sorting_ns};
use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;

#[derive(Clone, Copy)]
pub(crate) struct TopK {
    pub dim: isize,
    pub k: usize,
    pub largest: bool,
    /// The positions instead of the values.
    pub positions: bool,
}

impl Operation for TopK {
    fn name(&self) -> &str {
        "topk"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let Meta { shape, dtype } = inputs[0];
        let d = dim_of(shape, self.dim)?;
        if self.k > shape[d] {
            return Err(Refusal::argument(format!("{} of a dimension of {}", self.k, shape[d])));
        }
        let mut shape = shape.clone();
        shape.dims_mut()[d] = self.k;
        Ok(Meta { shape, dtype: if self.positions { DType::I64 } else { *dtype } })
    }
    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        sorting_ns(inputs[0])
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[0])
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        give_back(call, self.dim, TopK { positions: true, ..*self });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, out) = (run.inputs[0], &run.output);
        let (values, places) = if self.positions { (None, Some(out)) } else { (Some(out), None) };
        index::topk(x, checked(self.dim, x.shape.len()), self.k, self.largest, values, places, run.parallel);
        Ok(())
    }
}
