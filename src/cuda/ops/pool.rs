//! Pooling on CUDA: a thread an element of the result.

use super::OnCuda;
use super::walk;
use crate::cuda::kernels::window;
use crate::graph::device_run::CudaRun;
use crate::graph::operation::Refusal;
use crate::host::kernels::windows::pool::Divisor;
use crate::ops::windows::adaptive::AdaptiveMax;
use crate::ops::windows::pool::Pool;
use crate::ops::windows::pool::Pooled;
use crate::window::Window;

/// The largest element under each window, or its position.
fn max(cuda: &mut CudaRun<'_>, w: &Window, position: bool) -> Result<(), Refusal> {
    let (x, out) = (cuda.inputs()[0], cuda.output());
    walk(cuda, x, &[out], "max_pool", |x| window::max(x.dtype, position, w, x.shape, x.strides))
}

/// The mean under each window, or its way back.
fn mean(cuda: &mut CudaRun<'_>, w: &Window, by: Divisor, back: bool) -> Result<(), Refusal> {
    let (x, out) = (cuda.inputs()[0], cuda.output());
    let (fixed, padded) = match by {
        Divisor::Fixed(n) => (n, false),
        Divisor::Met => (0, false),
        Divisor::Padded => (0, true),
    };
    walk(cuda, x, &[out], "avg_pool", |x| {
        window::mean(x.dtype, back, w, x.shape, x.strides, fixed, padded)
    })
}

impl OnCuda for Pool {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        match self.what {
            Pooled::Max => max(run, &self.window, false),
            Pooled::MaxPosition => max(run, &self.window, true),
            Pooled::Mean(divisor) => mean(run, &self.window, divisor, false),
            Pooled::Spread(divisor) => mean(run, &self.window, divisor, true),
        }
    }
}

impl OnCuda for AdaptiveMax {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (x, out) = (run.inputs()[0], run.output());
        walk(run, x, &[out], self.name, |x| {
            window::cells_max(x.dtype, self.position, &self.cells, x.shape, x.strides)
        })
    }
}
