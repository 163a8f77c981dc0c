//! What each op of the tables of elementwise ops is, in f64 and in integers that do not overflow:
//! the host's loops and the CUDA kernels are compared with it.

#![deny(clippy::wildcard_enum_match_arm)]

use crate::op::{BinaryOp, UnaryOp};

fn sigmoid(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

/// By Newton's method, from where the logarithm of `erfc` is nearly a parabola.
fn erfinv(x: f64) -> f64 {
    let away = x.abs();
    if away.is_nan() || away > 1.0 {
        return f64::NAN;
    }
    if away == 1.0 {
        return f64::INFINITY.copysign(x);
    }
    let mut y = if away < 0.5 { away } else { (-(1.0 - away).ln()).sqrt() };
    for _ in 0..60 {
        // Near 1 the error function has no digits left, and its complement has.
        let over = match away < 0.5 {
            true => libm::erf(y) - away,
            false => (1.0 - away) - libm::erfc(y),
        };
        y -= over / (std::f64::consts::FRAC_2_SQRT_PI * (-y * y).exp());
    }
    y.copysign(x)
}

/// By the recurrence, far up, and the series there.
fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        if x == x.floor() {
            return f64::NAN;
        }
        let turn = std::f64::consts::PI * (x - x.trunc());
        return digamma(1.0 - x) - std::f64::consts::PI / turn.tan();
    }
    if x == f64::INFINITY {
        return x;
    }
    let mut terms = Vec::new();
    let mut y = x;
    while y < 20.0 {
        terms.push(-1.0 / y);
        y += 1.0;
    }
    let s = 1.0 / (y * y);
    let more = 1.0 / 240.0 - s * (1.0 / 132.0 - s * (691.0 / 32760.0 - s / 12.0));
    terms.push(-s * (1.0 / 12.0 - s * (1.0 / 120.0 - s * (1.0 / 252.0 - s * more))));
    terms.extend([-0.5 / y, y.ln()]);
    // Neumaier's sum: what an addition rounds away is added at the end.
    let (mut sum, mut lost) = (0.0f64, 0.0);
    for term in terms {
        let next = sum + term;
        let (large, small) = if sum.abs() >= term.abs() { (sum, term) } else { (term, sum) };
        lost += (large - next) + small;
        sum = next;
    }
    sum + lost
}

/// The exact value, of which a float result is the rounding.
pub(crate) fn exact_unary(op: UnaryOp, x: f64) -> f64 {
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
        Hardswish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Erf => libm::erf(x),
        ErfInv => erfinv(x),
        Lgamma => libm::lgamma(x),
        Digamma => digamma(x),
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

/// The value as an integer, before it wraps to its type.
pub(crate) fn whole_unary(op: UnaryOp, x: i128) -> i128 {
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
        Sqrt | Rsqrt | Recip | Exp | Exp2 | Expm1 | Log | Log2 | Log10 | Log1p | Sin | Cos
        | Tan | Asin | Acos | Atan | Sinh | Cosh | Tanh | Asinh | Acosh | Atanh | Sigmoid
        | Silu | Softplus | Gelu | GeluTanh | Hardswish | Erf | ErfInv | Lgamma | Digamma => {
            unreachable!("{op:?} of an integer")
        }
    }
}

/// `floor_divide` and `trunc_divide` of floats, which are what their own steps make of them, in
/// single precision or double.
pub(crate) fn whole_quotient(op: BinaryOp, single: bool, a: f64, b: f64) -> f64 {
    let round = |x: f64| if single { x as f32 as f64 } else { x };
    let (q, r) = (round(a / b), a % b);
    if op == BinaryOp::TruncDivide {
        return q.trunc();
    }
    if b == 0.0 {
        return q;
    }
    let whole = round(round(a - r) / b);
    let whole = if r != 0.0 && (r < 0.0) != (b < 0.0) { round(whole - 1.0) } else { whole };
    if whole == 0.0 {
        return 0f64.copysign(q);
    }
    round(whole.floor() + (whole - whole.floor() > 0.5) as u8 as f64)
}

/// The exact value of an op of two floats.
pub(crate) fn exact_binary(op: BinaryOp, a: f64, b: f64) -> f64 {
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
        LeakyRelu if a > 0.0 => a,
        LeakyRelu => a * b,
        Atan2 => a.atan2(b),
        Hypot => a.hypot(b),
        Xlogy if a == 0.0 && !b.is_nan() => 0.0,
        Xlogy => a * b.ln(),
        LogAddExp if a == b => a + std::f64::consts::LN_2,
        LogAddExp if a.is_nan() || b.is_nan() => f64::NAN,
        LogAddExp => a.max(b) + (-(a - b).abs()).exp().ln_1p(),
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
        BitwiseAnd | BitwiseOr | BitwiseXor => unreachable!("{op:?} of floats"),
    }
}

/// On integers; results wrap when they are stored. `bool` is computed here as well, as 0 and 1.
pub(crate) fn whole_binary(op: BinaryOp, a: i128, b: i128) -> i128 {
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
        Div | LeakyRelu | Atan2 | LogAddExp | Hypot | Xlogy => unreachable!("{op:?} of integers"),
    }
}
