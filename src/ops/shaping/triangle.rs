//! `tril` and `triu`: one side of a diagonal of the last two dimensions; zero elsewhere.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;

pub(crate) struct Triangle {
    pub diagonal: i64,
    pub upper: bool,
}

impl Operation for Triangle {
    fn name(&self) -> &str {
        if self.upper { "triu" } else { "tril" }
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let shape = &inputs[0].shape;
        if shape.rank() < 2 {
            return Err(Refusal::shape(format!("shape {shape} has fewer than two dimensions")));
        }
        Ok(inputs[0].clone())
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        200u64.saturating_add(output.shape.numel() as u64)
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING.as_they_are()
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| match self.upper {
            true => call.upstream().triu(self.diagonal),
            false => call.upstream().tril(self.diagonal),
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, out, par) = (run.inputs[0], &run.output, run.parallel);
        match self.upper {
            true => index::triu(x, self.diagonal, out, par),
            false => index::tril(x, self.diagonal, out, par),
        }
        Ok(())
    }
}
