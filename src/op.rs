//! The table of operations: one row an op, each layer expands its own column.
//!
//! A row gives the doc line, the method name, the variant, the class of element types, and the
//! expression that a CPU kernel computes. `tensor/` expands names to methods, `graph/` classes to
//! inferred types, `kernels/` expressions to loops and to CUDA C. To add an elementwise op or a
//! reduction, add a row.
//!
//! Classes of unary ops: `float` (integers and bool are computed in float32, as PyTorch does),
//! `number` (keeps the type; bool is refused), `real` (rounding: integers pass unchanged),
//! `test` (result is bool). Classes of binary ops: `number` (promoted; bool is refused), `any`
//! (promoted; bool allowed), `float` (integers are computed in float32), `compare` (promoted,
//! result bool), `logic` (each operand is taken as `!= 0`, result bool), `bits` (integers and bool).

/// Rows of unary ops: `doc, name, Variant, class, |x| CPU expression, "CUDA expression"`.
///
/// In the CPU expression `x` is of a type that implements the kernels' `Real` (f32 or f64) for `float`,
/// and `Number` (also the integers) for `number`. The CUDA expression is the body of a function
/// template over `T`, the type computed in (float for the halves); it calls what
/// `kernels/cuda/device/ops.cuh` defines.
macro_rules! for_each_unary {
    ($callback:ident) => {
        $callback! {
            "`-x`; integers wrap.", neg, Neg, number, |x| x.neg(), "neg(x)";
            "`|x|`; the smallest integer stays as it is.", abs, Abs, number, |x| x.abs(), "abs(x)";
            "-1, 0 or 1 by the sign of `x`; NaN stays NaN.", sign, Sign, number, |x| x.sign(), "sign(x)";
            "`x * x`.", square, Square, number, |x| x.mul(x), "mul(x, x)";
            "`max(x, 0)`; NaN stays NaN.", relu, Relu, number, |x| x.relu(), "relu(x)";
            "Square root; NaN below zero.", sqrt, Sqrt, float, |x| x.sqrt(), "sqrt(x)";
            "`1 / sqrt(x)`.", rsqrt, Rsqrt, float, |x| x.one().div(x.sqrt()), "T(1) / sqrt(x)";
            "`1 / x`.", recip, Recip, float, |x| x.one().div(x), "T(1) / x";
            "`e^x`.", exp, Exp, float, |x| x.exp(), "exp(x)";
            "`2^x`.", exp2, Exp2, float, |x| x.exp2(), "exp2(x)";
            "`e^x - 1`, exact near 0.", expm1, Expm1, float, |x| x.expm1(), "expm1(x)";
            "Natural logarithm; -inf at 0, NaN below.", log, Log, float, |x| x.log(), "log(x)";
            "Logarithm to base 2.", log2, Log2, float, |x| x.log2(), "log2(x)";
            "Logarithm to base 10.", log10, Log10, float, |x| x.log10(), "log10(x)";
            "`log(1 + x)`, exact near 0.", log1p, Log1p, float, |x| x.log1p(), "log1p(x)";
            "Sine of radians.", sin, Sin, float, |x| x.sin(), "sin(x)";
            "Cosine of radians.", cos, Cos, float, |x| x.cos(), "cos(x)";
            "Tangent of radians.", tan, Tan, float, |x| x.tan(), "tan(x)";
            "Hyperbolic tangent.", tanh, Tanh, float, |x| x.tanh(), "tanh(x)";
            "`1 / (1 + e^-x)`.", sigmoid, Sigmoid, float, |x| x.sigmoid(), "sigmoid(x)";
            "`x * sigmoid(x)`, also called swish.", silu, Silu, float, |x| x.mul(x.sigmoid()), "x * sigmoid(x)";
            "`log(1 + e^x)`; `x` itself above 20, as PyTorch's default.", softplus, Softplus, float, |x| x.softplus(), "softplus(x)";
            "`x * (1 + erf(x / sqrt 2)) / 2`, the exact form (Hendrycks and Gimpel 2016, arXiv:1606.08415).", gelu, Gelu, float, |x| x.gelu(), "gelu(x)";
            "`gelu` by its tanh approximation (same paper).", gelu_tanh, GeluTanh, float, |x| x.gelu_tanh(), "gelu_tanh(x)";
            "Error function.", erf, Erf, float, |x| x.erf(), "erf(x)";
            "Largest whole number not above `x`.", floor, Floor, real, |x| x.floor(), "floor(x)";
            "Smallest whole number not below `x`.", ceil, Ceil, real, |x| x.ceil(), "ceil(x)";
            "Nearest whole number, halves to even.", round, Round, real, |x| x.round(), "rint(x)";
            "Whole part, towards zero.", trunc, Trunc, real, |x| x.trunc(), "trunc(x)";
            "True where `x` is NaN.", isnan, IsNan, test, |x| x.is_nan(), "x != x";
            "True where `x` is an infinity.", isinf, IsInf, test, |x| x.is_inf(), "is_inf(x)";
            "True where `x` is neither NaN nor an infinity.", isfinite, IsFinite, test, |x| x.is_finite(), "is_finite(x)";
            "True where `x` is zero.", logical_not, LogicalNot, test, |x| x.is_zero(), "x == T(0)";
        }
    };
}
pub(crate) use for_each_unary;

