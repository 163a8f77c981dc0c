//! Softmax, its relatives and the norms on CUDA: a row is one dimension, or the trailing ones.

use super::OnCuda;
use super::{converted, operand, packed, run, walk};
use crate::cuda::kernels::align;
use crate::cuda::kernels::softmax::{self, RowOp};
use crate::graph::device_run::{CudaRun, CudaView, CudaViewMut};
use crate::graph::operation::Refusal;
use crate::host::kernels::rows::Form;
use crate::ops::check::checked;
use crate::ops::rows::logsumexp::LogSumExp;
use crate::ops::rows::norm::Norm;
use crate::ops::rows::softmax::Softmax;
use crate::shape::Strides;
use smallvec::SmallVec;

/// Softmax, log-softmax or logsumexp over one dimension; one number is a row of one.
fn along(cuda: &mut CudaRun<'_>, op: RowOp, dim: isize) -> Result<(), Refusal> {
    let (mut x, mut out) = (cuda.inputs()[0], cuda.output());
    if x.shape.is_empty() {
        (x.shape, x.strides) = (&[1], &[1]);
        out.shape = &[1];
    }
    let dim = checked(dim, x.shape.len());
    let dims: SmallVec<[bool; 8]> = (0..x.shape.len()).map(|d| d == dim).collect();
    walk(cuda, x, &[out], "softmax", |x| {
        softmax::plan(op, x.dtype, x.shape, &dims, operand(x), align(out.ptr), 0.0)
    })
}

/// A norm over the trailing dimensions. Weight and bias of another type: all is done in the wider
/// one.
fn norm(cuda: &mut CudaRun<'_>, op: RowOp, trailing: usize, eps: f64) -> Result<(), Refusal> {
    let (inputs, out) = (cuda.inputs(), cuda.output());
    if out.numel() == 0 {
        return Ok(());
    }
    let dtype = inputs.iter().fold(inputs[0].dtype, |d, v| d.promote(v.dtype));
    let mut lent: SmallVec<[[Strides; 2]; 3]> =
        SmallVec::from_elem(Default::default(), inputs.len());
    let mut strides = Strides::new();
    let mut views: SmallVec<[CudaView<'_>; 3]> = SmallVec::new();
    for (k, (view, [a, b])) in inputs.iter().zip(&mut lent).enumerate() {
        let view = converted(cuda, *view, dtype, a)?;
        // Parameters are read without strides, sixteen bytes at a time.
        let lies = k == 0 || (view.is_contiguous() && align(view.ptr) == 16);
        views.push(if lies { view } else { packed(cuda, view, b)? });
    }
    let to = match dtype == out.dtype {
        true => out,
        false => {
            CudaViewMut { ptr: cuda.scratch(out.numel() * dtype.size())?, dtype, shape: out.shape }
        }
    };
    let rank = out.shape.len();
    let dims: SmallVec<[bool; 8]> = (0..rank).map(|d| d >= rank - trailing).collect();
    let plan =
        |x: &CudaView<'_>| softmax::plan(op, dtype, x.shape, &dims, operand(x), align(to.ptr), eps);
    if plan(&views[0]).is_none() {
        views[0] = packed(cuda, views[0], &mut strides)?;
    }
    let Some(plan) = plan(&views[0]) else {
        return Err(Refusal::kernel(format!("a norm of shape {:?} has no CUDA kernel", out.shape)));
    };
    run(cuda, plan, &views, &[to])?;
    if dtype != out.dtype {
        let strides = crate::shape::contiguous_strides(to.shape);
        super::cast(cuda, super::reread(to, &strides), out)?;
    }
    Ok(())
}

impl OnCuda for Softmax {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let op = match self.form {
            Form::Plain => RowOp::Softmax,
            Form::Safe => RowOp::SafeSoftmax,
            Form::Log => RowOp::LogSoftmax,
        };
        along(run, op, self.dim)
    }
}

impl OnCuda for LogSumExp {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        along(run, RowOp::LogSumExp, self.dim)
    }
}

impl OnCuda for Norm {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let op = match self.centred {
            true => RowOp::LayerNorm { weight: self.weight, bias: self.bias },
            false => RowOp::RmsNorm { weight: self.weight },
        };
        norm(run, op, self.trailing, self.eps)
    }
}
