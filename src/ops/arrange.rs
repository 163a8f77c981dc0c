//! Ops that put elements in another order or keep some of them: sort, topk, running sums, triangles, roll.

use super::rows::checked;
use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index;
use crate::shape::Shape;

/// What is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Arrange {
    /// The elements along `dim` in order, or their positions. Stable; NaN counts as largest.
    Sort { dim: isize, descending: bool, positions: bool },
    /// The `k` largest or smallest along `dim`, in order, or their positions.
    TopK { dim: isize, k: usize, largest: bool, positions: bool },
    /// Running sums along `dim`.
    CumSum { dim: isize },
    /// On and below (or above) a diagonal of the last two dimensions; zero elsewhere.
    Triangle { diagonal: i64, upper: bool },
    /// Shifted around along dimensions.
    Roll { shifts: Vec<(isize, i64)> },
}

impl Operation for Arrange {
    fn name(&self) -> &str {
        match self {
            Arrange::Sort { positions: true, .. } => "argsort",
            Arrange::Sort { .. } => "sort",
            Arrange::TopK { .. } => "topk",
            Arrange::CumSum { .. } => "cumsum",
            Arrange::Triangle { upper: true, .. } => "triu",
            Arrange::Triangle { .. } => "tril",
            Arrange::Roll { .. } => "roll",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let Meta { shape, dtype } = inputs[0];
        let dim_of = |dim: isize| {
            let refusal = || Refusal::index(format!("dimension {dim} is out of range for shape {shape}"));
            shape.dim(dim).ok_or_else(refusal)
        };
        let typed = |shape: &Shape, positions: bool| Meta {
            shape: shape.clone(),
            dtype: if positions { DType::I64 } else { *dtype },
        };
        match *self {
            Arrange::Sort { dim, positions, .. } => {
                dim_of(dim)?;
                Ok(typed(shape, positions))
            }
            Arrange::TopK { dim, k, positions, .. } => {
                let d = dim_of(dim)?;
                if k > shape[d] {
                    return Err(Refusal::argument(format!("{k} of a dimension of {}", shape[d])));
                }
                let mut shape = shape.clone();
                shape.dims_mut()[d] = k;
                Ok(typed(&shape, positions))
            }
            Arrange::CumSum { dim } => {
                dim_of(dim)?;
                let dtype = if dtype.is_float() { *dtype } else { DType::I64 };
                Ok(Meta { shape: shape.clone(), dtype })
            }
            Arrange::Triangle { .. } if shape.rank() < 2 => {
                Err(Refusal::shape(format!("shape {shape} has no last two dimensions")))
            }
            Arrange::Triangle { .. } => Ok(inputs[0].clone()),
            Arrange::Roll { ref shifts } => {
                for &(dim, _) in shifts {
                    dim_of(dim)?;
                }
                Ok(inputs[0].clone())
            }
        }
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let n = inputs[0].shape.numel() as u64;
        match self {
            Arrange::Sort { .. } | Arrange::TopK { .. } => {
                n.saturating_mul(4 * (1 + n.max(1).ilog2() as u64)).saturating_add(200)
            }
            _ => 200u64.saturating_add(output.shape.numel() as u64),
        }
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        match self {
            Arrange::Sort { .. } | Arrange::TopK { .. } => Needs::inputs(&[0]),
            _ => Needs::NOTHING,
        }
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| {
            let g = call.upstream();
            // Back to where each came from.
            let back = |dim: isize, positions: Arrange| {
                let positions = crate::own(positions, &[call.input(0)]);
                call.zeros(0).scatter_add(dim, positions, g)
            };
            match *self {
                Arrange::Sort { dim, descending, .. } => {
                    back(dim, Arrange::Sort { dim, descending, positions: true })
                }
                Arrange::TopK { dim, k, largest, .. } => {
                    back(dim, Arrange::TopK { dim, k, largest, positions: true })
                }
                Arrange::CumSum { dim } => g.flip(dim).cumsum(dim).flip(dim),
                Arrange::Triangle { diagonal, upper: true } => g.triu(diagonal),
                Arrange::Triangle { diagonal, .. } => g.tril(diagonal),
                Arrange::Roll { ref shifts } => {
                    let (dims, by): (Vec<isize>, Vec<i64>) = shifts.iter().map(|&(d, by)| (d, -by)).unzip();
                    g.roll(by, dims)
                }
            }
        });
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (x, out, par) = (run.inputs[0], &run.output, run.parallel);
        let at = |dim: isize| checked(dim, x.shape.len());
        match *self {
            Arrange::Sort { dim, descending, positions } => {
                let (values, places) = if positions { (None, Some(out)) } else { (Some(out), None) };
                index::sort(x, at(dim), descending, values, places, par);
            }
            Arrange::TopK { dim, k, largest, positions } => {
                let (values, places) = if positions { (None, Some(out)) } else { (Some(out), None) };
                index::topk(x, at(dim), k, largest, values, places, par);
            }
            Arrange::CumSum { dim } => index::cumsum(x, at(dim), out, par),
            Arrange::Triangle { diagonal, upper: true } => index::triu(x, diagonal, out, par),
            Arrange::Triangle { diagonal, .. } => index::tril(x, diagonal, out, par),
            Arrange::Roll { ref shifts } => {
                let shifts: Vec<(usize, i64)> = shifts.iter().map(|&(d, by)| (at(d), by)).collect();
                index::roll(x, &shifts, out, par);
            }
        }
        Ok(())
    }
}
