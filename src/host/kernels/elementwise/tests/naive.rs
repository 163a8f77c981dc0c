//! The naive evaluator: one element, in f64 or i128, rounded to its type at the end.

use super::*;

fn sigmoid(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

/// The exact value of a unary float op.
pub(super) fn unary_f64(op: UnaryOp, x: f64) -> f64 {
    use UnaryOp::*;
    match op {
        Neg => -x,
        Abs => x.abs(),
        Sign => {
            if x == 0.0 || x.is_nan() {
                0.0
            } else {
                x.signum()
            }
        }
        Square => x * x,
        Relu => {
            if x.is_nan() || x > 0.0 {
                x
            } else {
                0.0
            }
        }
        Sqrt => x.sqrt(),
        Rsqrt => 1.0 / x.sqrt(),
        Recip => 1.0 / x,
        Exp => x.exp(),
        Exp2 => x.exp2(),
        Expm1 => x.exp_m1(),
        Log => x.ln(),
        Log2 => x.log2(),
        Log10 => x.log10(),
        Log1p => x.ln_1p(),
        Sin => x.sin(),
        Cos => x.cos(),
        Tan => x.tan(),
        Asin => x.asin(),
        Acos => x.acos(),
        Atan => x.atan(),
        Sinh => x.sinh(),
        Cosh => x.cosh(),
        Asinh => libm::asinh(x),
        Acosh if x < 1.0 => f64::NAN,
        Acosh => libm::acosh(x),
        Atanh => libm::atanh(x),
        Tanh => x.tanh(),
        Sigmoid => sigmoid(x),
        Silu => x * sigmoid(x),
        Softplus => {
            if x > 20.0 {
                x
            } else {
                x.exp().ln_1p()
            }
        }
        Gelu => x * (0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)),
        GeluTanh => {
            x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x))
        }
        Erf => libm::erf(x),
        Floor => x.floor(),
        Ceil => x.ceil(),
        Round => x.round_ties_even(),
        Trunc => x.trunc(),
        IsNan => x.is_nan() as u8 as f64,
        IsInf => x.is_infinite() as u8 as f64,
        IsFinite => x.is_finite() as u8 as f64,
        LogicalNot => (x == 0.0) as u8 as f64,
    }
}

pub(super) fn unary_i128(op: UnaryOp, x: i128) -> i128 {
    use UnaryOp::*;
    match op {
        Neg => -x,
        Abs => x.abs(),
        Sign => x.signum(),
        Square => x * x,
        Relu => x.max(0),
        Floor | Ceil | Round | Trunc => x,
        IsNan | IsInf => 0,
        IsFinite => 1,
        LogicalNot => (x == 0) as i128,
        _ => unreachable!(),
    }
}

/// `floor_divide` and `trunc_divide` of floats, which are what their own steps make of them, in
/// single precision or double.
pub(super) fn whole_quotient(op: BinaryOp, single: bool, a: f64, b: f64) -> f64 {
    let round = |x: f64| if single { x as f32 as f64 } else { x };
    let (q, r) = (round(a / b), a % b);
    match op {
        BinaryOp::TruncDivide => q.trunc(),
        _ if b == 0.0 => q,
        _ => {
            let whole = round(round(a - r) / b);
            let whole = if r != 0.0 && (r < 0.0) != (b < 0.0) { round(whole - 1.0) } else { whole };
            match whole - whole.floor() > 0.5 {
                _ if whole == 0.0 => 0f64.copysign(q),
                above => round(whole.floor() + above as u8 as f64),
            }
        }
    }
}

pub(super) fn binary_f64(op: BinaryOp, a: f64, b: f64) -> f64 {
    use BinaryOp::*;
    let truth = |t: bool| t as u8 as f64;
    match op {
        Add => a + b,
        Sub => a - b,
        Mul => a * b,
        Div => a / b,
        Pow => a.powf(b),
        Maximum => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else if a > b {
                a
            } else {
                b
            }
        }
        Minimum => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else if a < b {
                a
            } else {
                b
            }
        }
        Atan2 => a.atan2(b),
        Fmod => a % b,
        Remainder => {
            let r = a % b;
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        }
        FloorDivide | TruncDivide => unreachable!("see `whole_quotient`"),
        Eq => truth(a == b),
        Ne => truth(a != b),
        Lt => truth(a < b),
        Le => truth(a <= b),
        Gt => truth(a > b),
        Ge => truth(a >= b),
        LogicalAnd => truth(a != 0.0 && b != 0.0),
        LogicalOr => truth(a != 0.0 || b != 0.0),
        LogicalXor => truth((a != 0.0) != (b != 0.0)),
        BitwiseAnd | BitwiseOr | BitwiseXor => unreachable!(),
    }
}

/// On integers; results wrap when they are stored. `bool` is computed here as well, as 0 and 1.
pub(super) fn binary_i128(op: BinaryOp, a: i128, b: i128) -> i128 {
    use BinaryOp::*;
    match op {
        Add => a + b,
        Sub => a - b,
        Mul => a * b,
        Pow if b < 0 => match a {
            1 => 1,
            -1 => {
                if b % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            _ => 0,
        },
        Pow => {
            // Modulo 2^64, of which every narrower integer is a remainder.
            let square = |x: u64| x.wrapping_mul(x);
            let base = a as u64;
            (0..64).rev().fold(1u64, |x, bit| {
                square(x).wrapping_mul(if b >> bit & 1 == 1 { base } else { 1 })
            }) as i128
        }
        Maximum => a.max(b),
        Minimum => a.min(b),
        Fmod => {
            if b == 0 {
                0
            } else {
                a % b
            }
        }
        Remainder => {
            if b == 0 {
                0
            } else {
                ((a % b) + b) % b
            }
        }
        FloorDivide => {
            if b == 0 {
                0
            } else {
                a / b - (a % b != 0 && (a < 0) != (b < 0)) as i128
            }
        }
        TruncDivide => {
            if b == 0 {
                0
            } else {
                a / b
            }
        }
        Eq => (a == b) as i128,
        Ne => (a != b) as i128,
        Lt => (a < b) as i128,
        Le => (a <= b) as i128,
        Gt => (a > b) as i128,
        Ge => (a >= b) as i128,
        LogicalAnd => (a != 0 && b != 0) as i128,
        LogicalOr => (a != 0 || b != 0) as i128,
        LogicalXor => ((a != 0) != (b != 0)) as i128,
        BitwiseAnd => a & b,
        BitwiseOr => a | b,
        BitwiseXor => a ^ b,
        Div | Atan2 => unreachable!(),
    }
}

/// Where a result need not be the correctly rounded one.
fn is_elementary(code: Code) -> bool {
    use UnaryOp::*;
    match code {
        Code::Unary(op, _) => op.class() == Class::float && op != Sqrt && op != Recip,
        Code::Binary(op, _, _) => matches!(op, BinaryOp::Pow | BinaryOp::Atan2),
        _ => false,
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
    let unit = (expected.abs() * 2f64.powi(-bits)).max(smallest);
    is_elementary(code) && (got - expected).abs() <= 3.0 * unit
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
