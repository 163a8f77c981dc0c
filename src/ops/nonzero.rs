//! `nonzero`: where a value is not zero. Its length depends on the data, so it is a read.

use crate::dtype::{Element, with_dtype};
use crate::view::{Parallel, View};

/// Indices of the elements that are not zero, one after the other in row-major order; for a 0-d value,
/// one number where it is not zero.
pub(crate) fn nonzero(view: View<'_>, _: &dyn Parallel) -> Vec<i64> {
    with_dtype!(view.dtype, T => of::<T>(view))
}

fn of<T: Element>(view: View<'_>) -> Vec<i64> {
    let values = view.to_vec::<T>().unwrap_or_default();
    let mut found = Vec::new();
    let mut index = vec![0i64; view.shape.len()];
    for x in values {
        if x != T::default() {
            if index.is_empty() { found.push(0) } else { found.extend_from_slice(&index) }
        }
        for d in (0..index.len()).rev() {
            index[d] += 1;
            if (index[d] as usize) < view.shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
    found
}
