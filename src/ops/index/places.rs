//! The places of elements along a dimension that are known when an op is called.

use crate::DType;
use crate::graph::operation::{Meta, Refusal};

/// The elements that [`pad_mode`](crate::TensorFuture::pad_mode) adds around a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum PadMode {
    /// The elements in reverse, without the one at the edge.
    Reflect,
    /// The element at the edge.
    Replicate,
    /// The elements from the other end.
    Circular,
}

/// A dimension of which elements are picked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub dim: usize,
    pub input: usize,
    pub output: usize,
    pub by: Rule,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// So many are added before the first; a negative number is taken away.
    Padded(PadMode, i64),
    /// The element at a position: those of two neighbours are `scale` apart, and the first is so
    /// many times that.
    Nearest { scale: f64, first: f64 },
}

impl Axis {
    /// How many elements of the result come from one, at most.
    pub fn most(&self) -> usize {
        match self.by {
            Rule::Nearest { .. } => self.output / self.input.max(1) + 2,
            Rule::Padded(PadMode::Replicate, before) => {
                let after = self.output as i64 - self.input as i64 - before;
                before.max(after).max(0) as usize + 1
            }
            // Itself, and once on either side.
            Rule::Padded(PadMode::Reflect | PadMode::Circular, _) => 3,
        }
    }

    /// The place of each element of the result, computed in the type that PyTorch computes it in.
    pub fn places(&self, dtype: DType) -> Vec<usize> {
        let (n, output) = (self.input as i64, self.output as i64);
        let place = |i: i64| match self.by {
            Rule::Nearest { scale, first } => {
                let at = match dtype {
                    DType::F64 => ((i as f64 + first) * scale) as i64,
                    _ => ((i as f32 + first as f32) * scale as f32) as i64,
                };
                at.clamp(0, n - 1)
            }
            Rule::Padded(mode, before) => {
                let (at, after) = (i - before, output - n - before);
                match mode {
                    // Folded at 0, then at the last element.
                    PadMode::Reflect => (n - 1) - ((n - 1) - at.abs()).abs(),
                    PadMode::Replicate => at.clamp(0, n - 1),
                    PadMode::Circular => {
                        let left = n + before.min(0) + after.min(0);
                        let skipped = (-before).max(0);
                        (at - skipped).rem_euclid(left.max(1)) + skipped
                    }
                }
            }
        };
        let mut all = crate::room::with_capacity(self.output);
        all.extend((0..output).map(|i| place(i) as usize));
        all
    }
}

/// The places along each dimension that has some.
pub(crate) fn places_of(axes: &[Axis], dtype: DType) -> Vec<(usize, Vec<usize>)> {
    axes.iter().map(|axis| (axis.dim, axis.places(dtype))).collect()
}

/// A value like another, except for the sizes of some dimensions: what each is, and becomes.
pub(crate) fn resized(
    meta: &Meta,
    sizes: impl Iterator<Item = (usize, [usize; 2])>,
) -> Result<Meta, Refusal> {
    let mut meta = meta.clone();
    for (dim, [from, to]) in sizes {
        if meta.shape.get(dim) != Some(&from) {
            return Err(Refusal::shape(format!("{} has no dimension of {from}", meta.shape)));
        }
        meta.shape.dims_mut()[dim] = to;
    }
    Ok(meta)
}
