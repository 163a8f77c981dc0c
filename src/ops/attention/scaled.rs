//! Attention as one op, which never has the matrix of scores. Nor have the kernels of its
//! gradients. A gradient that has a gradient itself, and one for a bias, are made of other ops, and
//! have it.

use super::backward::{AttentionBackward, scores_ns};
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::attention::scaled::{self, Sight};
use crate::ops::no_gradient;
use crate::{Backward, TensorFuture, own};

/// `(q, k, v)`, then a mask, then lengths, if they are there; all of one batch, on a host in
/// float32 or float64.
#[derive(Clone, Copy)]
pub(crate) struct Attention {
    pub scale: f64,
    pub causal: bool,
    /// The last operand, int64, says how many keys there are for each of the batch.
    pub lengths: bool,
}

impl Operation for Attention {
    fn name(&self) -> &str {
        "scaled_dot_product_attention"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let [q, k, v] = [inputs[0], inputs[1], inputs[2]];
        let (inputs, lengths) = inputs.split_at(inputs.len() - self.lengths as usize);
        let lead = q.shape.rank().checked_sub(2);
        let fits = lead.is_some_and(|lead| {
            inputs.iter().all(|m| m.shape.rank() == lead + 2 && m.shape[..lead] == q.shape[..lead])
                && k.shape[lead + 1] == q.shape[lead + 1]
                && v.shape[lead] == k.shape[lead]
                && inputs.get(3).is_none_or(|m| m.shape[lead..] == [q.shape[lead], k.shape[lead]])
                && lengths.iter().all(|m| m.shape[..] == q.shape[..lead])
        });
        let typed = q.dtype.is_float()
            && k.dtype == q.dtype
            && v.dtype == q.dtype
            && inputs.get(3).is_none_or(|m| takes_mask(q.dtype, m.dtype))
            && lengths.iter().all(|m| m.dtype == DType::I64);
        match (lead, fits, typed) {
            (Some(lead), true, true) => {
                let mut shape = q.shape.clone();
                shape.dims_mut()[lead + 1] = v.shape[lead + 1];
                Ok(Meta { shape, dtype: q.dtype })
            }
            (_, _, false) => {
                Err(Refusal::dtype(format!("{}, {} and {}", q.dtype, k.dtype, v.dtype)))
            }
            _ => Err(Refusal::shape(format!("{}, {} and {}", q.shape, k.shape, v.shape))),
        }
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        // Over no keys the result is zeros, which are written.
        scores_ns(inputs).max(output.shape.numel() as u64 / 4).saturating_add(500)
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        if run.output.numel() == 0 {
            return Ok(());
        }
        let [q, k, v] = [run.inputs[0], run.inputs[1], run.inputs[2]];
        let (given, lengths) = run.inputs.split_at(run.inputs.len() - self.lengths as usize);
        let sight = Sight { scale: self.scale, causal: self.causal };
        let also = [given.get(3), lengths.first()].map(|view| view.copied());
        scaled::attention([q, k, v], also, sight, &run.output, run.parallel);
        Ok(())
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[0, 1, 2, 3, 4]).as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let (q, k, v) = (call.input(0).clone(), call.input(1).clone(), call.input(2).clone());
        let given = call.operands() - self.lengths as usize;
        let added = given > 3 && call.meta(3).dtype.is_float();
        let mut mask = (given > 3).then(|| call.input(3).clone());
        if self.lengths {
            let hidden = within_lengths(mask.as_ref(), call.input(given), k.dims()[k.rank() - 2]);
            let mut shape = q.dims().to_vec();
            shape[q.rank() - 1] = k.dims()[k.rank() - 2];
            mask = Some(hidden.expand(shape));
        }
        if !(added && call.wants(3)) && self.flows_back(call, [&q, &k, &v], mask.as_ref()) {
            return Ok(());
        }
        let (q, k, v, up) = (q.wide(), k.wide(), v.wide(), call.upstream().wide());
        let weights =
            weights(&q, &k, mask.map(|mask| mask.wide()).as_ref(), (self.scale, None), self.causal);
        let from = weights.clone();
        call.give(2, |_| from.transpose(-2, -1).matmul(&up));
        let of_weights = up.matmul(v.transpose(-2, -1));
        let mean = (&weights * &of_weights).sum_keepdim(-1);
        let of_scores = weights * (of_weights - mean);
        call.give(0, |_| of_scores.matmul(&k) * self.scale);
        call.give(1, |_| of_scores.transpose(-2, -1).matmul(&q) * self.scale);
        if added {
            call.give(3, |_| of_scores.clone());
        }
        Ok(())
    }
}

