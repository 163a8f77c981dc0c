//! What flows back through a norm, as one op each to the value and to the parameters. Only host
//! devices are asked for them, and only where nobody asks for the gradient's own gradient;
//! elsewhere `norm`'s rule is made of the ops that are there.

use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::rows::{Normed, norm_all, norm_back, norm_sums};
use crate::ops::check::row_cost;
use crate::ops::no_gradient;

/// What flows back, as an op gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FlowsTo {
    /// `(g, x)`, and the weight where there is one, to what flows to `x`.
    Value,
    /// `(g, x)` to the sums over rows of `g` times the normalised rows, and of `g`.
    Parameters,
    /// `(g, x)`, and the weight, to both, as one row of elements.
    All,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NormBack {
    pub trailing: usize,
    pub eps: f64,
    pub centred: bool,
    pub flows: FlowsTo,
}

impl Operation for NormBack {
    fn name(&self) -> &str {
        if self.centred { "layer_norm" } else { "rms_norm" }
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (g, x) = (inputs[0], inputs[1]);
        if g.shape != x.shape || g.dtype != x.dtype || !x.dtype.is_float() {
            return Err(Refusal::shape(format!("{} for {}", g.shape, x.shape)));
        }
        let mut meta = x.clone();
        let row = &x.shape[x.shape.rank() - self.trailing..];
        match self.flows {
            FlowsTo::Value => {}
            FlowsTo::Parameters => {
                meta.shape = [2].into_iter().chain(row.iter().copied()).collect();
            }
            FlowsTo::All => {
                let sums = row.iter().product::<usize>().saturating_mul(2);
                meta.shape = [x.shape.numel().saturating_add(sums)].into_iter().collect();
            }
        }
        Ok(meta)
    }
    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        row_cost(inputs[1])
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let NormBack { trailing, eps, centred, flows } = *self;
        let (g, x, of) = (run.inputs[0], run.inputs[1], Normed { trailing, eps, centred });
        let (weight, out, par) = (run.inputs.get(2).copied(), &run.output, run.parallel);
        match flows {
            FlowsTo::Value => norm_back(g, x, weight, of, out, par),
            FlowsTo::Parameters => norm_sums(g, x, of, out, par),
            FlowsTo::All => norm_all(g, x, weight, of, out, par),
        }
        Ok(())
    }
}
