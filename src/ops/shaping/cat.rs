//! `cat`: joins tensors along a dimension.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::copy;

pub(crate) struct Cat {
    /// The dimension; negative numbers count from the end.
    pub dim: isize,
}

impl Operation for Cat {
    fn name(&self) -> &str {
        "cat"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let first = inputs[0];
        let out_of_range = || {
            Refusal::index(format!(
                "dimension {} is out of range for shape {}",
                self.dim, first.shape
            ))
        };
        let dim = first.shape.dim(self.dim).ok_or_else(out_of_range)?;
        let mut out = first.clone();
        for meta in &inputs[1..] {
            if meta.shape.rank() != first.shape.rank() {
                return Err(Refusal::shape(format!(
                    "numbers of dimensions differ: {} and {}",
                    first.shape, meta.shape
                )));
            }
            if (0..first.shape.rank()).any(|d| d != dim && meta.shape[d] != first.shape[d]) {
                return Err(Refusal::shape(format!(
                    "sizes differ outside dimension {dim}: {} and {}",
                    first.shape, meta.shape
                )));
            }
            if meta.dtype != first.dtype {
                let text = format!("types differ: {} and {}", first.dtype, meta.dtype);
                return Err(Refusal::dtype(text));
            }
            let size = &mut out.shape.dims_mut()[dim];
            *size = size.saturating_add(meta.shape[dim]);
        }
        Ok(out)
    }

    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        100 + output.shape.numel() as u64 / 2
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING.as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let rank = call.output_meta().shape.rank();
        let dim = if self.dim < 0 { self.dim + rank as isize } else { self.dim };
        let mut start = 0;
        for i in 0..call.operands() {
            let len = call.meta(i).shape[dim as usize];
            call.give(i, |call| call.upstream().narrow(dim, start, len));
            start += len;
        }
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let rank = run.output.shape.len();
        let dim = if self.dim < 0 { self.dim + rank as isize } else { self.dim } as usize;
        copy::join(run.inputs, dim, &run.output, run.parallel);
        Ok(())
    }
}
