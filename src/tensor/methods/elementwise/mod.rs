//! Elementwise ops: the rows of the tables, and the ops composed of them.

/// A method of a row of the table of unary ops: the first where the row is an activation, else the
/// second.
macro_rules! if_activation {
    (relu $is:tt $other:tt) => { if_activation! { $is } };
    (gelu $is:tt $other:tt) => { if_activation! { $is } };
    (gelu_tanh $is:tt $other:tt) => { if_activation! { $is } };
    (silu $is:tt $other:tt) => { if_activation! { $is } };
    (sigmoid $is:tt $other:tt) => { if_activation! { $is } };
    (tanh $is:tt $other:tt) => { if_activation! { $is } };
    (softplus $is:tt $other:tt) => { if_activation! { $is } };
    ($name:ident $is:tt $other:tt) => { if_activation! { $other } };
    ({ $($method:tt)* }) => { $($method)* };
}

// Each in a group of its own: rustfmt sorts within one.
mod unary;

mod binary;

mod activation;
