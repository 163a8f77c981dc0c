//! `nonzero`: where a value is not zero. Its length depends on the data, so it is a read.

use crate::dtype::DType;
use crate::host::kernels::index;
use crate::view::{Parallel, View, ViewMut};
use std::marker::PhantomData;

/// How many elements are not zero, and their indices one after the other in row-major order.
pub(crate) fn nonzero(view: View<'_>, parallel: &dyn Parallel) -> (usize, Vec<i64>) {
    let counts = index::count_nonzero(view, parallel);
    let (rows, rank) = (counts.iter().sum(), view.shape.len());
    let mut found = vec![0i64; rows * rank];
    let shape = [rows, rank];
    let out = ViewMut { ptr: found.as_mut_ptr().cast(), dtype: DType::I64, shape: &shape, life: PhantomData };
    index::nonzero(view, &counts, &out, parallel);
    (rows, found)
}