impl Attention {
    /// Gives the gradients of queries, keys and values by the device's kernels for them, if it has
    /// them; they have no gradients themselves, and none for a mask.
    fn flows_back(
        &self,
        call: &mut Backward<'_>,
        operands: [&TensorFuture; 3],
        mask: Option<&TensorFuture>,
    ) -> bool {
        let port = operands[0].port();
        // Lengths are in the mask.
        let of = Attention { lengths: false, ..*self };
        let op = |result| AttentionGradient { of, result };
        if call.keeps_graph() {
            return false;
        }
        if port.profile.in_memory {
            let [q, k, v] = operands.map(|x| x.wide());
            let mask = mask.map(|mask| mask.wide());
            let all = [&q, &k, &v, &call.upstream().wide()];
            let sight = Sight { scale: self.scale, causal: self.causal };
            let gradients = AttentionBackward::gradients(sight, all, mask.as_ref());
            gradients.into_iter().enumerate().for_each(|(i, gradient)| call.give(i, |_| gradient));
            return true;
        }
        if !port.runner.has_kernel(&op(Flow::Stats)) {
            return false;
        }
        let with = |result: Flow, more: &[&TensorFuture]| {
            let all: Vec<&TensorFuture> =
                operands.iter().copied().chain(more.iter().copied()).chain(mask).collect();
            own(op(result), &all)
        };
        let up = call.upstream().clone();
        let stats = with(Flow::Stats, &[&up]);
        call.give(0, |_| with(Flow::Query, &[&up, &stats]));
        if call.wants(1) || call.wants(2) {
            let both = with(Flow::KeysAndValues, &[&up, &stats]);
            let keys = operands[1].dims().iter().product();
            let part = |i: usize, first: usize| {
                let dims = operands[i].dims();
                both.narrow(0, first, dims.iter().product()).reshape(dims)
            };
            call.give(1, |_| part(1, 0));
            call.give(2, |_| part(2, keys));
        }
        true
    }
}

/// Which of the values that a gradient of attention is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// `[batch.., queries, 2]`, two numbers a query that the others are made with.
    Stats,
    /// What flows to queries.
    Query,
    /// `[elements of keys and of values]`, what flows to either: one walk makes both.
    KeysAndValues,
}

/// `(q, k, v, upstream)`, the [`Flow::Stats`] of these for the others, then the mask if there is
/// one: of an attention what flows back. No host has a kernel for it.
pub(crate) struct AttentionGradient {
    #[allow(dead_code)] // Read by devices that have a kernel.
    pub of: Attention,
    pub result: Flow,
}

impl Operation for AttentionGradient {
    fn name(&self) -> &str {
        "scaled_dot_product_attention"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let mut meta = inputs[0].clone();
        match self.result {
            Flow::Query => {}
            Flow::KeysAndValues => {
                let sizes = [1, 2].map(|i| inputs[i].shape.numel());
                meta.shape = [sizes[0] + sizes[1]].into_iter().collect();
            }
            Flow::Stats => {
                *meta.shape.dims_mut().last_mut().expect("the forward op has matrices") = 2;
                meta.dtype = if meta.dtype == DType::F64 { DType::F64 } else { DType::F32 };
            }
        }
        Ok(meta)
    }

    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        let times = if self.result == Flow::KeysAndValues { 3 } else { 2 };
        scores_ns(inputs).saturating_mul(times).saturating_add(500)
    }

    no_gradient!();

    fn run_cpu(&self, _: &mut CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::no_kernel(self.name()))
    }
}

/// A mask of truth values, or of numbers to add: of the type, or in float32 beside halves.
pub(crate) fn takes_mask(dtype: DType, mask: DType) -> bool {
    mask == DType::Bool || mask == dtype || (mask == DType::F32 && dtype.size() == 2)
}

/// A mask that hides what lies beyond lengths, of which there is one for each of the batch.
#[track_caller]
pub(crate) fn within_lengths(
    mask: Option<&TensorFuture>,
    lengths: &TensorFuture,
    keys: usize,
) -> TensorFuture {
    let seen = lengths.device().arange(0, keys as i64, 1).lt(lengths.unsqueeze(-1)).unsqueeze(-2);
    match mask {
        None => seen,
        Some(mask) if mask.dtype() == DType::Bool => seen.logical_and(mask),
        Some(mask) => seen.where_cond(mask, f64::NEG_INFINITY),
    }
}

/// `softmax(q k^T scale + mask)` over the keys, whose scores a cap bends first; zeros in the row of
/// a query that sees none.
#[track_caller]
pub(crate) fn weights(
    q: &TensorFuture,
    k: &TensorFuture,
    mask: Option<&TensorFuture>,
    (scale, cap): (f64, Option<f64>),
    causal: bool,
) -> TensorFuture {
    let (rows, keys) = (q.dims()[q.rank() - 2], k.dims()[k.rank() - 2]);
    let mut scores = scores(q, k, scale);
    if let Some(cap) = cap {
        scores = (scores / cap).tanh() * cap;
    }
    if causal {
        let places = |n: usize| q.device().arange(0, n, 1);
        scores = places(rows).unsqueeze(1).ge(places(keys)).where_cond(&scores, f64::NEG_INFINITY);
    }
    // A row of nothing but minus infinity has no softmax: it is of zeros.
    match mask {
        Some(mask) => masked(&scores, mask).safe_softmax(-1),
        None => scores.softmax(-1),
    }
}

/// `q k^T scale`.
#[track_caller]
pub(crate) fn scores(q: &TensorFuture, k: &TensorFuture, scale: f64) -> TensorFuture {
    let turned = k.transpose(-2, -1);
    if scale == 1.0 { q.matmul(turned) } else { (q * scale).matmul(turned) }
}

/// Scores without those that a mask hides, or with its numbers added.
#[track_caller]
fn masked(scores: &TensorFuture, mask: &TensorFuture) -> TensorFuture {
    match mask.dtype() {
        DType::Bool => mask.where_cond(scores, f64::NEG_INFINITY),
        _ => scores + mask,
    }
}
