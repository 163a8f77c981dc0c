//! `rope`: pairs of numbers turned by angles, as rotary positions do.

use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::attention::rope::rope;
use crate::ops::check::float;
use crate::{Backward, TensorFuture};

/// Of `(x, cosine, sine)`, where the last dimension of `x` is twice that of the others, which have
/// the type that it is computed in.
#[derive(Clone, Copy)]
pub(crate) struct Rope {
    /// Pairs are neighbours; else they are of the first half and the second.
    pub interleaved: bool,
}

impl Rope {
    /// The first numbers of all pairs, and the second ones.
    fn pairs(self, x: &TensorFuture) -> [TensorFuture; 2] {
        let half = x.dims()[x.rank() - 1] / 2;
        let mut shape = x.dims().to_vec();
        shape.pop();
        let (pairs, along) = if self.interleaved { ([half, 2], -1) } else { ([2, half], -2) };
        shape.extend(pairs);
        let pairs = x.reshape(shape);
        [0, 1].map(|k| pairs.narrow(along, k, 1).squeeze(along))
    }
}

impl Operation for Rope {
    fn name(&self) -> &str {
        "rope"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let x = inputs[0];
        float(x)?;
        let fits = |table: &Meta| match (x.shape.split_last(), table.shape.split_last()) {
            (Some((width, rows)), Some((half, of))) => {
                rows == of && half.checked_mul(2) == Some(*width)
            }
            _ => false,
        };
        if !inputs[1..].iter().all(|table| fits(table)) {
            return Err(Refusal::shape(format!(
                "{} by {} and {}",
                x.shape, inputs[1].shape, inputs[2].shape
            )));
        }
        Ok(x.clone())
    }

    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        100u64.saturating_add(output.shape.numel() as u64 / 2)
    }

    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        let back = Needs::inputs(&[1, 2]).as_they_are();
        if wanted[1] || wanted[2] { back.and(Needs::inputs(&[0])) } else { back }
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        // Turned back.
        call.give(0, |call| crate::own(*self, &[call.upstream(), call.input(1), &-call.input(2)]));
        let of_table = |call: &Backward<'_>, sine: bool| {
            let wide = |x: &TensorFuture| self.pairs(&x.to_dtype(call.meta(1).dtype));
            let ([a, b], [up_a, up_b]) = (wide(call.input(0)), wide(call.upstream()));
            if sine { a * up_b - b * up_a } else { a * up_a + b * up_b }
        };
        call.give(1, |call| of_table(call, false));
        call.give(2, |call| of_table(call, true));
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        rope([0, 1, 2].map(|i| run.inputs[i]), self.interleaved, &run.output, run.parallel);
        Ok(())
    }
}
