//! The table of operations: one row an op, each layer expands its own column.
//!
//! A row gives the doc line, the method name, the variant, the class of element types, and the
//! expression that a CPU kernel computes. `tensor/` expands names to methods and gradients to
//! rules, `graph/` classes to inferred types, `host/kernels/` and `cuda/kernels/` expressions to
//! loops and to CUDA C. To add an elementwise op or a reduction, add a row.
//!
//! Classes of unary ops: `float` (integers and bool are computed in float32, as PyTorch does),
//! `number` (keeps the type; bool is refused), `real` (rounding: integers pass unchanged), `test`
//! (result is bool). Classes of binary ops: `number` (promoted; bool is refused), `any` (promoted;
//! bool allowed), `float` (integers are computed in float32), `compare` (promoted, result bool),
//! `logic` (each operand is taken as `!= 0`, result bool), `bits` (integers and bool).

/// Rows of unary ops: `doc, name, Variant, class, |x| CPU expression, "CUDA expression",
/// [gradient]`.
///
/// In the CPU expression `x` is of a type that implements the kernels' `Real` (f32 or f64) for
/// `float`, and `Number` (also the integers) for `number`. The CUDA expression is the body of a
/// function template over `T`, the type computed in (float for the halves); it calls what
/// `cuda/kernels/device/ops.cuh` defines.
///
/// The gradient names in brackets what it reads (`g`, the upstream gradient; `x`, the operand; `y`,
/// the result), then gives the operand's gradient in the ops themselves; `[]` where it is zero
/// everywhere. It is read by `tensor/gradient/table.rs`, which has the helpers. A second one for
/// `halves`, which are given to it in float32, keeps the digits of small slopes that the result, or
/// the first one's differences, have lost: halves can be as small as float32's.
macro_rules! for_each_unary {
    ($callback:ident) => {
        $callback! {
            "`-x`; integers wrap.", neg, Neg, number, |x| x.neg(), "neg(x)", [(g) g.neg()];
            "`|x|`; the smallest integer stays as it is.", abs, Abs, number, |x| x.abs(), "abs(x)", [(g x) g.mul(x.sign())];
            "-1, 0 or 1 by the sign of `x`; of NaN, 0.", sign, Sign, number, |x| x.sign(), "sign(x)", [];
            "`x * x`.", square, Square, number, |x| x.mul(x), "mul(x, x)", [(g x) g.mul(x).mul(2)];
            "`max(x, 0)`; NaN stays NaN.", relu, Relu, number, |x| x.relu(), "relu(x)", [(g y) y.le(0).where_cond(0.0, &g)];
            "Square root; NaN below zero.", sqrt, Sqrt, float, |x| x.sqrt(), "sqrt(x)", [(g y) g.div(y).mul(0.5)];
            "`1 / sqrt(x)`.", rsqrt, Rsqrt, float, |x| x.one().div(x.sqrt()), "T(1) / sqrt(x)", [(g y) g.mul(&y).mul(&y).mul(&y).mul(-0.5)];
            "`1 / x`.", recip, Recip, float, |x| x.one().div(x), "T(1) / x", [(g y) g.mul(&y).mul(&y).neg()];
            "`e^x`.", exp, Exp, float, |x| x.exp(), "exp(x)", [(g y) g.mul(y)];
            "`2^x`.", exp2, Exp2, float, |x| x.exp2(), "exp2(x)", [(g y) g.mul(y).mul(std::f64::consts::LN_2)];
            "`e^x - 1`, exact near 0.", expm1, Expm1, float, |x| x.expm1(), "expm1(x)", [(g y) g.mul(y.add(1)); halves (g x) g.mul(x.exp())];
            "Natural logarithm; -inf at 0, NaN below.", log, Log, float, |x| x.log(), "log(x)", [(g x) g.div(x)];
            "Logarithm to base 2.", log2, Log2, float, |x| x.log2(), "log2(x)", [(g x) g.div(x.mul(std::f64::consts::LN_2))];
            "Logarithm to base 10.", log10, Log10, float, |x| x.log10(), "log10(x)", [(g x) g.div(x.mul(std::f64::consts::LN_10))];
            "`log(1 + x)`, exact near 0.", log1p, Log1p, float, |x| x.log1p(), "log1p(x)", [(g x) g.div(x.add(1))];
            "Sine of radians.", sin, Sin, float, |x| x.sin(), "sin(x)", [(g x) g.mul(x.cos())];
            "Cosine of radians.", cos, Cos, float, |x| x.cos(), "cos(x)", [(g x) g.mul(x.sin()).neg()];
            "Tangent of radians.", tan, Tan, float, |x| x.tan(), "tan(x)", [(g y) g.mul(y.square().add(1))];
            "Inverse sine in radians; NaN outside -1 to 1.", asin, Asin, float, |x| x.asin(), "asin(x)", [(g x) g.div(one_less_square(&x).sqrt())];
            "Inverse cosine in radians, from 0 to pi; NaN outside -1 to 1.", acos, Acos, float, |x| x.acos(), "acos(x)", [(g x) g.div(one_less_square(&x).sqrt()).neg()];
            "Inverse tangent in radians.", atan, Atan, float, |x| x.atan(), "atan(x)", [(g x) g.div(x.square().add(1))];
            "Hyperbolic sine.", sinh, Sinh, float, |x| x.sinh(), "sinh(x)", [(g x) g.mul(x.cosh())];
            "Hyperbolic cosine.", cosh, Cosh, float, |x| x.cosh(), "cosh(x)", [(g x) g.mul(x.sinh())];
            "Hyperbolic tangent.", tanh, Tanh, float, |x| x.tanh(), "tanh(x)", [(g y) g.mul(1.0 - y.square()); halves (g x) sigmoid_slope(&x.mul(2)).mul(4).mul(g)];
            "Inverse hyperbolic sine.", asinh, Asinh, float, |x| x.asinh(), "asinh(x)", [(g x) g.div(x.square().add(1).sqrt())];
            "Inverse hyperbolic cosine; NaN below 1.", acosh, Acosh, float, |x| x.acosh(), "acosh(x)", [(g x) g.div(square_less_one(&x).sqrt())];
            "Inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond.", atanh, Atanh, float, |x| x.atanh(), "atanh(x)", [(g x) g.div(one_less_square(&x))];
            "`1 / (1 + e^-x)`.", sigmoid, Sigmoid, float, |x| x.sigmoid(), "sigmoid(x)", [(g y) g.mul(1.0 - &y).mul(&y); halves (g x) sigmoid_slope(&x).mul(g)];
            "`x * sigmoid(x)`, also called swish.", silu, Silu, float, |x| x.mul(x.sigmoid()), "x * sigmoid(x)", [(g x) { let s = x.sigmoid(); g.mul(&s).mul(x.mul(1.0 - &s).add(1)) }];
            "`log(1 + e^x)`; `x` itself above 20, as PyTorch's default.", softplus, Softplus, float, |x| x.softplus(), "softplus(x)", [(g x) x.gt(20).where_cond(&g, g.mul(x.sigmoid()))];
            "`x * (1 + erf(x / sqrt 2)) / 2`, the exact form (Hendrycks and Gimpel 2016, arXiv:1606.08415). In float32 within 3 units in the last place on a CPU, and within 7 to the left of -1, where the sum itself would lose its digits.", gelu, Gelu, float, |x| x.gelu(), "gelu(x)", [(g x) gelu_slope(&x).mul(g)];
            "`gelu` by its tanh approximation (same paper).", gelu_tanh, GeluTanh, float, |x| x.gelu_tanh(), "gelu_tanh(x)", [(g x) gelu_tanh_slope(&x).mul(g); halves (g x) gelu_tanh_slope_at_ends(&x).mul(g)];
            "Error function.", erf, Erf, float, |x| x.erf(), "erf(x)", [(g x) g.mul(x.square().neg().exp()).mul(std::f64::consts::FRAC_2_SQRT_PI)];
            "Largest whole number not above `x`.", floor, Floor, real, |x| x.floor(), "floor(x)", [];
            "Smallest whole number not below `x`.", ceil, Ceil, real, |x| x.ceil(), "ceil(x)", [];
            "Nearest whole number, halves to even.", round, Round, real, |x| x.round(), "rint(x)", [];
            "Whole part, towards zero.", trunc, Trunc, real, |x| x.trunc(), "trunc(x)", [];
            "True where `x` is NaN.", isnan, IsNan, test, |x| x.is_nan(), "x != x", [];
            "True where `x` is an infinity.", isinf, IsInf, test, |x| x.is_inf(), "is_inf(x)", [];
            "True where `x` is neither NaN nor an infinity.", isfinite, IsFinite, test, |x| x.is_finite(), "is_finite(x)", [];
            "True where `x` is zero.", logical_not, LogicalNot, test, |x| x.is_zero(), "x == T(0)", [];
        }
    };
}
pub(crate) use for_each_unary;

