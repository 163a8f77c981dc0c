//! `matmul`: PyTorch's, with vectors and broadcast batches; the product itself is the kernels'.

use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::kernels::cpu::matmul;
use crate::shape::{Shape, Strides};
use crate::view::{View, ViewMut};
use std::marker::PhantomData;

pub(crate) struct MatMul;

/// Sizes and batch of a product: `[batch..., m, k] x [batch..., k, n]`.
fn product(a: &Shape, b: &Shape) -> Option<(Shape, Shape)> {
    let (a_rank, b_rank) = (a.rank(), b.rank());
    if a_rank == 0 || b_rank == 0 {
        return None;
    }
    let (m, k) = if a_rank == 1 { (None, a[0]) } else { (Some(a[a_rank - 2]), a[a_rank - 1]) };
    let (k2, n) = if b_rank == 1 { (b[0], None) } else { (b[b_rank - 2], Some(b[b_rank - 1])) };
    if k != k2 {
        return None;
    }
    let batch = |s: &Shape| Shape::from(&s.dims()[..s.rank().saturating_sub(2)]);
    let batch = batch(a).broadcast(&batch(b))?;
    let out = batch.iter().copied().chain(m).chain(n).collect();
    let full = batch.iter().copied().chain([m.unwrap_or(1), n.unwrap_or(1)]).collect();
    Some((out, full))
}

impl Operation for MatMul {
    fn name(&self) -> &str {
        "matmul"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (a, b) = (inputs[0], inputs[1]);
        if a.dtype != b.dtype {
            return Err(Refusal::dtype(format!("types differ: {} and {}", a.dtype, b.dtype)));
        }
        // Of nothing, the product is false everywhere in any type.
        if a.dtype == DType::Bool && a.shape.last() != Some(&0) {
            return Err(Refusal::dtype("not defined on bool"));
        }
        match product(&a.shape, &b.shape) {
            Some((shape, _)) => Ok(Meta { shape, dtype: a.dtype }),
            None => Err(Refusal::shape(format!("cannot multiply {} with {}", a.shape, b.shape))),
        }
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let k = inputs[0].shape.last().copied().unwrap_or(1);
        let flops = (output.shape.numel() as u64).saturating_mul(k as u64).saturating_mul(2);
        // 50 GFLOP/s is what a small product reaches on one thread; integers are slower.
        300 + flops / if output.dtype.is_float() { 50 } else { 4 }
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (a, b) = (run.inputs[0], run.inputs[1]);
        if a.dtype == DType::Bool {
            run.output.fill_from(std::iter::repeat(false));
            return Ok(());
        }
        let (a_shape, b_shape) = (Shape::from(a.shape), Shape::from(b.shape));
        let Some((_, full)) = product(&a_shape, &b_shape) else {
            return Err(Refusal::shape("shapes changed after they were checked"));
        };
        // A vector is a row on the left and a column on the right.
        let lift = |view: View<'_>, at: usize| -> (Shape, Strides) {
            let (mut shape, mut strides) = (Shape::from(view.shape), Strides::from_slice(view.strides));
            if view.shape.len() == 1 {
                shape.dims_mut().insert(at, 1);
                strides.insert(at, 0);
            }
            (shape, strides)
        };
        let (a_lifted, b_lifted) = (lift(a, 0), lift(b, 1));
        let a = View { shape: &a_lifted.0, strides: &a_lifted.1, ..a };
        let b = View { shape: &b_lifted.0, strides: &b_lifted.1, ..b };
        let out = ViewMut { ptr: run.output.ptr, dtype: run.output.dtype, shape: &full, life: PhantomData };
        matmul::matmul(a, b, &out, run.parallel).map_err(Refusal::dtype)
    }
}
