//! The rows of the op tables as values, each with its method, for tests and benches. Not
//! part of the API.

use super::OperandRef;
use crate::op::{
    BinaryOp, Class, Domain, ReduceOp, UnaryOp, for_each_binary, for_each_reduce, for_each_scan,
    for_each_unary,
};
use crate::sync::plain::OnceLock;
use crate::tensor::build;
use crate::tensor::future::TensorFuture;
use std::collections::HashMap;
use std::panic::Location;

/// The signature of a row's method.
enum Call {
    Unary(fn(&TensorFuture) -> TensorFuture),
    Binary(BinaryOp, fn(&TensorFuture, OperandRef<'_>) -> TensorFuture),
    Reduce(fn(&TensorFuture, Option<&[isize]>, bool) -> TensorFuture),
}

/// A row of the op tables.
pub struct Row {
    /// The method's name.
    pub name: &'static str,
    /// Operands at which the op is smooth.
    pub domain: Domain,
    /// True if the gradient is not zero everywhere.
    pub has_gradient: bool,
    class: Class,
    call: Call,
}

/// A reduction's methods; reductions to positions take one dimension.
macro_rules! reduction {
    (index, $name:ident $keepdim:ident $everything:ident) => {
        |x, dims, keepdim| match dims {
            None => x.$everything(),
            Some(dims) if keepdim => x.$keepdim(dims[0]),
            Some(dims) => x.$name(dims[0]),
        }
    };
    ($several:ident, $name:ident $keepdim:ident $everything:ident) => {
        |x, dims, keepdim| match dims {
            None => x.$everything(),
            Some(dims) if keepdim => x.$keepdim(dims),
            Some(dims) => x.$name(dims),
        }
    };
}

macro_rules! unary_rows {
    ($($name:ident: $Variant:ident { $($columns:tt)* })*) => {
        fn unary() -> Vec<Row> {
            vec![$(Row::new(
                stringify!($name),
                UnaryOp::$Variant.domain(),
                UnaryOp::$Variant.has_gradient(),
                UnaryOp::$Variant.class(),
                Call::Unary(|x| x.$name()),
            )),*]
        }
    };
}
macro_rules! binary_rows {
    ($($name:ident: $Variant:ident { $($columns:tt)* })*) => {
        fn binary() -> Vec<Row> {
            vec![$(Row::new(
                stringify!($name),
                BinaryOp::$Variant.domain(),
                BinaryOp::$Variant.has_gradient(),
                BinaryOp::$Variant.class(),
                Call::Binary(BinaryOp::$Variant, |a, b| a.$name(b)),
            )),*]
        }
    };
}
macro_rules! reduce_rows {
    ($($name:ident: $Variant:ident {
        doc: $text:literal,
        keepdim: $keepdim:ident, everything: $everything:ident,
        class: $class:ident, $($columns:tt)*
    })*) => {
        fn reductions() -> Vec<Row> {
            vec![$(Row::new(
                stringify!($name),
                ReduceOp::$Variant.domain(),
                ReduceOp::$Variant.has_gradient(),
                ReduceOp::$Variant.class(),
                Call::Reduce(reduction!($class, $name $keepdim $everything)),
            )),*]
        }
    };
}
for_each_unary!(unary_rows);
for_each_binary!(binary_rows);
for_each_reduce!(reduce_rows);

/// A row of the table of scans: its method's name, and its values along a dimension.
pub type ScanRow = (&'static str, fn(&TensorFuture, isize) -> Vec<TensorFuture>);

/// The result of a scan's method: values, or values and their positions.
trait Scanned {
    fn values(self) -> Vec<TensorFuture>;
}
impl Scanned for TensorFuture {
    fn values(self) -> Vec<TensorFuture> {
        vec![self]
    }
}
impl Scanned for (TensorFuture, TensorFuture) {
    fn values(self) -> Vec<TensorFuture> {
        vec![self.0, self.1]
    }
}

macro_rules! scan_rows {
    ($($name:ident: $Variant:ident { $($columns:tt)* })*) => {
        /// Every row of the table of scans.
        pub fn scans() -> Vec<ScanRow> {
            vec![$((stringify!($name), |x, dim| x.$name(dim).values())),*]
        }
    };
}
for_each_scan!(scan_rows);

/// Every row, in the order of the tables.
pub fn all() -> Vec<Row> {
    [unary(), binary(), reductions()].into_iter().flatten().collect()
}

/// The row of this name.
pub fn find(name: &str) -> Option<&'static Row> {
    static BY_NAME: OnceLock<HashMap<&str, Row>> = OnceLock::new();
    BY_NAME.get_or_init(|| all().into_iter().map(|row| (row.name, row)).collect()).get(name)
}

impl Row {
    fn new(
        name: &'static str,
        domain: Domain,
        has_gradient: bool,
        class: Class,
        call: Call,
    ) -> Row {
        Row { name, domain, has_gradient, class, call }
    }

    /// The number of operands; a reduction has one.
    pub fn operands(&self) -> usize {
        if matches!(self.call, Call::Binary(..)) { 2 } else { 1 }
    }

    /// True for a row of the table of reductions.
    pub fn is_reduction(&self) -> bool {
        matches!(self.call, Call::Reduce(_))
    }

    /// True for a reduction to positions, which takes one dimension.
    pub fn is_positions(&self) -> bool {
        self.class == Class::index
    }

    /// True if integers are computed in floating point.
    pub fn is_float(&self) -> bool {
        self.class == Class::float
    }

    /// True if the results are numbers, not truth values, bits or positions.
    pub fn gives_numbers(&self) -> bool {
        match self.class {
            Class::number | Class::float | Class::real | Class::any => true,
            Class::sum | Class::same => true,
            Class::test | Class::compare | Class::logic | Class::bits | Class::index => false,
        }
    }

    /// Calls the method on these operands, of which one may be a number; `None` for a wrong number
    /// of operands, and for a reduction.
    pub fn call(&self, operands: &[OperandRef<'_>]) -> Option<TensorFuture> {
        use OperandRef::{Scalar, Tensor};
        match (&self.call, operands) {
            (Call::Unary(call), [Tensor(x)]) => Some(call(x)),
            (Call::Binary(_, call), [Tensor(a), b]) => Some(call(a, *b)),
            (Call::Binary(op, _), [Scalar(a), Tensor(b)]) => {
                Some(build::ask_with_scalar(*op, b, *a, true, Location::caller()).go())
            }
            (Call::Unary(_) | Call::Binary(..) | Call::Reduce(_), _) => None,
        }
    }

    /// Calls a reduction over these dimensions, or all; `None` if the row is not a reduction.
    pub fn reduce(
        &self,
        x: &TensorFuture,
        dims: Option<&[isize]>,
        keepdim: bool,
    ) -> Option<TensorFuture> {
        match &self.call {
            Call::Reduce(call) => Some(call(x, dims, keepdim)),
            Call::Unary(_) | Call::Binary(..) => None,
        }
    }
}
