//! `top_p`: of each row of weights the largest that together have a share of the whole.

use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index::{self, ROW_MAX};
use crate::ops::check::float;

/// Of `(weights, shares)`, where a row of weights has one share, in float64.
#[derive(Clone, Copy)]
pub(crate) struct TopP;

/// Weights are floats, in rows that are not too long.
pub(crate) fn weights(x: &Meta) -> Result<(), Refusal> {
    float(x)?;
    match x.shape.last() {
        Some(&n) if n <= ROW_MAX => Ok(()),
        Some(n) => Err(Refusal::shape(format!("rows of {n} weights are longer than {ROW_MAX}"))),
        None => Err(Refusal::shape("weights are in rows, not a single number")),
    }
}

impl Operation for TopP {
    fn name(&self) -> &str {
        "top_p"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (x, share) = (inputs[0], inputs[1]);
        weights(x)?;
        let lead = x.shape.rank() - 1;
        if share.shape.rank() != lead + 1
            || share.shape[..lead] != x.shape[..lead]
            || share.shape[lead] != 1
        {
            return Err(Refusal::shape(format!(
                "shares of shape {} for weights {}",
                share.shape, x.shape
            )));
        }
        match share.dtype {
            DType::F64 => Ok(x.clone()),
            other => Err(Refusal::dtype(format!("shares are float64, not {other}"))),
        }
    }

    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        (output.shape.numel() as u64).saturating_mul(10).saturating_add(200)
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::OUTPUT
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| call.output().ne(0).where_cond(call.upstream(), 0));
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        index::top_p(run.inputs[0], run.inputs[1], &run.output, run.parallel);
        Ok(())
    }
}
