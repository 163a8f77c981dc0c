//! What batch norm needs of each channel, in one reading of a value. Only host devices are asked
//! for it; elsewhere it is made of the ops that are there.

use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::rows::{channel_stats, channel_sums};
use crate::ops::check::{float, row_cost};
use crate::ops::no_gradient;

/// Two numbers of each channel (dimension 1), over all other dimensions; float32 of halves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Channels {
    /// `x` to its means, then its biased variances.
    Stats,
    /// `(g, x, mean)` to the sums of `g`, then those of `g (x - mean)`.
    Sums,
}

impl Operation for Channels {
    fn name(&self) -> &str {
        match self {
            Channels::Stats => "batch_norm_train",
            Channels::Sums => "batch_norm",
        }
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let first = inputs[0];
        float(first)?;
        if first.shape.rank() < 2 || inputs.get(1).is_some_and(|x| *x != first) {
            return Err(Refusal::shape(format!("no channels of {}", first.shape)));
        }
        let dtype = if first.dtype.is_half() { DType::F32 } else { first.dtype };
        Ok(Meta { shape: [2, first.shape[1]].into_iter().collect(), dtype })
    }
    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        row_cost(inputs[0])
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (out, par) = (&run.output, run.parallel);
        match (self, run.inputs) {
            (Channels::Stats, &[x]) => channel_stats(x, out, par),
            (Channels::Sums, &[g, x, mean]) => channel_sums(g, x, mean, out, par),
            _ => unreachable!("a value, or what flows back, a value and its means"),
        }
        Ok(())
    }
}
