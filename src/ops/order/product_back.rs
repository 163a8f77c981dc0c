//! What flows back through a product, as one op. Only host devices are asked for it, and only where
//! nobody asks for the gradient's own gradient; elsewhere the rule is made of running products.

use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::reduce;
use crate::ops::no_gradient;

/// Of `g [outer, 1, inner]` and `x [outer, n, inner]`, for each element `g` times the product of
/// all others of its line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductBack;

impl Operation for ProductBack {
    fn name(&self) -> &str {
        "prod"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (g, x) = (inputs[0], inputs[1]);
        let fits = match (&g.shape[..], &x.shape[..]) {
            (&[a, 1, c], &[outer, _, inner]) => (a, c) == (outer, inner),
            _ => false,
        };
        if !fits || g.dtype != x.dtype || !matches!(x.dtype, DType::F32 | DType::F64) {
            return Err(Refusal::shape(format!("{} for {}", g.shape, x.shape)));
        }
        Ok(x.clone())
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        200u64.saturating_add(output.shape.numel() as u64)
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        reduce::product_back(run.inputs[0], run.inputs[1], &run.output, run.parallel);
        Ok(())
    }
}
