//! `nonzero`: the indices of nonzero elements. Its length depends on the data, so it is a read.

use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::graph::operation::Refusal;
use crate::host::kernels::index;
use crate::memory;
use crate::shape::{Shape, numel};
use crate::view::{Parallel, View, ViewMut};
use std::marker::PhantomData;

/// The number of nonzero elements, and their indices one after the other in row-major order.
pub(crate) fn nonzero(
    view: View<'_>,
    parallel: &dyn Parallel,
) -> Result<(usize, Vec<i64>), Refusal> {
    let none = || Refusal {
        kind: ErrorKind::OutOfMemory,
        message: format!("out of memory on the host: the positions of {}", Shape::from(view.shape)),
    };
    let counts = index::count_nonzero(view, parallel).ok_or_else(none)?;
    let (rows, rank) = (counts.iter().sum(), view.shape.len());
    let shape = [rows, rank];
    let mut found = memory::zeros::<i64>(numel(&shape)).ok_or_else(none)?;
    let out = ViewMut {
        ptr: found.as_mut_ptr().cast(),
        dtype: DType::I64,
        shape: &shape,
        life: PhantomData,
    };
    index::nonzero(view, &counts, &out, parallel);
    Ok((rows, found))
}
