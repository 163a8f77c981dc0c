//! Elementwise ops: the rows of the tables, and the ops composed of them.

/// Selects for a row of the table of unary ops: the first argument if the row is an activation,
/// otherwise the second.
macro_rules! on_page {
    (activation { $($method:tt)* } $other:tt) => { $($method)* };
    (elementwise $other:tt { $($method:tt)* }) => { $($method)* };
}

// Blank lines keep the order: rustfmt sorts adjacent lines.
mod unary;

mod binary;

mod mixed;

mod activation;
