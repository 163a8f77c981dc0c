//! Picking and placing elements by their indices.

mod pick;

pub(crate) mod place;

mod masks;

mod choice;
