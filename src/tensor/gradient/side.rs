//! An operand of a binary op as its gradient sees it: a value, or a number, which has no gradient
//! and is not kept. So one gradient rule serves both kinds of operands.

use super::backward::Backward;
use crate::dtype::Scalar;
use crate::tensor::future::TensorFuture;
use crate::tensor::operand::{Operand, OperandRef, sealed};

/// The number of an op that has one, and whether it is the left operand.
pub(super) type Number = Option<(Scalar, bool)>;

pub(super) enum Side {
    Value(TensorFuture),
    Number(Scalar),
}

impl sealed::Sealed for Side {}
impl Operand for Side {
    fn operand(&self) -> OperandRef<'_> {
        match self {
            Side::Value(x) => OperandRef::Tensor(x),
            Side::Number(s) => OperandRef::Scalar(*s),
        }
    }
}
impl sealed::Sealed for &Side {}
impl Operand for &Side {
    fn operand(&self) -> OperandRef<'_> {
        (**self).operand()
    }
}

impl Side {
    /// Operand `i` of an op. An integer beside a float is the float that the op made of it: its own
    /// arithmetic would wrap.
    pub fn of(call: &Backward<'_>, number: Number, i: usize) -> Side {
        match (Side::place(number, i), number) {
            (Some(place), _) => {
                let (x, dtype) = (call.input(place), call.upstream().dtype());
                Side::Value(if x.dtype().is_float() { x.clone() } else { x.to_dtype(dtype) })
            }
            (None, Some((s, _))) => Side::Number(s),
            (None, None) => unreachable!("both operands are values"),
        }
    }

    /// The position of operand `i` among the values; `None` for a number.
    pub fn place(number: Number, i: usize) -> Option<usize> {
        match number {
            None => Some(i),
            Some((_, left)) if left == (i == 0) => None,
            Some(_) => Some(0),
        }
    }

    pub fn square(&self) -> Side {
        match self {
            Side::Value(x) => Side::Value(x.square()),
            Side::Number(s) => Side::Number(Scalar::Float(s.as_f64() * s.as_f64())),
        }
    }

    pub fn add(&self, b: impl Operand) -> TensorFuture {
        match self {
            Side::Value(x) => x.add(b),
            Side::Number(s) => *s + value(&b),
        }
    }

    pub fn sub(&self, b: impl Operand) -> TensorFuture {
        match self {
            Side::Value(x) => x.sub(b),
            Side::Number(s) => *s - value(&b),
        }
    }

    pub fn floor_divide(&self, b: impl Operand) -> TensorFuture {
        match self {
            Side::Value(x) => x.floor_divide(b),
            Side::Number(s) => s.floor_divide(value(&b)),
        }
    }
}

/// The operand beside a number.
fn value(b: &impl Operand) -> &TensorFuture {
    match b.operand() {
        OperandRef::Tensor(x) => x,
        OperandRef::Scalar(_) => unreachable!("one operand is a value"),
    }
}
