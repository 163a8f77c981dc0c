//! `tril` and `triu` on CUDA.

use super::{OnCuda, operand, walk};
use crate::cuda::kernels::copy;
use crate::graph::device_run::CudaRun;
use crate::graph::operation::Refusal;
use crate::ops::shaping::triangle::Triangle;

impl OnCuda for Triangle {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (x, out) = (run.inputs()[0], run.output());
        walk(run, x, &[out], "triangle", |x| {
            copy::triangle(x.dtype.size(), x.shape, operand(x), self.diagonal, self.upper)
        })
    }
}
