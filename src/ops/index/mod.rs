//! Picking and placing elements by their indices.

pub(crate) mod classes;
pub(crate) mod embedding;
pub(crate) mod gather;
pub(crate) mod index_copy;
pub(crate) mod index_select;
pub(crate) mod nonzero;
pub(crate) mod one_hot;
pub(crate) mod scatter;
pub(crate) mod scatter_add;
pub(crate) mod top_p;
