//! `rows`: splits a batch's result into one value per request.

use crate::error::{Error, ErrorKind, number_of};
use crate::tensor::build;
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// Splits a batch's result into rows: one value for each index of the first dimension, which is
/// removed. A 0-d value gives no rows. A batch that is known to have failed gives one failed value,
/// whatever its sizes; so does a lack of memory for the rows.
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
        // Not in a closure, which would lose the caller's line.
        rows.push(batch.i(i));
    }
    rows
}
