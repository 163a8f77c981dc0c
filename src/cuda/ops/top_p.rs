//! `top_p` on CUDA.

use super::{OnCuda, walk_all};
use crate::cuda::kernels::top_p;
use crate::graph::device_run::CudaRun;
use crate::graph::operation::Refusal;
use crate::ops::index::top_p::TopP;

impl OnCuda for TopP {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (views, out) = ([0, 1].map(|i| run.inputs()[i]), run.output());
        walk_all(run, views, &[out], "top_p", |views| {
            top_p::plan(out.dtype, out.shape, views.map(|view| view.strides))
        })
    }
}
