//! Shape and type rules of the table's ops, as PyTorch has them. Pure.

// A new class says what types it takes.
#![deny(clippy::wildcard_enum_match_arm)]

use super::operation::{Meta, Refusal};
use crate::dtype::{DType, Scalar};
use crate::op::{BinaryOp, Class, ReduceOp, UnaryOp};
use crate::shape::Shape;

/// The type that an op is computed in, and the type of its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Types {
    pub on: DType,
    pub out: DType,
}

fn no_bool(dtype: DType) -> Result<DType, Refusal> {
    if dtype == DType::Bool {
        return Err(Refusal::dtype("not defined on bool"));
    }
    Ok(dtype)
}

pub(crate) fn unary(op: UnaryOp, dtype: DType) -> Result<Types, Refusal> {
    let same = |t| Types { on: t, out: t };
    Ok(match op.class() {
        Class::float if dtype.is_float() => same(dtype),
        _ if dtype.is_storage() => return Err(Refusal::storage(dtype)),
        Class::float => same(DType::F32),
        Class::test => Types { on: dtype, out: DType::Bool },
        Class::number | Class::real => same(no_bool(dtype)?),
        // Of other tables.
        Class::any | Class::compare | Class::logic | Class::bits => same(no_bool(dtype)?),
        Class::sum | Class::same | Class::index => same(no_bool(dtype)?),
    })
}

#[inline]
fn joined(op: BinaryOp, promoted: DType) -> Result<Types, Refusal> {
    let same = |t| Types { on: t, out: t };
    Ok(match op.class() {
        // Most ops.
        Class::number | Class::float | Class::any if promoted.is_float() => same(promoted),
        _ if promoted.is_storage() => return Err(Refusal::storage(promoted)),
        Class::float => same(DType::F32),
        Class::compare => Types { on: promoted, out: DType::Bool },
        Class::logic => same(DType::Bool),
        Class::bits if promoted.is_float() => {
            return Err(Refusal::dtype(format!("not defined on {promoted}")));
        }
        Class::bits | Class::any => same(promoted),
        Class::number => same(no_bool(promoted)?),
        // Of other tables.
        Class::real | Class::test | Class::sum | Class::same | Class::index => {
            same(no_bool(promoted)?)
        }
    })
}

/// Each operand as type and rank: a 0-d tensor counts less than one with dimensions.
pub(crate) fn binary(op: BinaryOp, a: (DType, usize), b: (DType, usize)) -> Result<Types, Refusal> {
    joined(op, if a.0 == b.0 { a.0 } else { a.0.promote_ranked(a.1, b.0, b.1) })
}

#[inline]
pub(crate) fn with_scalar(op: BinaryOp, dtype: DType, scalar: Scalar) -> Result<Types, Refusal> {
    // Most ops: beside floats every number is one of their type.
    if dtype.is_float() && matches!(op.class(), Class::number | Class::float | Class::any) {
        return Ok(Types { on: dtype, out: dtype });
    }
    beside_any(op, dtype, scalar)
}

fn beside_any(op: BinaryOp, dtype: DType, scalar: Scalar) -> Result<Types, Refusal> {
    let types = joined(op, dtype.promote_scalar(scalar))?;
    // A number that the integer type cannot hold is compared as it is, and not truncated.
    let whole = matches!(scalar, Scalar::Int(_));
    if whole && op.class() == Class::compare && scalar.limited_to(types.on) != scalar {
        return Ok(Types { on: DType::I64, ..types });
    }
    Ok(types)
}

/// The type of a choice between two values. One for storage is chosen from beside its like alone.
pub(crate) fn chosen(a: (DType, usize), b: (DType, usize)) -> Result<DType, Refusal> {
    let promoted = a.0.promote_ranked(a.1, b.0, b.1);
    match promoted.is_storage() && a.0 != b.0 {
        true => Err(Refusal::storage(promoted)),
        false => Ok(promoted),
    }
}

pub(crate) fn broadcast(a: &Shape, b: &Shape) -> Result<Shape, Refusal> {
    a.broadcast(b).ok_or_else(|| Refusal::shape(format!("cannot broadcast {a} with {b}")))
}