/// Rows of binary ops: `doc, name, Variant, class, |a, b| CPU expression, "CUDA expression"`.
macro_rules! for_each_binary {
    ($callback:ident) => {
        $callback! {
            "`a + b`; on bool, logical or.", add, Add, any, |a, b| a.add(b), "add(a, b)";
            "`a - b`.", sub, Sub, number, |a, b| a.sub(b), "sub(a, b)";
            "`a * b`; on bool, logical and.", mul, Mul, any, |a, b| a.mul(b), "mul(a, b)";
            "`a / b`; integers are divided as float32.", div, Div, float, |a, b| a.div(b), "a / b";
            "`a` to the power `b`; an integer to a negative one is 0 unless `a` is 1 or -1.", pow, Pow, number, |a, b| a.pow(b), "pow(a, b)";
            "The larger; NaN if either is NaN.", maximum, Maximum, any, |a, b| a.maximum(b), "maximum(a, b)";
            "The smaller; NaN if either is NaN.", minimum, Minimum, any, |a, b| a.minimum(b), "minimum(a, b)";
            "Angle of the point `(b, a)` in radians.", atan2, Atan2, float, |a, b| a.atan2(b), "atan2(a, b)";
            "Remainder with the sign of `a`, as C's `fmod`; of an integer division by zero, 0.", fmod, Fmod, number, |a, b| a.fmod(b), "fmod(a, b)";
            "Remainder with the sign of `b`, as Python's `%`; of an integer division by zero, 0.", remainder, Remainder, number, |a, b| a.remainder(b), "remainder(a, b)";
            "`a == b`.", eq, Eq, compare, |a, b| a.eq(b), "a == b";
            "`a != b`.", ne, Ne, compare, |a, b| a.ne(b), "a != b";
            "`a < b`.", lt, Lt, compare, |a, b| a.lt(b), "a < b";
            "`a <= b`.", le, Le, compare, |a, b| a.le(b), "a <= b";
            "`a > b`.", gt, Gt, compare, |a, b| a.gt(b), "a > b";
            "`a >= b`.", ge, Ge, compare, |a, b| a.ge(b), "a >= b";
            "True where both are.", logical_and, LogicalAnd, logic, |a, b| a & b, "truth(a) & truth(b)";
            "True where either is.", logical_or, LogicalOr, logic, |a, b| a | b, "truth(a) | truth(b)";
            "True where exactly one is.", logical_xor, LogicalXor, logic, |a, b| a ^ b, "truth(a) ^ truth(b)";
            "Bitwise and; on bool, logical.", bitwise_and, BitwiseAnd, bits, |a, b| a & b, "T(a & b)";
            "Bitwise or; on bool, logical.", bitwise_or, BitwiseOr, bits, |a, b| a | b, "T(a | b)";
            "Bitwise exclusive or; on bool, logical.", bitwise_xor, BitwiseXor, bits, |a, b| a ^ b, "T(a ^ b)";
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
#[allow(unused_imports)] // Its one reader stands in this file; the other tables are read elsewhere.
pub(crate) use for_each_reduce;

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
    ($(#[$doc:meta])* $Enum:ident; $($text:literal, $name:ident, $Variant:ident, $class:ident $(, |$($x:ident),*| $e:expr, $cuda:literal)?;)*) => {
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
