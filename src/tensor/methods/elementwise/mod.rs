//! Elementwise ops: the rows of the tables, and the ops composed of them.

/// A method of a row of the table of unary ops: the first where its page is that of activations,
/// else the second.
macro_rules! on_page {
    (activation { $($method:tt)* } $other:tt) => { $($method)* };
    (elementwise $other:tt { $($method:tt)* }) => { $($method)* };
}

// Each in a group of its own: rustfmt sorts within one.
mod unary;

mod binary;

mod activation;