/// Rows of binary ops: `doc, name, Variant, class, |a, b| CPU expression, "CUDA expression",
/// [gradients]`.
///
/// The gradients are those of `a` and of `b`; what broadcasting repeated is added up by whoever
/// calls them.
macro_rules! for_each_binary {
    ($callback:ident) => {
        $callback! {
            "`a + b`; on bool, logical or.", add, Add, any, |a, b| a.add(b), "add(a, b)", [(g) g; (g) g];
            "`a - b`.", sub, Sub, number, |a, b| a.sub(b), "sub(a, b)", [(g) g; (g) g.neg()];
            "`a * b`; on bool, logical and.", mul, Mul, any, |a, b| a.mul(b), "mul(a, b)", [(g b) g.mul(b); (g a) g.mul(a)];
            "`a / b`; integers are divided as float32.", div, Div, float, |a, b| a.div(b), "a / b", [(g b) g.div(b); (g b y) g.mul(y).div(b).neg()];
            "`a` to the power `b`; an integer to a negative one is 0 unless `a` is 1 or -1.", pow, Pow, number, |a, b| a.pow(b), "pow(a, b)", [(g a b) through_base(&g, &a, &b); (g a b y) through_exponent(&g, &a, &b, &y)];
            "The larger; NaN if either is NaN.", maximum, Maximum, any, |a, b| a.maximum(b), "maximum(a, b)", [(g a b) chosen(&g, a.lt(&b), a.eq(&b)); (g a b) chosen(&g, b.lt(&a), a.eq(&b))];
            "The smaller; NaN if either is NaN.", minimum, Minimum, any, |a, b| a.minimum(b), "minimum(a, b)", [(g a b) chosen(&g, a.gt(&b), a.eq(&b)); (g a b) chosen(&g, b.gt(&a), a.eq(&b))];
            "Angle of the point `(b, a)` in radians.", atan2, Atan2, float, |a, b| a.atan2(b), "atan2(a, b)", [(g a b) of_angle(g.mul(&b), a.square().add(b.square())); (g a b) of_angle(g.mul(&a), a.square().add(b.square())).neg()];
            "Remainder with the sign of `a`, as C's `fmod`; of an integer division by zero, 0.", fmod, Fmod, number, |a, b| a.fmod(b), "fmod(a, b)", [(g) g; (g a b y) g.mul(whole_quotient(&a.sub(y), &b)).neg()];
            "Remainder with the sign of `b`, as Python's `%`; of an integer division by zero, 0.", remainder, Remainder, number, |a, b| a.remainder(b), "remainder(a, b)", [(g) g; (g a b) g.mul(a.floor_divide(b)).neg()];
            "The whole number at or below `a / b`, PyTorch's `div` with `rounding_mode=\"floor\"`; integers stay integers, and divided by zero are 0. Of floats it is what belongs to `remainder`.", floor_divide, FloorDivide, number, |a, b| a.floor_divide(b), "floor_divide(a, b)", [];
            "The whole part of `a / b`, PyTorch's `div` with `rounding_mode=\"trunc\"`; integers stay integers, and divided by zero are 0.", trunc_divide, TruncDivide, number, |a, b| a.trunc_divide(b), "trunc_divide(a, b)", [];
            "`a == b`.", eq, Eq, compare, |a, b| a.eq(b), "a == b", [];
            "`a != b`.", ne, Ne, compare, |a, b| a.ne(b), "a != b", [];
            "`a < b`.", lt, Lt, compare, |a, b| a.lt(b), "a < b", [];
            "`a <= b`.", le, Le, compare, |a, b| a.le(b), "a <= b", [];
            "`a > b`.", gt, Gt, compare, |a, b| a.gt(b), "a > b", [];
            "`a >= b`.", ge, Ge, compare, |a, b| a.ge(b), "a >= b", [];
            "True where both are.", logical_and, LogicalAnd, logic, |a, b| a & b, "truth(a) & truth(b)", [];
            "True where either is.", logical_or, LogicalOr, logic, |a, b| a | b, "truth(a) | truth(b)", [];
            "True where exactly one is.", logical_xor, LogicalXor, logic, |a, b| a ^ b, "truth(a) ^ truth(b)", [];
            "Bitwise and; on bool, logical.", bitwise_and, BitwiseAnd, bits, |a, b| a & b, "T(a & b)", [];
            "Bitwise or; on bool, logical.", bitwise_or, BitwiseOr, bits, |a, b| a | b, "T(a | b)", [];
            "Bitwise exclusive or; on bool, logical.", bitwise_xor, BitwiseXor, bits, |a, b| a ^ b, "T(a ^ b)", [];
        }
    };
}
pub(crate) use for_each_binary;

