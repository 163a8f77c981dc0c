//! What a value can be asked: a file a family, in the README's order, which is that of its page.

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

// Reductions.
mod reduce;

mod initial;

mod stats;

// Rows and order.
mod order;

// Shapes and views.
pub(crate) mod views;

pub(crate) mod join;

pub(crate) mod pad;

mod pick;

mod choice;

// Products.
mod products;

pub(crate) mod attention;

pub(crate) mod einsum;

// Convolution, pooling.
pub(crate) mod conv;

pub(crate) mod pool;

pub(crate) mod interpolate;

mod norm;

pub(crate) mod losses;

mod types;
