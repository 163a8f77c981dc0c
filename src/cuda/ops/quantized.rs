//! Quantised weights on CUDA. Quantising is left to a CPU, since weights come quantised; plain
//! elements are packed.

use super::{OnCuda, contiguous, run};
use crate::cuda::kernels::{halves, quantized};
use crate::dtype::DType;
use crate::graph::device_run::{CudaRun, CudaView};
use crate::graph::operation::Refusal;
use crate::ops::products::quantized::{
    Dequantize, GroupedLinear, Quantize, QuantizedEmbedding, QuantizedLinear,
};
use crate::shape::Strides;

/// The bytes of a weight as they lie: a view of them has no gaps, but may start anywhere.
fn weight<'a>(
    cuda: &mut CudaRun<'_>,
    view: CudaView<'a>,
    lent: &'a mut Strides,
) -> Result<CudaView<'a>, Refusal> {
    match view.ptr.is_multiple_of(16) && view.is_contiguous() {
        true => Ok(view),
        false => super::packed(cuda, view, lent),
    }
}

impl OnCuda for QuantizedLinear {
    fn queue(&self, cuda: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (x, w, out) = (cuda.inputs()[0], cuda.inputs()[1], cuda.output());
        if out.numel() == 0 {
            return Ok(());
        }
        let mut lent = [Strides::new(), Strides::new()];
        let [a, b] = &mut lent;
        let (x, w) = (contiguous(cuda, x, a)?, weight(cuda, w, b)?);
        let rows = out.numel() / self.0.rows;
        if self.0.format.dtype().is_some() {
            return cuda.work(&halves::Product { packing: self.0, rows }, &[x, w], &[out]);
        }
        let plan = quantized::plan(self.0, rows);
        let refused =
            || Refusal::kernel(format!("linear of shape {:?} has no CUDA kernel", x.shape));
        run(cuda, plan.ok_or_else(refused)?, &[x, w], &[out])
    }
}

impl OnCuda for GroupedLinear {
    fn queue(&self, cuda: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let [x, w, which] = [0, 1, 2].map(|i| cuda.inputs()[i]);
        let out = cuda.output();
        if out.numel() == 0 {
            return super::index::look(cuda, which, self.groups, false);
        }
        let mut lent = [Strides::new(), Strides::new(), Strides::new()];
        let [a, b, c] = &mut lent;
        let (x, w) = (contiguous(cuda, x, a)?, weight(cuda, w, b)?);
        let which = contiguous(cuda, which, c)?;
        let plan = quantized::grouped(self.one(), self.groups, which.dtype, which.numel());
        let refused =
            || Refusal::kernel(format!("grouped_linear of shape {:?} has no CUDA kernel", x.shape));
        run(cuda, plan.ok_or_else(refused)?, &[x, w, which], &[out])
    }

    fn looks(&self) -> bool {
        true
    }
}

impl OnCuda for Quantize {
    fn queue(&self, cuda: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (x, out) = (cuda.inputs()[0], cuda.output());
        if self.0.format.dtype().is_none() {
            return Err(Refusal::kernel("weights are quantised on a CPU, not by CUDA"));
        }
        let mut lent = Strides::new();
        let x = contiguous(cuda, x, &mut lent)?;
        run(cuda, quantized::pack(self.0), &[x], &[out])
    }
}

impl OnCuda for Dequantize {
    fn queue(&self, cuda: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (w, out) = (cuda.inputs()[0], cuda.output());
        let mut lent = Strides::new();
        let w = weight(cuda, w, &mut lent)?;
        run(cuda, quantized::dequantize(self.0), &[w], &[out])
    }
}

impl OnCuda for QuantizedEmbedding {
    fn queue(&self, cuda: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (w, index, out) = (cuda.inputs()[0], cuda.inputs()[1], cuda.output());
        if out.numel() == 0 {
            return super::index::look(cuda, index, self.0.rows, false);
        }
        debug_assert_eq!(out.dtype, DType::F32);
        let mut lent = [Strides::new(), Strides::new()];
        let [a, b] = &mut lent;
        let (w, index) = (weight(cuda, w, a)?, contiguous(cuda, index, b)?);
        let plan = quantized::embedding(self.0, index.dtype, index.numel());
        run(cuda, plan, &[w, index], &[out])
    }

    fn looks(&self) -> bool {
        true
    }
}