/// Rows of reductions: `doc, name, Variant, class`. Classes: `sum` (integers and bool in int64),
/// `float` (floats only), `same` (keeps the type), `test` (result bool), `index` (result int64).
macro_rules! for_each_reduce {
    ($callback:ident) => {
        $callback! {
            "Sum; integers and bool are added in int64. 0 where there is nothing. Floats are added pairwise.", sum, Sum, sum;
            "Product; integers and bool in int64. 1 where there is nothing.", prod, Prod, sum;
            "Arithmetic mean of floats; NaN where there is nothing.", mean, Mean, float;
            "Largest element; NaN if one is NaN. An error where there is nothing.", max, Max, same;
            "Smallest element; NaN if one is NaN. An error where there is nothing.", min, Min, same;
            "True where any element is not zero.", any, Any, test;
            "True where all elements are not zero; true where there is nothing.", all, All, test;
            "Position of the largest element, the first of equals; the first NaN if there is one.", argmax, ArgMax, index;
            "Position of the smallest element, the first of equals; the first NaN if there is one.", argmin, ArgMin, index;
        }
    };
}
#[allow(unused_imports)]
// Its one reader stands in this file; the other tables are read elsewhere.
pub(crate) use for_each_reduce;

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

/// Which element types an op takes, and what it makes of them: see the table's head.
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

macro_rules! op_enum {
    ($(#[$doc:meta])* $Enum:ident; $($text:literal, $name:ident, $Variant:ident, $class:ident $(, |$($x:ident),*| $e:expr, $cuda:literal, $grad:tt)?;)*) => {
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
            pub const fn class(self) -> Class {
                match self { $($Enum::$Variant => Class::$class),* }
            }
        }
    };
}

macro_rules! unary_enum { ($($rows:tt)*) => { op_enum! { /** An elementwise op of one operand. */ UnaryOp; $($rows)* } } }
macro_rules! binary_enum { ($($rows:tt)*) => { op_enum! { /** An elementwise op of two operands. */ BinaryOp; $($rows)* } } }
macro_rules! reduce_enum { ($($rows:tt)*) => { op_enum! { /** A reduction over dimensions. */ ReduceOp; $($rows)* } } }
for_each_unary!(unary_enum);
for_each_binary!(binary_enum);
for_each_reduce!(reduce_enum);
