//! How near a result has to be to the exact one, rounded to its type at the end.

use super::*;
use crate::op::Rounds;

/// Where a result need not be the correctly rounded one.
fn rounds(code: Code) -> Rounds {
    match code {
        Code::Unary(op, _) => op.rounds(),
        Code::Binary(op, _, _) => op.rounds(),
        Code::Input(_) | Code::Fill(_) | Code::Arange { .. } | Code::Where(..) | Code::Cast(_) => {
            Rounds::once
        }
        Code::Uniform { .. } | Code::Normal { .. } => Rounds::once,
    }
}

/// A result as a double, rounded as the type rounds; 16-bit types by way of f32, as they are
/// computed.
fn rounded(dtype: DType, x: f64) -> f64 {
    match dtype {
        F64 => x,
        F32 => x as f32 as f64,
        F16 => f16::from_f32(x as f32).to_f64(),
        BF16 => bf16::from_f32(x as f32).to_f64(),
        _ => unreachable!(),
    }
}

/// Whether `got` is the correctly rounded `exact`, or for an elementary function within 3 units of
/// it.
fn agrees(dtype: DType, got: f64, exact: f64, code: Code) -> bool {
    let expected = rounded(dtype, exact);
    if got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()) {
        return true;
    }
    // The smallest step around the result.
    let (bits, smallest) = match dtype {
        F64 => (52, 5e-324),
        F32 => (23, 1.5e-45),
        F16 => (10, 6e-8),
        _ => (7, 1e-40),
    };
    // `silu` is `x * sigmoid(x)` by definition, and the latter loses bits where it is subnormal.
    let smallest = if matches!(code, Code::Unary(UnaryOp::Silu, _)) {
        2e-36f64.max(smallest)
    } else {
        smallest
    };
    let unit = 2f64.powi(-bits);
    let unit = match rounds(code) {
        Rounds::never | Rounds::once => return false,
        Rounds::more => (expected.abs() * unit).max(smallest),
        Rounds::cancels => expected.abs().max(1.0) * unit,
    };
    (got - expected).abs() <= 3.0 * unit
}

pub(super) fn check<T: Element>(
    what: &str,
    got: &Buffer,
    of: &dyn Fn(usize) -> (f64, i128),
    code: Code,
    describe: &dyn Fn(usize) -> String,
) {
    for i in 0..got.numel {
        let (float, int) = of(i);
        let good = match got.dtype {
            Bool => {
                got.get::<bool>()[i] == if T::DTYPE.is_float() { float != 0.0 } else { int != 0 }
            }
            d if d.is_float() => {
                agrees(d, with_dtype!(d, R => got.get::<R>()[i].to_f64()), float, code)
            }
            d => {
                with_dtype!(d, R => got.get::<R>()[i].to_i64() == R::from_i64(int as i64).to_i64())
            }
        };
        let value = with_dtype!(got.dtype, R => format!("{:?}", got.get::<R>()[i]));
        assert!(good, "{what} of {}: {value}, not {float:e} or {int}", describe(i));
    }
}
