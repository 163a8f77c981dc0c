//! The tables of operations: one row an op, each layer expands its own columns.
//!
//! A row is `name: Variant { columns }`. To add an elementwise op or a reduction, add a row to
//! `unary`, `binary` or `reduce`; a row without one of its columns does not compile.
//!
//! | column | what it says | who reads it |
//! |---|---|---|
//! | `doc` | the method's first line | `tensor/methods` |
//! | `page` | the method's place in the documentation | `tensor/methods` |
//! | `class` | element types, and the type of the result: [`Class`] | `graph/infer`, kernels |
//! | `cost` | time of an element: [`Cost`] | `graph/cost` |
//! | `rounds` | how often the result is rounded: [`Rounds`] | `tensor/gradient/table`, tests |
//! | `keepdim`, `everything` | the methods beside the first | `tensor/methods` |
//! | `of_nothing`, `of_no_dims` | what no element, and no dimension, means | `graph/infer` |
//! | `number` | how values see a number beside them: [`Beside`] | `graph/program`, `tensor/build` |
//! | `domain` | operands at which tests look for slopes: [`Domain`] | tests and benches |
//! | `gradient` | what flows back to each operand | `tensor/gradient/table` |
//! | `cpu` | the expression of the host's loops | `host/kernels/elementwise` |
//! | `cuda` | the body of a function template over `T` | `cuda/kernels` |
//!
//! `cuda` computes in `T`, which is float for halves, and calls what `cuda/kernels/device/ops.cuh`
//! defines. A gradient names in parentheses what it reads (`g`, the upstream gradient; `x`, or `a`
//! and `b`, the operands; `y`, the result: nothing else is kept for it), then gives what flows back
//! in the ops themselves, with the helpers of `tensor/gradient/rules`; `[]` is zero everywhere.

// A new row says all of itself.
#![deny(clippy::wildcard_enum_match_arm)]

mod binary;
#[cfg(test)]
pub(crate) mod exact;
mod reduce;
mod scan;
mod unary;

pub(crate) use binary::for_each_binary;
pub(crate) use reduce::for_each_reduce;
#[allow(unused_imports)] // Of programs that have the kernels' sources alone.
pub(crate) use scan::{Scan, for_each_scan};
pub(crate) use unary::for_each_unary;

use crate::dtype::DType;

/// What [`scatter_reduce`](crate::TensorFuture::scatter_reduce) makes of what is there and what
/// comes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScatterMode {
    /// What comes takes the place; of several, the last in the order of the indices.
    Assign,
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The larger; NaN if either is NaN. PyTorch's `"amax"`.
    Max,
    /// The smaller; NaN if either is NaN. PyTorch's `"amin"`.
    Min,
}

impl ScatterMode {
    /// Each of them.
    #[allow(dead_code)] // Read by tests and catalogues.
    pub(crate) const ALL: [ScatterMode; 5] = [
        ScatterMode::Assign,
        ScatterMode::Sum,
        ScatterMode::Prod,
        ScatterMode::Max,
        ScatterMode::Min,
    ];
}

/// Which element types an op takes, and what it makes of them.
///
/// Of unary ops: `float` (integers and bool are computed in float32, as PyTorch does), `number`
/// (keeps the type; bool is refused), `real` (rounding: integers pass unchanged), `test` (the
/// result is bool). Of binary ops: `number` (promoted; bool is refused), `any` (promoted; bool
/// allowed), `float` (integers are computed in float32), `compare` (promoted, the result is bool),
/// `logic` (each operand is taken as `!= 0`, the result is bool), `bits` (integers and bool). Of
/// reductions: `sum` (integers and bool in int64), `float` (floats only), `same` (keeps the type),
/// `test` (the result is bool), `index` (the result is int64).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, non_camel_case_types)]
pub(crate) enum Class {
    number,
    float,
    real,
    test,
    any,
    compare,
    logic,
    bits,
    sum,
    same,
    index,
}

#[allow(dead_code)] // Read by devices and tests.
impl Class {
    /// True where elementwise ops of the class are computed in this type.
    pub fn takes(self, on: DType) -> bool {
        match self {
            Class::float => on.is_float(),
            Class::number | Class::real => on != DType::Bool,
            Class::bits => !on.is_float(),
            Class::logic => on == DType::Bool,
            Class::test | Class::any | Class::compare => true,
            Class::sum | Class::same | Class::index => true,
        }
    }

    /// The type of the result of an elementwise op of the class that is computed in `on`.
    pub fn result(self, on: DType) -> DType {
        match self {
            Class::test | Class::compare | Class::logic => DType::Bool,
            Class::number | Class::float | Class::real | Class::any | Class::bits => on,
            Class::sum | Class::same | Class::index => on,
        }
    }
}

/// How often a result is rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub(crate) enum Rounds {
    /// The result in halves is what it is in float32.
    never,
    /// Correctly.
    once,
    /// A function that may be a few units in the last place off.
    more,
    /// As `more`; a sum whose parts are about 1 and may cancel may be as many units of 1 off.
    cancels,
}

