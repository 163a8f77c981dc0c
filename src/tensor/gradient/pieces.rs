//! Gradients of slices of one value. The walk collects them, and puts them side by side once.
//!
//! The gradient of a slice is zero outside of it. If each slice's gradient were written among
//! zeros, a value that is taken apart into n pieces would be written n times, and added n times.
//! Pieces that do not overlap become one `cat`; pieces that do are spread over as many as it takes.

use crate::graph::node::{Op, ViewOp};
use crate::graph::tape::Made;
use crate::shape::Shape;
use crate::tensor::build::At;
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::shaping::join::cat;

/// The gradient of consecutive positions of a dimension.
pub(super) struct Piece {
    dim: usize,
    start: usize,
    gradient: TensorFuture,
    /// The line that took the slice.
    pub at: At,
}

impl Piece {
    /// The gradient of an op's operand as a piece, if the op is a slice without gaps.
    pub fn of(made: &Made, gradient: &TensorFuture, at: At) -> Option<Piece> {
        let &Made::Op(Op::View(ViewOp::Slice { dim, start, step })) = made else { return None };
        let dim = dim as usize;
        let len = gradient.dims()[dim];
        match step {
            1 => Some(Piece { dim, start, gradient: gradient.clone(), at }),
            -1 if len > 0 => {
                let gradient = gradient.stepped(dim, len - 1, len, -1);
                Some(Piece { dim, start: start + 1 - len, gradient, at })
            }
            _ => None,
        }
    }

    fn end(&self) -> usize {
        self.start + self.gradient.dims()[self.dim]
    }
}

/// The sum of two gradients, in float32 if they are halves.
pub(super) fn sum_of(sum: TensorFuture, gradient: &TensorFuture) -> TensorFuture {
    match sum.dtype().wide() == sum.dtype() {
        true => sum.add(gradient),
        false => sum.wide().add(gradient),
    }
}

/// The gradient of a value of this shape, of which there are these pieces: at least one.
pub(super) fn joined(mut pieces: Vec<Piece>, shape: &Shape) -> Option<TensorFuture> {
    pieces.sort_by_key(|piece| (piece.dim, piece.start, piece.end()));
    // Each layer holds pieces of one dimension that do not overlap.
    let mut layers: Vec<Vec<Piece>> = Vec::new();
    for piece in pieces {
        let same = layers.iter_mut().flat_map(|layer| layer.last_mut()).find(|last| {
            (last.dim, last.start, last.end()) == (piece.dim, piece.start, piece.end())
        });
        if let Some(same) = same {
            same.gradient = sum_of(same.gradient.clone(), &piece.gradient);
            continue;
        }
        let behind = |layer: &&mut Vec<Piece>| {
            layer.last().is_none_or(|last| last.dim == piece.dim && last.end() <= piece.start)
        };
        match layers.iter_mut().find(behind) {
            Some(layer) => layer.push(piece),
            None => layers.push(vec![piece]),
        }
    }
    layers.iter().map(|layer| beside(layer, shape)).reduce(|sum, layer| sum_of(sum, &layer))
}

/// Pieces that do not overlap, with zeros in the gaps.
fn beside(layer: &[Piece], shape: &Shape) -> TensorFuture {
    let (dim, device) = (layer[0].dim, layer[0].gradient.device());
    // A sum of halves is in float32 until the walk rounds it.
    let widest = layer.iter().map(|piece| piece.gradient.dtype()).find(|d| d.wide() == *d);
    let dtype = widest.unwrap_or(layer[0].gradient.dtype());
    let mut parts = Vec::with_capacity(2 * layer.len() + 1);
    let mut reached = 0;
    let gap = |to: usize, reached: usize| {
        let mut shape = shape.clone();
        shape.dims_mut()[dim] = to - reached;
        device.zeros_dtype(shape, dtype)
    };
    for piece in layer {
        if piece.start > reached {
            parts.push(gap(piece.start, reached));
        }
        parts.push(piece.gradient.to_dtype(dtype));
        reached = piece.end();
    }
    if shape[dim] > reached {
        parts.push(gap(shape[dim], reached));
    }
    match &parts[..] {
        [whole] => whole.clone(),
        parts => cat(parts, dim as isize),
    }
}
