//! Products of matrices on CUDA: an op's product in the terms of `cuda/device/launch`.

use super::OnCuda;
use crate::cuda::kernels::matmul::Product;
use crate::dtype::{DType, Scalar};
use crate::graph::device_run::CudaRun;
use crate::graph::operation::Refusal;
use crate::ops::products::matmul::MatMul;
use crate::ops::products::matmul::product;
use crate::shape::{Shape, Strides};

/// `a b` with broadcast batches; `full` is the result's shape with vectors as rows and columns.
fn matmul(cuda: &mut CudaRun<'_>, full: &Shape) -> Result<(), Refusal> {
    let (a, b, out) = (cuda.inputs()[0], cuda.inputs()[1], cuda.output());
    if out.numel() == 0 {
        return Ok(());
    }
    if a.dtype == DType::Bool {
        // Of nothing, the product is false everywhere.
        return super::fill(cuda, Scalar::Bool(false), out);
    }
    let rank = full.rank();
    let batch = Shape::from(&full[..rank - 2]);
    // A vector is a row on the left and a column on the right.
    let strides = |shape: &[usize], own: &[isize], vector: [isize; 2]| -> Strides {
        let (dims, lead) = match shape.len() {
            1 => (vector, 0),
            n => ([own[n - 2], own[n - 1]], n - 2),
        };
        let over = |d: usize| {
            let d = (d + lead).checked_sub(batch.rank());
            d.filter(|&d| shape[d] != 1).map_or(0, |d| own[d])
        };
        (0..batch.rank()).map(over).chain(dims).collect()
    };
    let product = Product {
        dtype: a.dtype,
        to: out.dtype,
        m: full[rank - 2],
        k: a.shape[a.shape.len() - 1],
        n: full[rank - 1],
        a: strides(a.shape, a.strides, [0, a.strides[a.strides.len() - 1]]),
        b: strides(b.shape, b.strides, [b.strides[0], 0]),
        batch: batch.clone(),
        adds: false,
    };
    cuda.work(&product, &[a, b], &[out])
}

impl OnCuda for MatMul {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let shape = |i: usize| Shape::from(run.inputs()[i].shape());
        match product(&shape(0), &shape(1)) {
            Some((_, full)) => matmul(run, &full),
            None => Err(Refusal::shape("shapes changed after they were checked")),
        }
    }
}
