//! Ops that pick elements by index: gather, index_select, embedding, scatter_add, one_hot.
//!
//! Negative indices count from the end, but where they are numbers of words and classes. An index that is out of range fails the value, and nothing outside is touched.

use super::rows::checked;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::op::ScatterMode;
use crate::shape::Shape;
use crate::{Backward, TensorFuture};

pub(super) fn dim_of(shape: &Shape, dim: isize) -> Result<usize, Refusal> {
    shape.dim(dim).ok_or_else(|| Refusal::index(format!("dimension {dim} is out of range for shape {shape}")))
}

pub(super) fn indices(meta: &Meta) -> Result<(), Refusal> {
    match meta.dtype {
        DType::I64 | DType::I32 | DType::U8 => Ok(()),
        other => Err(Refusal::dtype(format!("indices are int64, int32 or uint8, not {other}"))),
    }
}

pub(super) fn out_of_range(error: index::OutOfRange) -> Refusal {
    Refusal::index(error.to_string())
}

/// What is picked, and how. A `name` is that of what the op is a part of, as errors have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pick {
    /// `out[i][j] = x[index[i][j]][j]` along `dim`.
    Gather { dim: isize, name: &'static str },
    /// Whole slices along `dim`.
    IndexSelect { dim: isize, name: &'static str },
    /// Rows of a table, for indices of any shape.
    Embedding,
    /// `x` with the source's elements added at the indices along `dim`.
    ScatterAdd { dim: isize },
    /// A row of zeros with a one, for each index.
    OneHot { classes: usize },
}

impl Operation for Pick {
    fn name(&self) -> &str {
        match self {
            Pick::Gather { name, .. } | Pick::IndexSelect { name, .. } => name,
            Pick::Embedding => "embedding",
            Pick::ScatterAdd { .. } => "scatter_add",
            Pick::OneHot { .. } => "one_hot",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let x = inputs[0];
        match *self {
            Pick::Gather { dim, .. } => {
                indices(inputs[1])?;
                let dim = dim_of(&x.shape, dim)?;
                let at = &inputs[1].shape;
                within(at, &x.shape, dim)?;
                Ok(Meta { shape: at.clone(), dtype: x.dtype })
            }
            Pick::IndexSelect { dim, .. } => {
                indices(inputs[1])?;
                let dim = dim_of(&x.shape, dim)?;
                if inputs[1].shape.rank() != 1 {
                    return Err(Refusal::shape(format!("indices of shape {}, not a row", inputs[1].shape)));
                }
                let mut shape = x.shape.clone();
                shape.dims_mut()[dim] = inputs[1].shape[0];
                Ok(Meta { shape, dtype: x.dtype })
            }
            Pick::Embedding => {
                indices(inputs[1])?;
                let [_, width] = x.shape[..] else {
                    return Err(Refusal::shape(format!("a table of shape {}, not a matrix", x.shape)));
                };
                Ok(Meta { shape: inputs[1].shape.iter().copied().chain([width]).collect(), dtype: x.dtype })
            }
            Pick::ScatterAdd { dim } => {
                indices(inputs[1])?;
                let dim = dim_of(&x.shape, dim)?;
                within(&inputs[1].shape, &x.shape, dim)?;
                within(&inputs[1].shape, &inputs[2].shape, usize::MAX)?;
                if x.dtype != inputs[2].dtype {
                    return Err(Refusal::dtype(format!("types differ: {} and {}", x.dtype, inputs[2].dtype)));
                }
                Ok(x.clone())
            }
            Pick::OneHot { classes } => {
                indices(x)?;
                Ok(Meta { shape: x.shape.iter().copied().chain([classes]).collect(), dtype: DType::I64 })
            }
        }
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        // One after the other, each of them at another place.
        let added = match self {
            Pick::ScatterAdd { .. } => (inputs[1].shape.numel() as u64).saturating_mul(2),
            _ => 0,
        };
        200u64.saturating_add(output.shape.numel() as u64).saturating_add(added)
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        match self {
            Pick::OneHot { .. } => Needs::NOTHING,
            _ => Needs::inputs(&[1]),
        }
    }

    /// What was read from a place is added to the place's gradient, and the other way round.
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        match *self {
            Pick::Gather { dim, .. } => {
                call.give(0, |call| call.zeros(0).scatter_add(dim, call.input(1), call.upstream()));
            }
            Pick::IndexSelect { dim, .. } => call.give(0, |call| {
                let g = call.upstream();
                let d = checked(dim, g.rank());
                let mut shape = vec![1; g.rank()];
                shape[d] = g.dims()[d];
                let index = call.input(1).reshape(&shape[..]).expand(g.dims());
                call.zeros(0).scatter_add(dim, index, g)
            }),
            Pick::Embedding => call.give(0, |call| {
                let (width, index) = (call.meta(0).shape[1], call.input(1));
                let rows = [index.numel(), width];
                let index = index.reshape([index.numel(), 1]).expand(rows);
                call.zeros(0).scatter_add(0, index, call.upstream().reshape(rows))
            }),
            Pick::ScatterAdd { dim } => {
                call.give(0, |call| call.upstream().clone());
                call.give(2, |call| {
                    let picked = call.upstream().gather(dim, call.input(1));
                    with_zeros_beyond(picked, &call.meta(2).shape)
                });
            }
            Pick::OneHot { .. } => {}
        }
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, out, par) = (run.inputs[0], &run.output, run.parallel);
        let at = |dim: isize| checked(dim, x.shape.len());
        match *self {
            Pick::Gather { dim, .. } => index::gather(x, at(dim), run.inputs[1], true, out, par),
            Pick::IndexSelect { dim, .. } => index::index_select(x, at(dim), run.inputs[1], true, out, par),
            Pick::Embedding => index::embedding(x, run.inputs[1], out, par),
            Pick::ScatterAdd { dim } => {
                index::scatter(x, at(dim), ScatterMode::Sum, run.inputs[1], run.inputs[2], out, par)
            }
            Pick::OneHot { .. } => index::one_hot(x, out, par),
        }
        .map_err(out_of_range)
    }
}

/// PyTorch's rule: as many dimensions, and none larger, but for the one that is indexed.
pub(super) fn within(index: &Shape, of: &Shape, but: usize) -> Result<(), Refusal> {
    let fits = index.rank() == of.rank() && (0..index.rank()).all(|d| d == but || index[d] <= of[d]);
    if fits { Ok(()) } else { Err(Refusal::shape(format!("indices of shape {index} for shape {of}"))) }
}

/// What flows to a source from its part that was read: nothing beyond the indices.
pub(super) fn with_zeros_beyond(part: TensorFuture, shape: &Shape) -> TensorFuture {
    let mut full = part;
    for d in 0..shape.rank() {
        let missing = shape[d] - full.dims()[d];
        if missing > 0 {
            let mut sizes = full.shape().clone();
            sizes.dims_mut()[d] = missing;
            let nothing = full.device().zeros_dtype(sizes, full.dtype());
            full = crate::cat(&[full, nothing], d as isize);
        }
    }
    full
}
