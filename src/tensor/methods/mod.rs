//! The methods of a value: a folder for each family of ops, in the order of the op table,
//! which is that of the page of `TensorFuture`.

// Each in a group of its own: rustfmt sorts within one.
mod elementwise;

mod reduce;

mod order;

pub(crate) mod shaping;

mod index;

pub(crate) mod products;

pub(crate) mod attention;

pub(crate) mod windows;

pub(crate) mod rows;

mod types;
