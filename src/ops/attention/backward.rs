//! The gradients of attention as one op of hosts, which never has the matrix of scores.

use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::attention::backward::{backward, groups, out_len};
use crate::host::kernels::attention::scaled::Sight;
use crate::ops::no_gradient;
use crate::{TensorFuture, own};

/// `(q, k, v, upstream)`, then the mask if there is one. Its result is `[batch.., out_len]`.
pub(crate) struct AttentionBackward {
    sight: Sight,
}

impl AttentionBackward {
    /// What flows to queries, keys and values.
    #[track_caller]
    pub fn gradients(
        sight: Sight,
        operands: [&TensorFuture; 4],
        mask: Option<&TensorFuture>,
    ) -> [TensorFuture; 3] {
        let [q, k, v, _] = operands;
        let all: Vec<&TensorFuture> = operands.into_iter().chain(mask).collect();
        let whole = own(AttentionBackward { sight }, &all);
        let lead = q.rank() - 2;
        let [rows, keys, width, wide] = sizes([q.dims(), k.dims(), v.dims()]);
        let groups = groups(q.dims()[..lead].iter().product(), rows);
        let part = |first: usize, shape: &[usize]| {
            let flat = whole.narrow(-1, first, shape.iter().product());
            flat.reshape([&q.dims()[..lead], shape].concat())
        };
        // Each group has a sum of its own.
        let summed = |first: usize, width: usize| {
            let all = part(first, &[groups, keys, width]);
            if groups == 1 { all.squeeze(-3) } else { all.sum(-3) }
        };
        let first = rows * width;
        [part(0, &[rows, width]), summed(first, width), summed(first + groups * keys * width, wide)]
    }
}

/// Queries, keys, columns of both, columns of values.
fn sizes([q, k, v]: [&[usize]; 3]) -> [usize; 4] {
    let lead = q.len() - 2;
    [q[lead], k[lead], q[lead + 1], v[lead + 1]]
}

impl Operation for AttentionBackward {
    fn name(&self) -> &str {
        "scaled_dot_product_attention"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let sizes = sizes([&inputs[0].shape, &inputs[1].shape, &inputs[2].shape]);
        let batch = &inputs[0].shape[..inputs[0].shape.rank() - 2];
        let groups = groups(batch.iter().product(), sizes[0]);
        let shape = batch.iter().copied().chain([out_len(sizes, groups)]).collect();
        Ok(Meta { shape, dtype: inputs[0].dtype })
    }

    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        scores_ns(inputs).saturating_mul(3).saturating_add(500)
    }

    no_gradient!();

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let operands = [run.inputs[0], run.inputs[1], run.inputs[2], run.inputs[3]];
        let mask = run.inputs.get(4).copied();
        backward(operands, mask, self.sight, &run.output, run.parallel);
        Ok(())
    }
}

/// Time for all scores and what is made of them, from queries, keys and values.
pub(super) fn scores_ns(inputs: &[&Meta]) -> u64 {
    let [q, _, v] = [0, 1, 2].map(|i| &inputs[i].shape);
    let lead = q.rank() - 2;
    let each = q[lead + 1] + v[lead + 1];
    let rows = q[..lead + 1].iter().fold(1u64, |rows, &n| rows.saturating_mul(n as u64));
    rows.saturating_mul(v[lead] as u64).saturating_mul((each as u64).saturating_add(20)) / 20
}
