//! `topk`: the positions of the largest or smallest along a dimension, in order. Their values are
//! gathered from there, so that either can be had without the other.

use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::index;
use crate::ops::check::{checked, dim_of};
use crate::ops::no_gradient;

#[derive(Clone, Copy)]
pub(crate) struct TopK {
    pub dim: isize,
    pub k: usize,
    pub largest: bool,
}

impl Operation for TopK {
    fn name(&self) -> &str {
        "topk"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let mut shape = inputs[0].shape.clone();
        let d = dim_of(&shape, self.dim)?;
        if self.k > shape[d] {
            return Err(Refusal::argument(format!("{} of a dimension of {}", self.k, shape[d])));
        }
        shape.dims_mut()[d] = self.k;
        Ok(Meta { shape, dtype: DType::I64 })
    }
    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        // Each is looked at, and what is better than the worst so far put in order.
        let [n, kept] = [inputs[0], output].map(|m| m.shape.numel() as u64);
        let sorted = kept.saturating_mul(8 * (1 + (self.k as u64).max(1).ilog2() as u64));
        n.saturating_add(sorted).saturating_add(200)
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x = run.inputs[0];
        index::topk(
            x,
            checked(self.dim, x.shape.len()),
            self.k,
            self.largest,
            &run.output,
            run.parallel,
        );
        Ok(())
    }
}
