//! The table of elementwise ops of one operand: one row per op. [`op`](super) describes the
//! columns.

/// Rows of unary ops: `name: Variant { columns }`.
///
/// In `cpu`, `x` is of a type that implements the kernels' `Real` (f32 or f64) for the class
/// `float`, and `Number` (also the integers) for `number`. A gradient reads `g`, `x` and `y`. A
/// second gradient, for `halves`, gets its operands in float32 and keeps the digits of small slopes
/// that are lost in the rounded result, or in differences of the first gradient: bfloat16 has
/// numbers as small as float32.
macro_rules! for_each_unary {
    ($callback:ident) => {
        $callback! {
            neg: Neg {
                doc: "`-x`; integers wrap.",
                page: elementwise, class: number, cost: simple, rounds: never, domain: all,
                gradient: [(g) g.neg()],
                cpu: |x| x.neg(),
                cuda: "neg(x)",
            }
            abs: Abs {
                doc: "`|x|`; the smallest integer is unchanged.",
                page: elementwise, class: number, cost: simple, rounds: never, domain: off_zero,
                gradient: [(g x) g.mul(x.sign())],
                cpu: |x| x.abs(),
                cuda: "abs(x)",
            }
            sign: Sign {
                doc: "-1, 0 or 1 by the sign of `x`; 0 for NaN.",
                page: elementwise, class: number, cost: simple, rounds: never, domain: off_zero,
                gradient: [],
                cpu: |x| x.sign(),
                cuda: "sign(x)",
            }
            square: Square {
                doc: "`x * x`.",
                page: elementwise, class: number, cost: simple, rounds: once, domain: all,
                gradient: [(g x) g.mul(x).mul(2)],
                cpu: |x| x.mul(x),
                cuda: "mul(x, x)",
            }
            relu: Relu {
                doc: "`max(x, 0)`; NaN stays NaN.",
                page: activation, class: number, cost: simple, rounds: never, domain: off_zero,
                gradient: [(g y) y.le(0).where_cond(0.0, &g)],
                cpu: |x| x.relu(),
                cuda: "relu(x)",
            }
            sqrt: Sqrt {
                doc: "Square root; NaN for negative numbers.",
                page: elementwise, class: float, cost: root, rounds: once, domain: positive,
                gradient: [(g y) g.div(y).mul(0.5)],
                cpu: |x| x.sqrt(),
                cuda: "sqrt(x)",
            }
            rsqrt: Rsqrt {
                doc: "`1 / sqrt(x)`.",
                page: elementwise, class: float, cost: root, rounds: more, domain: positive,
                gradient: [(g y) g.mul(&y).mul(&y).mul(&y).mul(-0.5)],
                cpu: |x| x.one().div(x.sqrt()),
                cuda: "T(1) / sqrt(x)",
            }
            recip: Recip {
                doc: "`1 / x`.",
                page: elementwise, class: float, cost: root, rounds: once, domain: off_zero,
                gradient: [(g y) g.mul(&y).mul(&y).neg()],
                cpu: |x| x.one().div(x),
                cuda: "T(1) / x",
            }
            exp: Exp {
                doc: "`e^x`.",
                page: elementwise, class: float, cost: function, rounds: more, domain: all,
                gradient: [(g y) g.mul(y)],
                cpu: |x| x.exp(),
                cuda: "exp(x)",
            }
            exp2: Exp2 {
                doc: "`2^x`.",
                page: elementwise, class: float, cost: function, rounds: more, domain: all,
                gradient: [(g y) g.mul(y).mul(std::f64::consts::LN_2)],
                cpu: |x| x.exp2(),
                cuda: "exp2(x)",
            }
            expm1: Expm1 {
                doc: "`e^x - 1`, exact near 0.",
                page: elementwise, class: float, cost: function, rounds: more, domain: all,
                gradient: [(g x) g.mul(x.exp())],
                cpu: |x| x.expm1(),
                cuda: "expm1(x)",
            }
            log: Log {
                doc: "Natural logarithm; -inf at 0, NaN for negative numbers.",
                page: elementwise, class: float, cost: function, rounds: more, domain: positive,
                gradient: [(g x) g.div(x)],
                cpu: |x| x.log(),
                cuda: "log(x)",
            }
            log2: Log2 {
                doc: "Logarithm to base 2.",
                page: elementwise, class: float, cost: long, rounds: more, domain: positive,
                gradient: [(g x) g.div(x.mul(std::f64::consts::LN_2))],
                cpu: |x| x.log2(),
                cuda: "log2(x)",
            }
            log10: Log10 {
                doc: "Logarithm to base 10.",
                page: elementwise, class: float, cost: long, rounds: more, domain: positive,
                gradient: [(g x) g.div(x.mul(std::f64::consts::LN_10))],
                cpu: |x| x.log10(),
                cuda: "log10(x)",
            }
            log1p: Log1p {
                doc: "`log(1 + x)`, exact near 0.",
                page: elementwise, class: float, cost: long, rounds: more, domain: positive,
                gradient: [(g x) g.div(x.add(1))],
                cpu: |x| x.log1p(),
                cuda: "log1p(x)",
            }
            sin: Sin {
                doc: "Sine of an angle in radians.",
                page: elementwise, class: float, cost: function, rounds: more, domain: all,
                gradient: [(g x) g.mul(x.cos())],
                cpu: |x| x.sin(),
                cuda: "sin(x)",
            }
            cos: Cos {
                doc: "Cosine of an angle in radians.",
                page: elementwise, class: float, cost: function, rounds: more, domain: all,
                gradient: [(g x) g.mul(x.sin()).neg()],
                cpu: |x| x.cos(),
                cuda: "cos(x)",
            }
            tan: Tan {
                doc: "Tangent of an angle in radians.",
                page: elementwise, class: float, cost: long, rounds: more, domain: all,
                gradient: [(g y) g.mul(y.square().add(1))],
                cpu: |x| x.tan(),
                cuda: "tan(x)",
            }
            asin: Asin {
                doc: "Inverse sine in radians; NaN outside -1 to 1.",
                page: elementwise, class: float, cost: double, rounds: more, domain: unit,
                gradient: [(g x) g.div(one_less_square(&x).sqrt())],
                cpu: |x| x.asin(),
                cuda: "asin(x)",
            }
            acos: Acos {
                doc: "Inverse cosine in radians, from 0 to pi; NaN outside -1 to 1.",
                page: elementwise, class: float, cost: double, rounds: more, domain: unit,
                gradient: [(g x) g.div(one_less_square(&x).sqrt()).neg()],
                cpu: |x| x.acos(),
                cuda: "acos(x)",
            }
            atan: Atan {
                doc: "Inverse tangent in radians.",
                page: elementwise, class: float, cost: long, rounds: more, domain: all,
                gradient: [(g x) g.div(x.square().add(1))],
                cpu: |x| x.atan(),
                cuda: "atan(x)",
            }
            sinh: Sinh {
                doc: "Hyperbolic sine.",
                page: elementwise, class: float, cost: long, rounds: more, domain: all,
                gradient: [(g x) g.mul(x.cosh())],
                cpu: |x| x.sinh(),
                cuda: "sinh(x)",
            }
            cosh: Cosh {
                doc: "Hyperbolic cosine.",
                page: elementwise, class: float, cost: long, rounds: more, domain: all,
                gradient: [(g x) g.mul(x.sinh())],
                cpu: |x| x.cosh(),
                cuda: "cosh(x)",
            }
            tanh: Tanh {
                doc: "Hyperbolic tangent.",
                page: activation, class: float, cost: function, rounds: more, domain: all,
                gradient: [
                    (g y) g.mul(1.0 - y.square());
                    halves (g x) sigmoid_slope(&x.mul(2)).mul(4).mul(g)
                ],
                cpu: |x| x.tanh(),
                cuda: "tanh(x)",
            }
            asinh: Asinh {
                doc: "Inverse hyperbolic sine.",
                page: elementwise, class: float, cost: double, rounds: more, domain: all,
                gradient: [(g x) g.div(x.square().add(1).sqrt())],
                cpu: |x| x.asinh(),
                cuda: "asinh(x)",
            }
            acosh: Acosh {
                doc: "Inverse hyperbolic cosine; NaN below 1.",
                page: elementwise, class: float, cost: double, rounds: more, domain: above_one,
                gradient: [(g x) g.div(square_less_one(&x).sqrt())],
                cpu: |x| x.acosh(),
                cuda: "acosh(x)",
            }
            atanh: Atanh {
                doc: "Inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond.",
                page: elementwise, class: float, cost: long, rounds: more, domain: unit,
                gradient: [(g x) g.div(one_less_square(&x))],
                cpu: |x| x.atanh(),
                cuda: "atanh(x)",
            }
            sigmoid: Sigmoid {
                doc: "`1 / (1 + e^-x)`.",
                page: activation, class: float, cost: function, rounds: more, domain: all,
                gradient: [(g y) g.mul(1.0 - &y).mul(&y); halves (g x) sigmoid_slope(&x).mul(g)],
                cpu: |x| x.sigmoid(),
                cuda: "sigmoid(x)",
            }
            silu: Silu {
                doc: "`x * sigmoid(x)`, also called swish.",
                page: activation, class: float, cost: function, rounds: more, domain: all,
                gradient: [(g x) { let s = x.sigmoid(); g.mul(&s).mul(x.mul(1.0 - &s).add(1)) }],
                cpu: |x| x.mul(x.sigmoid()),
                cuda: "x * sigmoid(x)",
            }
            softplus: Softplus {
                doc: "`log(1 + e^x)`; `x` itself above 20, as PyTorch's default.",
                page: activation, class: float, cost: long, rounds: more, domain: all,
                gradient: [(g x) x.gt(20).where_cond(&g, g.mul(x.sigmoid()))],
                cpu: |x| x.softplus(),
                cuda: "softplus(x)",
            }
            gelu: Gelu {
                doc: "`x * (1 + erf(x / sqrt 2)) / 2`, the exact form (Hendrycks and Gimpel 2016, \
arXiv:1606.08415). In float32 within 3 units in the last place on a CPU, \
and within 7 below -1, where the sum itself would lose its digits.",
                page: activation, class: float, cost: function, rounds: more, domain: all,
                gradient: [(g x) gelu_slope(&x).mul(g)],
                cpu: |x| x.gelu(),
                cuda: "gelu(x)",
            }
            gelu_tanh: GeluTanh {
                doc: "`gelu` by its tanh approximation (same paper).",
                page: activation, class: float, cost: long, rounds: more, domain: all,
                gradient: [
                    (g x) gelu_tanh_slope(&x).mul(g);
                    halves (g x) gelu_tanh_slope_at_ends(&x).mul(g)
                ],
                cpu: |x| x.gelu_tanh(),
                cuda: "gelu_tanh(x)",
            }
            hardswish: Hardswish {
                doc: "`x * clamp(x + 3, 0, 6) / 6` (Howard et al. 2019, arXiv:1905.02244).",
                page: activation, class: float, cost: simple, rounds: more, domain: unit,
                gradient: [(g x) hardswish_slope(&x).mul(g)],
                cpu: |x| x.hardswish(),
                cuda: "x * (minimum(maximum(x + T(3), T(0)), T(6)) * T(1.0 / 6.0))",
            }
            erf: Erf {
                doc: "Error function.",
                page: elementwise, class: float, cost: function, rounds: more, domain: all,
                gradient: [
                    (g x) g.mul(x.square().neg().exp()).mul(std::f64::consts::FRAC_2_SQRT_PI)
                ],
                cpu: |x| x.erf(),
                cuda: "erf(x)",
            }
            erfinv: ErfInv {
                doc: "Inverse of the error function; infinite at -1 and 1, NaN beyond.",
                page: elementwise, class: float, cost: double, rounds: more, domain: unit,
                gradient: [(g y) g.mul(y.square().exp()).div(std::f64::consts::FRAC_2_SQRT_PI)],
                cpu: |x| x.erfinv(),
                cuda: "erfinv(x)",
            }
            lgamma: Lgamma {
                doc: "Logarithm of the magnitude of the gamma function; infinite at 0, -1, -2, ...",
                page: elementwise, class: float, cost: double, rounds: cancels, domain: positive,
                gradient: [(g x) g.mul(x.digamma())],
                cpu: |x| x.lgamma(),
                cuda: "lgamma(x)",
            }
            digamma: Digamma {
                doc: "Slope of the logarithm of the gamma function; infinite at 0, NaN at -1, -2, \
...",
                page: elementwise, class: float, cost: double, rounds: cancels, domain: positive,
                gradient: [(g x) g.mul(trigamma(&x))],
                cpu: |x| x.digamma(),
                cuda: "digamma(x)",
            }
            floor: Floor {
                doc: "Rounds down: the largest integer that is at most `x`.",
                page: elementwise, class: real, cost: simple, rounds: never, domain: all,
                gradient: [],
                cpu: |x| x.floor(),
                cuda: "floor(x)",
            }
            ceil: Ceil {
                doc: "Rounds up: the smallest integer that is at least `x`.",
                page: elementwise, class: real, cost: simple, rounds: never, domain: all,
                gradient: [],
                cpu: |x| x.ceil(),
                cuda: "ceil(x)",
            }
            round: Round {
                doc: "Rounds to the nearest integer, ties to even.",
                page: elementwise, class: real, cost: simple, rounds: never, domain: all,
                gradient: [],
                cpu: |x| x.round(),
                cuda: "rint(x)",
            }
            trunc: Trunc {
                doc: "Rounds towards zero.",
                page: elementwise, class: real, cost: simple, rounds: never, domain: all,
                gradient: [],
                cpu: |x| x.trunc(),
                cuda: "trunc(x)",
            }
            isnan: IsNan {
                doc: "True where `x` is NaN.",
                page: elementwise, class: test, cost: simple, rounds: never, domain: all,
                gradient: [],
                cpu: |x| x.is_nan(),
                cuda: "x != x",
            }
            isinf: IsInf {
                doc: "True where `x` is infinite.",
                page: elementwise, class: test, cost: simple, rounds: never, domain: all,
                gradient: [],
                cpu: |x| x.is_inf(),
                cuda: "is_inf(x)",
            }
            isfinite: IsFinite {
                doc: "True where `x` is neither NaN nor infinite.",
                page: elementwise, class: test, cost: simple, rounds: never, domain: all,
                gradient: [],
                cpu: |x| x.is_finite(),
                cuda: "is_finite(x)",
            }
            logical_not: LogicalNot {
                doc: "True where `x` is zero.",
                page: elementwise, class: test, cost: simple, rounds: never, domain: off_zero,
                gradient: [],
                cpu: |x| x.is_zero(),
                cuda: "x == T(0)",
            }
        }
    };
}
pub(crate) use for_each_unary;
