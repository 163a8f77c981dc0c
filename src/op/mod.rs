//! The tables of operations: one row per op. Each layer expands its own columns.
//!
//! A row is `name: Variant { columns }`. To add an elementwise op or a reduction, add a row to
//! `unary`, `binary` or `reduce`; a row without one of its columns does not compile.
//!
//! | column | what it says | who reads it |
//! |---|---|---|
//! | `doc` | the method's first line | `tensor/methods` |
//! | `page` | the method's place in the documentation | `tensor/methods` |
//! | `class` | element types, and the type of the result: [`Class`] | `graph/infer`, kernels |
//! | `cost` | time per element: [`Cost`] | `graph/cost` |
//! | `rounds` | how often the result is rounded: [`Rounds`] | `tensor/gradient/table`, tests |
//! | `keepdim`, `everything` | the methods beside the first | `tensor/methods` |
//! | `of_nothing`, `of_no_dims` | what no elements, and no dimensions, mean | `graph/infer` |
//! | `number` | how a number operand is rounded: [`Beside`] | `graph/program`, `tensor/build` |
//! | `domain` | operands at which tests check gradients: [`Domain`] | tests and benches |
//! | `gradient` | the gradient of each operand | `tensor/gradient/table` |
//! | `cpu` | the expression of the host's loops | `host/kernels/elementwise` |
//! | `cuda` | the body of a function template over `T` | `cuda/kernels` |
//!
//! `cuda` computes in `T`, which is float for halves, and calls the functions of
//! `cuda/kernels/device/ops.cuh`. A gradient names in parentheses the values it reads (`g`, the
//! upstream gradient; `x`, or `a` and `b`, the operands; `y`, the result), and only these are kept
//! for it. Its expression is written in the ops themselves, with the helpers of
//! `tensor/gradient/rules`; `[]` is zero everywhere.

// A new row must be handled everywhere.
#![deny(clippy::wildcard_enum_match_arm)]

mod binary;
#[cfg(test)]
pub(crate) mod exact;
mod reduce;
mod scan;
mod scatter;
mod unary;

pub(crate) use binary::for_each_binary;
pub(crate) use reduce::for_each_reduce;
#[allow(unused_imports)] // Of programs that have the kernels' sources alone.
pub(crate) use scan::{Scan, for_each_scan};
#[allow(unused_imports)] // As above.
pub use scatter::ScatterMode;
#[allow(unused_imports)] // As above.
pub(crate) use scatter::runs as scatter_runs;
pub(crate) use unary::for_each_unary;

use crate::dtype::DType;

/// The element types that an op takes, and the type of its result.
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
    /// True if elementwise ops of the class are computed in this type.
    pub fn takes(self, on: DType) -> bool {
        match self {
            _ if on.is_storage() => false,
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

/// How exactly a result is rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub(crate) enum Rounds {
    /// The result in halves equals that in float32.
    never,
    /// Correctly rounded.
    once,
    /// The result may be a few units in the last place off.
    more,
    /// As `more`, but for a sum of terms of about 1 that may cancel: the error is in units of the
    /// last place of 1.
    cancels,
}

/// The cost of an element; `graph/cost` has the picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, non_camel_case_types)]
pub(crate) enum Cost {
    /// A few instructions.
    simple,
    /// A square root or a reciprocal.
    root,
    quotient,
    /// A quotient that is truncated.
    truncation,
    remainder,
    /// A polynomial.
    function,
    /// A longer polynomial, or several.
    long,
    /// A polynomial in double precision.
    double,
    power,
    /// One more element of a sum or a similar reduction.
    fold,
    /// One more element of a search for the largest.
    search,
}

/// How a number operand, or a 0-d operand of halves, is rounded before the op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub(crate) enum Beside {
    /// Taken in float32, for arithmetic.
    wide,
    /// Rounded to the tensor's type, for comparisons and remainders.
    rounded,
    /// As `rounded`, and clamped to the range of an integer type, for limits.
    limit,
}

/// Operands at which an op is smooth and its gradients are moderate.
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
    /// No two elements equal.
    apart,
    /// A second operand that is larger than the first.
    large_divisor,
}

/// True if a row has a gradient.
macro_rules! says {
    ([]) => {
        false
    };
    ([$($gradient:tt)+]) => {
        true
    };
}

/// An enum of a table's rows, with the columns that all tables have.
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
            /// The cost of an element.
            #[inline]
            pub const fn cost(self) -> Cost {
                match self { $($Enum::$Variant => Cost::$cost),* }
            }
            /// How exactly the result is rounded.
            pub const fn rounds(self) -> Rounds {
                match self { $($Enum::$Variant => Rounds::$rounds),* }
            }
            /// Operands at which the op is smooth.
            pub const fn domain(self) -> Domain {
                match self { $($Enum::$Variant => Domain::$domain),* }
            }
            /// True if the gradient is not zero everywhere.
            pub const fn has_gradient(self) -> bool {
                match self { $($Enum::$Variant => says!($gradient)),* }
            }
        }
    };
}

/// A word of a column as a bool.
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
            /// How a number operand is rounded.
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
            /// True if at least one element is required.
            pub const fn needs_one(self) -> bool {
                match self { $(ReduceOp::$Variant => is!($nothing)),* }
            }
            /// True if an empty list of dimensions means none, not all of them.
            pub const fn keeps_no_dims(self) -> bool {
                match self { $(ReduceOp::$Variant => is!($no_dims)),* }
            }
        }
    };
}
for_each_unary!(unary_enum);
for_each_binary!(binary_enum);
for_each_reduce!(reduce_enum);
