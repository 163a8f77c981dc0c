//! `matmul`: PyTorch's, with vectors and broadcast batches; the product itself is the kernels'.
//!
//! What is chosen here is when a weight is packed. It is known to stay by its third use in a row,
//! in one view and not written over since (`Keep`). Whether it may be packed follows from types,
//! shapes and steps alone, and where it may the library gets the same blocks of k from the first
//! product on: the bits do not depend on how often it was used. Panels lie in the device's memory,
//! counted and limited; a value that needs the room has it.

use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::graph::value::Buffer;
use crate::host::kernels::matmul;
use crate::shape::{Shape, Strides};
use crate::view::{View, ViewMut};
use std::marker::PhantomData;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct MatMul {
    /// Of halves the result stays in float32: whoever asks rounds it, with what it does to it.
    pub wide: bool,
}

/// Sizes and batch of a product: `[batch..., m, k] x [batch..., k, n]`.
pub(crate) fn product(a: &Shape, b: &Shape) -> Option<(Shape, Shape)> {
    let (a_rank, b_rank) = (a.rank(), b.rank());
    if a_rank == 0 || b_rank == 0 {
        return None;
    }
    // What most are; the way through batches takes several times as long as an op's call does
    // otherwise.
    if let ([m, k], [k2, n]) = (a.dims(), b.dims()) {
        let out = Shape::from([*m, *n]);
        return (k == k2).then(|| (out.clone(), out));
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

/// Most rows of halves, which are widened at each call.
const HALF_ROWS_MAX: usize = 32;
/// A weight is packed when it is used for the third time in a row, as it was and in the same view:
/// then it is one that stays.
const PACKED_AT_USE: u32 = 3;

/// A weight in packed form, and which view of its buffer that is.
struct Weight {
    ptr: usize,
    shape: [usize; 2],
    strides: [isize; 2],
    panels: matmul::Packed,
}

/// Whether the right operand of a product may come to be packed: settled by types, shapes and steps
/// alone, since the sums are then those of a packed weight from the first product on.
fn may_be_packed(a: &View<'_>, b: &View<'_>) -> bool {
    let &[k, n] = b.shape else { return false };
    if a.shape.is_empty() || !a.is_contiguous() || a.numel() == 0 || k * n < 4096 {
        return false;
    }
    let (m, steps) = (a.numel() / k, [b.strides[0], b.strides[1]]);
    let pays = a.dtype == DType::F32 || m <= HALF_ROWS_MAX;
    pays && matmul::can_be_packed(a.dtype, [m, k, n], steps)
}

/// The packed form of a weight that is multiplied with again and again, made on its third use and
/// kept beside its elements, in memory of the same device. A served model's products are of this
/// kind, and a library that packs at each call spends more time on that than on the product. The
/// operands are such that [`may_be_packed`] holds. Where there is no memory to spare the weight is
/// not packed.
fn packed(b: &View<'_>, buffer: Option<&dyn Buffer>) -> Option<Arc<Weight>> {
    let (&[k, n], Some(buffer)) = (b.shape, buffer) else { return None };
    let keep = buffer.keep()?;
    let (ptr, strides) = (b.ptr as usize, [b.strides[0], b.strides[1]]);
    let made = keep.get().or_else(|| {
        let view = (ptr >> 2) as u32 ^ (k as u32) << 20 ^ (strides[0] as u32) << 8 ^ n as u32;
        if keep.count(view) < PACKED_AT_USE {
            return None;
        }
        keep.get_or_make(buffer, || {
            let panels =
                matmul::pack(*b, buffer.beside(matmul::Packed::bytes(b.dtype, k, n)?)?).ok()?;
            Some(Arc::new(Weight { ptr, shape: [k, n], strides, panels }))
        })
    })?;
    let weight = made.downcast::<Weight>().ok()?;
    (weight.ptr == ptr && weight.shape == [k, n] && weight.strides == strides).then_some(weight)
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
            Some((shape, _)) => {
                Ok(Meta { shape, dtype: if self.wide { a.dtype.wide() } else { a.dtype } })
            }
            None => Err(Refusal::shape(format!("cannot multiply {} with {}", a.shape, b.shape))),
        }
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let k = inputs[0].shape.last().copied().unwrap_or(1);
        let flops = (output.shape.numel() as u64).saturating_mul(k as u64).saturating_mul(2);
        let time = flops / if output.dtype.is_float() { matmul::flops_per_ns() } else { 4 };
        // Of no inner elements a product is zeros, which are written.
        time.max(output.shape.numel() as u64 / 4).saturating_add(300)
    }

    fn takes_epilogue(&self) -> bool {
        true
    }

    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        let one = |i: usize| if wanted[1 - i] { Needs::inputs(&[i]) } else { Needs::NOTHING };
        one(0).and(one(1)).as_they_are()
    }

    /// `g b^T` and `a^T g`. Rows of all batches against one matrix are one product, not a product a
    /// batch to be summed up. Where there is such a sum, its terms are not rounded to halves.
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        // What comes for a result in float32 comes from one that was rounded.
        let up = call.upstream().to_dtype(call.meta(0).dtype);
        let rank = |i: usize| call.meta(i).shape.rank();
        let (a_rank, b_rank) = (rank(0), rank(1));
        if b_rank == 1 {
            // [..., m, k] x [k]: the upstream gradient is [..., m].
            call.give(0, |call| up.unsqueeze(-1).mul(call.input(1)));
            call.give(1, |call| match a_rank {
                1 => up.mul(call.input(0)),
                _ => {
                    let k = call.meta(0).shape[a_rank - 1] as isize;
                    let rows = up.reshape([-1]);
                    if call.meta(0).shape.numel() == 0 {
                        return call.zeros(1);
                    }
                    rows.matmul(call.input(0).reshape([-1, k]))
                }
            });
            return Ok(());
        }
        if a_rank == 1 {
            // [k] x [..., k, n]: the upstream gradient is [..., n].
            call.give(0, |call| {
                let (b, g) = (call.input(1), &up);
                let (b, g) = if b_rank > 2 { (b.wide(), g.wide()) } else { (b.clone(), g.clone()) };
                b.matmul(g.unsqueeze(-1)).squeeze(-1)
            });
            call.give(1, |call| call.input(0).unsqueeze(-1).mul(up.unsqueeze(-2)));
            return Ok(());
        }
        // The gradient of a view `w^T` is made as that of `w`, so that the update of `w` runs row
        // by row.
        let product = |view: bool,
                       a: (&crate::TensorFuture, bool),
                       b: (&crate::TensorFuture, bool)| match view {
            true => b.0.matmul_turned(!b.1, a.0, !a.1).transpose(-1, -2),
            false => a.0.matmul_turned(a.1, b.0, b.1),
        };
        let batch = |meta: &Meta| Shape::from(&meta.shape[..meta.shape.rank() - 2]);
        // In what type the products for an operand are made.
        let seen =
            |call: &Backward<'_>, i: usize, x: &crate::TensorFuture| match batch(call.meta(i))
                == batch(call.output_meta())
            {
                true => x.clone(),
                false => x.wide(),
            };
        call.give(0, |call| {
            let [g, b] = [&up, call.input(1)].map(|x| seen(call, 0, x));
            product(call.is_turned(0), (&g, false), (&b, true))
        });
        call.give(1, |call| {
            let (a, g) = (call.input(0), &up);
            if b_rank == 2 && a_rank > 2 && call.meta(0).shape.numel() > 0 && g.numel() > 0 {
                let (k, n) = (call.meta(1).shape[0] as isize, call.meta(1).shape[1] as isize);
                let (a, g) = (a.reshape([-1, k]), g.reshape([-1, n]));
                return product(call.is_turned(1), (&a, true), (&g, false));
            }
            let [a, g] = [a, g].map(|x| seen(call, 1, x));
            product(call.is_turned(1), (&a, true), (&g, false))
        });
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        if run.output.numel() == 0 {
            return Ok(());
        }
        let (a, b) = (run.inputs[0], run.inputs[1]);
        if a.dtype == DType::Bool {
            run.output.fill_from(std::iter::repeat(false));
            return Ok(());
        }
        let as_packed = may_be_packed(&a, &b);
        if let Some(weight) = as_packed.then(|| packed(&b, run.buffers[1])).flatten() {
            let (m, n) = (a.numel() / a.shape[a.shape.len() - 1], b.shape[1]);
            let rows = View { shape: &[m, b.shape[0]], strides: &[b.shape[0] as isize, 1], ..a };
            let out = ViewMut { shape: &[m, n], ..run.output_again() };
            matmul::matmul_packed(rows, &weight.panels, &out, run.parallel);
            return Ok(());
        }
        let (a_shape, b_shape) = (Shape::from(a.shape), Shape::from(b.shape));
        let Some((_, full)) = product(&a_shape, &b_shape) else {
            return Err(Refusal::shape("shapes changed after they were checked"));
        };
        // A vector is a row on the left and a column on the right.
        let lift = |view: View<'_>, at: usize| -> (Shape, Strides) {
            let (mut shape, mut strides) =
                (Shape::from(view.shape), Strides::from_slice(view.strides));
            if view.shape.len() == 1 {
                shape.dims_mut().insert(at, 1);
                strides.insert(at, 0);
            }
            (shape, strides)
        };
        let (a_lifted, b_lifted) = (lift(a, 0), lift(b, 1));
        let a = View { shape: &a_lifted.0, strides: &a_lifted.1, ..a };
        let b = View { shape: &b_lifted.0, strides: &b_lifted.1, ..b };
        let out = ViewMut {
            ptr: run.output.ptr,
            dtype: run.output.dtype,
            shape: &full,
            life: PhantomData,
        };
        matmul::matmul(a, b, &out, as_packed, run.parallel).map_err(Refusal::dtype)
    }
}

#[cfg(all(test, not(futensor_loom)))]
#[path = "matmul_tests.rs"]
mod tests;
