//! How elements are put at places that are data, or joined with what is there.

/// Runs of an index that are joined by themselves, at most.
const RUNS: usize = 8;
/// Lines that one thread works on side by side, at most: with as many threads' work, runs of the
/// index would only add copies.
const SIDE: usize = 64;
/// Elements of the index from which a run pays for its copies of the places. In unit tests fewer.
const ELEMENTS: usize = if cfg!(all(test, debug_assertions)) { 100 } else { 16 << 10 };

/// How [`scatter_reduce`](crate::TensorFuture::scatter_reduce) combines the existing element with a
/// new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum ScatterMode {
    /// The new element replaces the existing one; of several, the last in the order of the indices.
    Assign,
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The larger; NaN if either is NaN. PyTorch's `"amax"`.
    Max,
    /// The smaller; NaN if either is NaN. PyTorch's `"amin"`.
    Min,
}

impl ScatterMode {
    /// All modes.
    #[allow(dead_code)] // Read by tests and catalogues.
    pub(crate) const ALL: [ScatterMode; 5] = [
        ScatterMode::Assign,
        ScatterMode::Sum,
        ScatterMode::Prod,
        ScatterMode::Max,
        ScatterMode::Min,
    ];
}

/// In how many runs the elements that an index of this shape puts to `size` places of `dim` are
/// joined, before these are joined with what is there. By sizes alone, and on every device, so that
/// a sum has one order.
pub(crate) fn runs(shape: &[usize], dim: usize, size: usize) -> usize {
    let numel = |sizes: &[usize]| sizes.iter().fold(1usize, |n, &size| n.saturating_mul(size));
    let [before, behind] = [&shape[..dim], &shape[dim + 1..]].map(numel);
    if before.saturating_mul(behind.div_ceil(SIDE)) >= RUNS {
        return 1;
    }
    let elements = shape[dim].saturating_mul(before.saturating_mul(behind));
    (shape[dim] / (4 * size.max(1))).min(elements / ELEMENTS).clamp(1, RUNS)
}
