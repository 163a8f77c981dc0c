//! Scans on CUDA: running sums, products and largest elements along a dimension.

use super::{OnCuda, operand, walk};
use crate::cuda::kernels::{align, scan};
use crate::graph::device_run::CudaRun;
use crate::graph::operation::Refusal;
use crate::ops::check::checked;
use crate::ops::order::scan::Running;

impl OnCuda for Running {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (x, out, of) = (run.inputs()[0], run.output(), self.scan);
        let dim = checked(self.dim, x.shape.len());
        walk(run, x, &[out], of.name(), |x| {
            scan::plan(of, x.dtype, x.shape, dim, operand(x), align(out.ptr))
        })
    }
}
