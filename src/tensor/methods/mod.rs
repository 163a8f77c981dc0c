//! The methods of `TensorFuture`: a folder for each family of ops, in the order of the table of
//! ops, which is also the order of the rustdoc page.

mod aliases;

// Blank lines keep the order: rustfmt sorts adjacent lines.
mod likes;

mod elementwise;

pub(crate) mod reduce;

pub(crate) mod order;

pub(crate) mod shaping;

pub(crate) mod index;

pub(crate) mod products;

pub(crate) mod attention;

pub(crate) mod windows;

pub(crate) mod rows;

mod types;
