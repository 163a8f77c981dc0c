//! Attention and its gradients on CUDA.

use super::{OnCuda, packed, run};
use crate::cuda::kernels::attention::{self, Result as Made};
use crate::cuda::kernels::{align, paged};
use crate::graph::device_run::{CudaRun, CudaView};
use crate::graph::operation::Refusal;
use crate::ops::attention::paged::PagedAttention;
use crate::ops::attention::scaled::{Attention, AttentionGradient, Flow};
use crate::shape::Strides;
use smallvec::SmallVec;

/// One result from queries, keys, values, further operands, a mask where `masked`, and lengths
/// where the op has them.
fn attend(cuda: &mut CudaRun<'_>, made: Made, op: &Attention, masked: bool) -> Result<(), Refusal> {
    let (inputs, out) = (cuda.inputs(), cuda.output());
    let mut lent: SmallVec<[Strides; 6]> = SmallVec::from_elem(Strides::new(), inputs.len());
    let mut views: SmallVec<[CudaView<'_>; 6]> = SmallVec::from_slice(inputs);
    let plan = |views: &[CudaView<'_>]| {
        let [q, k, v] = [0, 1, 2].map(|i| views[i]);
        let lead = q.shape.len() - 2;
        let (views, lengths) = views.split_at(views.len() - op.lengths as usize);
        let mask = masked.then(|| views[views.len() - 1]);
        let up: &[isize] = if made == Made::Output { &[] } else { views[3].strides };
        // A row's elements have to be neighbours; there is no step between the elements of one.
        let rows = views[..if up.is_empty() { 3 } else { 4 }].iter();
        if !rows.clone().all(|x| x.shape[lead + 1] <= 1 || x.strides[lead + 1] == 1) {
            return None;
        }
        let of = attention::Attention {
            dtype: q.dtype,
            batch: &q.shape[..lead],
            sizes: [q.shape[lead], k.shape[lead], q.shape[lead + 1], v.shape[lead + 1]],
            strides: [q.strides, k.strides, v.strides, up],
            mask: mask.map(|mask| (mask.dtype, mask.strides)),
            lengths: lengths.first().map(|lengths| lengths.strides),
            align: rows.map(|x| align(x.ptr)).min().unwrap_or(1),
            causal: op.causal,
            scale: op.scale,
        };
        attention::plan(made, &of)
    };
    let mut planned = plan(&views);
    if planned.is_none() {
        for (view, strides) in views.iter_mut().zip(&mut lent) {
            *view = packed(cuda, *view, strides)?;
        }
        planned = plan(&views);
    }
    let refused =
        || Refusal::kernel(format!("attention of shape {:?} has no CUDA kernel", out.shape));
    run(cuda, planned.ok_or_else(refused)?, &views, &[out])
}

impl OnCuda for Attention {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let masked = run.inputs().len() - self.lengths as usize > 3;
        attend(run, Made::Output, self, masked)
    }
}

impl OnCuda for PagedAttention {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (inputs, out) = (run.inputs(), run.output());
        let refused =
            || Refusal::kernel(format!("attention of shape {:?} has no CUDA kernel", out.shape));
        let lie = |i: usize| paged::Lie {
            dtype: inputs[i].dtype,
            shape: inputs[i].shape,
            strides: inputs[i].strides,
        };
        let &PagedAttention { scale, cap, window, causal } = self;
        let sight = paged::Sight { scale, cap, window, causal };
        let plan = paged::plan([0, 1, 2, 3, 4].map(lie), sight).ok_or_else(refused)?;
        super::run(run, plan, inputs, &[out])
    }
}

impl OnCuda for AttentionGradient {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let made = match self.result {
            Flow::Stats => Made::Stats,
            Flow::Query => Made::ToQuery,
            Flow::KeysAndValues => Made::ToKeys,
        };
        let masked = run.inputs().len() > if made == Made::Stats { 4 } else { 5 };
        attend(run, made, &self.of, masked)
    }
}
