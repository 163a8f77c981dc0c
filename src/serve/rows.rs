//! `rows`: a batch's result, a value a request.

use crate::tensor::future::TensorFuture;

/// The rows of a batch's result: one value for each index of the first dimension, without it.
/// Nothing for a value without dimensions, or the value itself where it has failed, so that its
/// error is not lost.
///
/// ```
/// let batch = futensor::Device::cpu().ones([3, 5]);
/// let rows = futensor::serve::rows(&batch);
/// assert_eq!((rows.len(), rows[2].dims()), (3, &[5][..]));
/// ```
#[track_caller]
pub fn rows(batch: &TensorFuture) -> Vec<TensorFuture> {
    let n = batch.dims().first().copied().unwrap_or(0);
    if n == 0 && batch.error().is_some() {
        return vec![batch.clone()];
    }
    let mut rows = Vec::with_capacity(n);
    for i in 0..n {
        // Not in a closure: the caller's line would be this one.
        rows.push(batch.i(i));
    }
    rows
}
