//! `rope` on CUDA.

use super::{OnCuda, walk_all};
use crate::cuda::kernels::rope;
use crate::graph::device_run::CudaRun;
use crate::graph::operation::Refusal;
use crate::ops::attention::rope::Rope;

impl OnCuda for Rope {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (views, out) = ([0, 1, 2].map(|i| run.inputs()[i]), run.output());
        walk_all(run, views, &[out], "rope", |views| {
            rope::plan(out.dtype, out.shape, views.map(|view| view.strides), self.interleaved)
        })
    }
}
