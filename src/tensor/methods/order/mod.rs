//! Order along a dimension: running sums and products, sorting.

mod scan;

mod sort;

pub(crate) mod middle;
