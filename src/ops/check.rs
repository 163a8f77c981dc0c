//! Checks that the shape rules of several ops share.

use crate::TensorFuture;
use crate::dtype::DType;
use crate::graph::operation::{Meta, Refusal};
use crate::host::kernels::index::OutOfRange;
use crate::shape::Shape;

/// The dimension that a number names; negative numbers count from the end.
pub(super) fn dim_of(shape: &Shape, dim: isize) -> Result<usize, Refusal> {
    shape
        .dim(dim)
        .ok_or_else(|| Refusal::index(format!("dimension {dim} is out of range for shape {shape}")))
}

/// A dimension of a kernel's view, which was checked when the op was called.
pub(crate) fn checked(dim: isize, rank: usize) -> usize {
    if dim < 0 { (dim + rank as isize) as usize } else { dim as usize }
}

/// Refuses types that are not floating point.
pub(super) fn float(meta: &Meta) -> Result<(), Refusal> {
    match meta.dtype.is_float() {
        true => Ok(()),
        false => Err(Refusal::not_float(meta.dtype)),
    }
}

/// Refuses types that are not index types.
pub(crate) fn indices(meta: &Meta) -> Result<(), Refusal> {
    match meta.dtype {
        DType::I64 | DType::I32 | DType::U8 => Ok(()),
        other => Err(Refusal::dtype(format!("indices are int64, int32 or uint8, not {other}"))),
    }
}

/// An index out of range, as the error of its op.
pub(super) fn out_of_range(error: OutOfRange) -> Refusal {
    Refusal::index(error.to_string())
}

/// The cost of three passes over a row in cache, one of them with an exponential.
pub(super) fn row_cost(meta: &Meta) -> u64 {
    (meta.shape.numel() as u64).saturating_mul(2).saturating_add(100)
}

/// The cost of writing elements into a value. Usually the write is in place, but a large value may
/// have to be copied, which is not a small step.
pub(super) fn put_ns(whole: &Meta, put: &Meta) -> u64 {
    let whole = whole.shape.numel() as u64;
    let copied = if whole > 16 << 10 { whole / 4 } else { 0 };
    copied.saturating_add((put.shape.numel() as u64).saturating_mul(2)).saturating_add(100)
}

/// PyTorch's rule: the index has the same number of dimensions as the value, and none is larger
/// except the indexed one.
pub(super) fn within(index: &Shape, of: &Shape, but: usize) -> Result<(), Refusal> {
    let fits =
        index.rank() == of.rank() && (0..index.rank()).all(|d| d == but || index[d] <= of[d]);
    if fits {
        Ok(())
    } else {
        Err(Refusal::shape(format!("indices of shape {index} for shape {of}")))
    }
}

/// The gradient of a source of which only a part was read: zeros beyond the indices.
pub(super) fn with_zeros_beyond(part: TensorFuture, shape: &Shape) -> TensorFuture {
    let mut full = part;
    for d in 0..shape.rank() {
        let missing = shape[d] - full.dims()[d];
        if missing > 0 {
            let mut sizes = full.shape().clone();
            sizes.dims_mut()[d] = missing;
            let nothing = full.device().zeros_dtype(sizes, full.dtype());
            full = full.followed_by(&nothing, d as isize);
        }
    }
    full
}