/// What an element costs; `graph/cost` has the picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, non_camel_case_types)]
pub(crate) enum Cost {
    /// A few instructions.
    simple,
    /// A root, or one over something.
    root,
    quotient,
    /// A quotient of which the whole part is taken.
    truncation,
    remainder,
    /// A polynomial.
    function,
    /// A longer one, or several.
    long,
    /// A polynomial in double precision.
    double,
    power,
    /// One more element of a sum and its like.
    fold,
    /// One more element that may be the largest.
    search,
}

/// How values see a number, and halves a 0-d value, beside them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub(crate) enum Beside {
    /// In float32: what computes.
    wide,
    /// Rounded to their type: what compares or divides with a remainder.
    rounded,
    /// As `rounded`, and of an integer type no further than its ends: what limits.
    limit,
}

/// Operands at which an op is smooth and its slopes are moderate.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Domain {
    all,
    positive,
    off_zero,
    /// Between -1 and 1.
    unit,
    above_one,
    /// No two elements alike.
    apart,
    /// A second operand that is larger than the first.
    large_divisor,
}

/// True of a row's gradient that says something.
macro_rules! says {
    ([]) => {
        false
    };
    ([$($gradient:tt)+]) => {
        true
    };
}

/// An enum of a table's rows, with what all tables say of a row.
macro_rules! op_enum {
    ($(#[$doc:meta])* $Enum:ident; $($name:ident: $Variant:ident {
        doc: $text:literal, $class:ident, $cost:ident, $rounds:ident, $domain:ident, $gradient:tt
    })*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub(crate) enum $Enum { $(#[doc = $text] $Variant),* }

        #[allow(dead_code)] // Each table is also read by tests.
        impl $Enum {
            /// Every row, in the order of the table.
            pub const ALL: &'static [$Enum] = &[$($Enum::$Variant),*];
            /// The method's name.
            pub const fn name(self) -> &'static str {
                match self { $($Enum::$Variant => stringify!($name)),* }
            }
            /// The class of element types.
            #[inline]
            pub const fn class(self) -> Class {
                match self { $($Enum::$Variant => Class::$class),* }
            }
            /// What an element costs.
            #[inline]
            pub const fn cost(self) -> Cost {
                match self { $($Enum::$Variant => Cost::$cost),* }
            }
            /// How often the result is rounded.
            pub const fn rounds(self) -> Rounds {
                match self { $($Enum::$Variant => Rounds::$rounds),* }
            }
            /// Operands at which it is smooth.
            pub const fn domain(self) -> Domain {
                match self { $($Enum::$Variant => Domain::$domain),* }
            }
            /// True where its gradient is not zero everywhere.
            pub const fn has_gradient(self) -> bool {
                match self { $($Enum::$Variant => says!($gradient)),* }
            }
        }
    };
}

/// A word of a column as a truth.
macro_rules! is {
    (refused) => {
        true
    };
    (defined) => {
        false
    };
    (itself) => {
        true
    };
    (everything) => {
        false
    };
}

macro_rules! unary_enum {
    ($($name:ident: $Variant:ident {
        doc: $text:literal,
        page: $page:ident, class: $class:ident, cost: $cost:ident, rounds: $rounds:ident,
        domain: $domain:ident,
        gradient: $gradient:tt,
        $($columns:tt)*
    })*) => {
        op_enum! { /** An elementwise op of one operand. */ UnaryOp; $($name: $Variant {
            doc: $text, $class, $cost, $rounds, $domain, $gradient
        })* }
    };
}
macro_rules! binary_enum {
    ($($name:ident: $Variant:ident {
        doc: $text:literal,
        class: $class:ident, cost: $cost:ident, rounds: $rounds:ident, number: $number:ident,
        domain: $domain:ident,
        gradient: $gradient:tt,
        $($columns:tt)*
    })*) => {
        op_enum! { /** An elementwise op of two operands. */ BinaryOp; $($name: $Variant {
            doc: $text, $class, $cost, $rounds, $domain, $gradient
        })* }
        impl BinaryOp {
            /// How values see a number beside them.
            #[inline]
            pub const fn number(self) -> Beside {
                match self { $(BinaryOp::$Variant => Beside::$number),* }
            }
        }
    };
}
macro_rules! reduce_enum {
    ($($name:ident: $Variant:ident {
        doc: $text:literal,
        keepdim: $keepdim:ident, everything: $everything:ident,
        class: $class:ident, cost: $cost:ident, rounds: $rounds:ident, of_nothing: $nothing:ident,
        of_no_dims: $no_dims:ident, domain: $domain:ident,
        gradient: $gradient:tt,
    })*) => {
        op_enum! { /** A reduction over dimensions. */ ReduceOp; $($name: $Variant {
            doc: $text, $class, $cost, $rounds, $domain, $gradient
        })* }
        #[allow(dead_code)]
        impl ReduceOp {
            /// True where there has to be an element.
            pub const fn needs_one(self) -> bool {
                match self { $(ReduceOp::$Variant => is!($nothing)),* }
            }
            /// True where no dimension at all stands for none, and not for all of them.
            pub const fn keeps_no_dims(self) -> bool {
                match self { $(ReduceOp::$Variant => is!($no_dims)),* }
            }
        }
    };
}
for_each_unary!(unary_enum);
for_each_binary!(binary_enum);
for_each_reduce!(reduce_enum);