/// Result of a reduction of `meta` over `dims`.
pub(crate) fn reduce(
    op: ReduceOp,
    meta: &Meta,
    dims: &[bool],
    keepdim: bool,
) -> Result<Meta, Refusal> {
    let shape: Shape = (meta.shape.iter().zip(dims))
        .filter_map(|(&n, &gone)| if gone { keepdim.then_some(1) } else { Some(n) })
        .collect();
    let dtype = match op.class() {
        _ if meta.dtype.is_storage() => return Err(Refusal::storage(meta.dtype)),
        Class::sum if !meta.dtype.is_float() => DType::I64,
        Class::float if !meta.dtype.is_float() => return Err(Refusal::not_float(meta.dtype)),
        Class::test => DType::Bool,
        Class::index if meta.dtype == DType::Bool => {
            return Err(Refusal::dtype("not defined on bool"));
        }
        Class::index => DType::I64,
        Class::sum | Class::float | Class::same => meta.dtype,
        // Of other tables.
        Class::number | Class::real | Class::any | Class::compare => meta.dtype,
        Class::logic | Class::bits => meta.dtype,
    };
    let over_nothing = meta.shape.iter().zip(dims).any(|(&n, &gone)| gone && n == 0);
    if over_nothing && op.needs_one() && (shape.numel() > 0 || dims.iter().all(|&gone| gone)) {
        return Err(Refusal::shape(format!("nothing to choose from in shape {}", meta.shape)));
    }
    Ok(Meta { shape, dtype })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_follow_the_class() {
        use DType::*;
        assert_eq!(unary(UnaryOp::Exp, I64).unwrap(), Types { on: F32, out: F32 });
        assert!(unary(UnaryOp::Neg, Bool).is_err());
        assert_eq!(binary(BinaryOp::Div, (I32, 1), (U8, 1)).unwrap().out, F32);
        assert_eq!(binary(BinaryOp::Lt, (I32, 1), (F16, 1)).unwrap(), Types { on: F16, out: Bool });
        assert!(binary(BinaryOp::BitwiseAnd, (F32, 0), (I32, 1)).is_err());
        assert_eq!(with_scalar(BinaryOp::Add, U8, Scalar::Int(300)).unwrap().out, U8);
        assert_eq!(
            with_scalar(BinaryOp::Lt, U8, Scalar::Int(300)).unwrap(),
            Types { on: I64, out: Bool }
        );
        assert_eq!(
            with_scalar(BinaryOp::Lt, U8, Scalar::Int(255)).unwrap(),
            Types { on: U8, out: Bool }
        );
    }

    /// Whatever stands beside it, and also a 0-d value, which counts less.
    #[test]
    fn a_type_for_storage_is_refused_by_every_row() {
        use DType::*;
        for s in DType::STORAGE {
            let refused = |what: &str, refusal: Option<Refusal>| {
                let text = refusal.unwrap_or_else(|| panic!("{what} takes {s}")).message;
                assert!(text.starts_with(s.name()) && text.ends_with("to_dtype"), "{what}: {text}");
            };
            for op in UnaryOp::ALL {
                refused(op.name(), unary(*op, s).err());
            }
            for op in BinaryOp::ALL {
                for other in [(s, 1), (F32, 0), (I64, 1), (Bool, 0), (F64, 2)] {
                    for rank in [0, 1] {
                        refused(op.name(), binary(*op, (s, rank), other).err());
                        refused(op.name(), binary(*op, other, (s, rank)).err());
                    }
                }
                for number in [Scalar::Int(1), Scalar::Float(0.5), Scalar::Bool(true)] {
                    refused(op.name(), with_scalar(*op, s, number).err());
                }
            }
            for op in ReduceOp::ALL {
                let x = Meta::new([2], s);
                refused(op.name(), reduce(*op, &x, &[true], false).err());
            }
        }
    }

    #[test]
    fn max_of_nothing_is_refused_and_sum_of_nothing_is_not() {
        let empty = Meta::new([2, 0], DType::F32);
        assert!(reduce(ReduceOp::Max, &empty, &[false, true], false).is_err());
        assert_eq!(
            reduce(ReduceOp::Sum, &empty, &[false, true], true).unwrap().shape,
            [2, 1].into()
        );
        assert!(reduce(ReduceOp::Max, &empty, &[true, false], false).is_ok());
    }
}
