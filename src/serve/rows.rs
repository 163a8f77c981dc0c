//! `rows`: a batch's result, a value a request.

use crate::error::{Error, ErrorKind, number_of};
use crate::tensor::build;
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// The rows of a batch's result: one value for each index of the first dimension, without it.
/// Nothing for a value without dimensions. One failed value where the batch is known to have
/// failed, whatever its sizes, and where there is no memory for so many values.
///
/// ```
/// let batch = futensor::Device::cpu().ones([3, 5]);
/// let rows = futensor::serve::rows(&batch);
/// assert_eq!((rows.len(), rows[2].dims()), (3, &[5][..]));
/// ```
#[track_caller]
pub fn rows(batch: &TensorFuture) -> Vec<TensorFuture> {
    let n = batch.dims().first().copied().unwrap_or(0);
    if batch.error().is_some() {
        return vec![batch.clone()];
    }
    let mut rows = Vec::new();
    if rows.try_reserve_exact(n).is_err() {
        let at = build::seen(Location::caller());
        let text = format!("no memory for {}", number_of(n, "value", "values"));
        let error = Error::new(ErrorKind::OutOfMemory, "rows", text, at);
        return vec![build::failed(batch.port(), batch.node.meta.clone(), error, at)];
    }
    for i in 0..n {
        // Not in a closure: the caller's line would be this one.
        rows.push(batch.i(i));
    }
    rows
}
