//! The table of elementwise ops of two operands: one row per op. [`op`](super) describes the
//! columns.

/// Rows of binary ops: `name: Variant { columns }`.
///
/// The gradients are those of `a` and of `b`; they read `g`, `a`, `b` and `y`. Their caller sums
/// over broadcast dimensions. If one operand is a number, the gradients get the number, and only
/// that of the other operand is used.
macro_rules! for_each_binary {
    ($callback:ident) => {
        $callback! {
            add: Add {
                doc: "`a + b`; logical or for bool.",
                class: any, cost: simple, rounds: once, number: wide, domain: all,
                gradient: [(g) g; (g) g],
                cpu: |a, b| a.add(b),
                cuda: "add(a, b)",
            }
            sub: Sub {
                doc: "`a - b`.",
                class: number, cost: simple, rounds: once, number: wide, domain: all,
                gradient: [(g) g; (g) g.neg()],
                cpu: |a, b| a.sub(b),
                cuda: "sub(a, b)",
            }
            mul: Mul {
                doc: "`a * b`; logical and for bool.",
                class: any, cost: simple, rounds: once, number: wide, domain: all,
                gradient: [(g b) g.mul(b); (g a) g.mul(a)],
                cpu: |a, b| a.mul(b),
                cuda: "mul(a, b)",
            }
            div: Div {
                doc: "`a / b`; integers are divided as float32.",
                class: float, cost: quotient, rounds: once, number: wide, domain: off_zero,
                gradient: [(g b) g.div(b); (g b y) g.mul(y).div(b).neg()],
                cpu: |a, b| a.div(b),
                cuda: "a / b",
            }
            pow: Pow {
                doc: "`a` to the power `b`; for integers a negative power is 0 unless `a` is 1 or \
-1.",
                class: number, cost: power, rounds: more, number: wide, domain: positive,
                gradient: [(g a b) through_base(&g, &a, &b); (g a y) through_exponent(&g, &a, &y)],
                cpu: |a, b| a.pow(b),
                cuda: "pow(a, b)",
            }
            maximum: Maximum {
                doc: "The larger operand; NaN if either is NaN.",
                class: any, cost: simple, rounds: never, number: limit, domain: apart,
                gradient: [(g a b) larger(&g, &a, &b); (g a b) larger(&g, &b, &a)],
                cpu: |a, b| a.maximum(b),
                cuda: "maximum(a, b)",
            }
            minimum: Minimum {
                doc: "The smaller operand; NaN if either is NaN.",
                class: any, cost: simple, rounds: never, number: limit, domain: apart,
                gradient: [(g a b) smaller(&g, &a, &b); (g a b) smaller(&g, &b, &a)],
                cpu: |a, b| a.minimum(b),
                cuda: "minimum(a, b)",
            }
            leaky_relu: LeakyRelu {
                doc: "`a` where `a > 0`, `b * a` elsewhere.",
                class: float, cost: simple, rounds: once, number: wide, domain: off_zero,
                gradient: [(g a b) through_leak(&g, &a, &b); (g a) through_slope(&g, &a)],
                cpu: |a, b| {
                    let below = a.mul(b);
                    if a.gt(a.one().sub(a.one())) { a } else { below }
                },
                cuda: "a > T(0) ? a : mul(a, b)",
            }
            atan2: Atan2 {
                doc: "The angle of the point `(b, a)` in radians.",
                class: float, cost: power, rounds: more, number: rounded, domain: off_zero,
                gradient: [
                    (g a b) of_angle(g.mul(&b), a.square().add(b.square()));
                    (g a b) of_angle(g.mul(&a), a.square().add(b.square())).neg()
                ],
                cpu: |a, b| a.atan2(b),
                cuda: "atan2(a, b)",
            }
            hypot: Hypot {
                doc: "`sqrt(a^2 + b^2)`, in a form that does not overflow.",
                class: float, cost: quotient, rounds: more, number: rounded, domain: off_zero,
                gradient: [(g a y) g.mul(a).div(y); (g b y) g.mul(b).div(y)],
                cpu: |a, b| a.hypot(b),
                cuda: "hypot(a, b)",
            }
            xlogy: Xlogy {
                doc: "`a * log(b)`; 0 where `a` is 0, unless `b` is NaN.",
                class: float, cost: long, rounds: more, number: rounded, domain: positive,
                gradient: [(g a b) through_factor(&g, &a, &b); (g a b) g.mul(a).div(b)],
                cpu: |a, b| {
                    let product = a.mul(b.log());
                    if a.is_zero() && !b.is_nan() { a.one().sub(a.one()) } else { product }
                },
                cuda: "a == T(0) && b == b ? T(0) : a * log(b)",
            }
            logaddexp: LogAddExp {
                doc: "`log(e^a + e^b)`, in a form that does not overflow.",
                class: float, cost: power, rounds: cancels, number: rounded, domain: all,
                gradient: [
                    (g a b) part_of_sum(&a, &b).mul(g);
                    (g a b) part_of_sum(&b, &a).mul(g)
                ],
                cpu: |a, b| {
                    // Equal infinities have the distance 0, not NaN.
                    let apart = if a.eq(b) { a.one().sub(a.one()) } else { a.sub(b) };
                    a.maximum(b).add(apart.abs().neg().exp().log1p())
                },
                cuda: "maximum(a, b) + log1p(exp(neg(abs(a == b ? T(0) : a - b))))",
            }
            fmod: Fmod {
                doc: "Remainder with the sign of `a`, as C's `fmod`; 0 for an integer division by \
zero.",
                class: number, cost: remainder, rounds: once, number: rounded,
                domain: large_divisor,
                gradient: [(g) g; (g a b y) g.mul(whole_quotient(&a.sub(y), &b)).neg()],
                cpu: |a, b| a.fmod(b),
                cuda: "fmod(a, b)",
            }
            remainder: Remainder {
                doc: "Remainder with the sign of `b`, as Python's `%`; 0 for an integer division \
by zero.",
                class: number, cost: remainder, rounds: once, number: rounded,
                domain: large_divisor,
                gradient: [(g) g; (g a b) g.mul(a.floor_divide(b)).neg()],
                cpu: |a, b| a.remainder(b),
                cuda: "remainder(a, b)",
            }
            floor_divide: FloorDivide {
                doc: "`a / b` rounded down: PyTorch's `div` with `rounding_mode=\"floor\"`; \
integers stay integers, and give 0 when divided by zero. For floats it \
is the quotient that matches `remainder`.",
                class: number, cost: remainder, rounds: once, number: wide, domain: off_zero,
                gradient: [],
                cpu: |a, b| a.floor_divide(b),
                cuda: "floor_divide(a, b)",
            }
            trunc_divide: TruncDivide {
                doc: "`a / b` rounded towards zero: PyTorch's `div` with \
`rounding_mode=\"trunc\"`; integers stay integers, and give 0 when divided by zero.",
                class: number, cost: truncation, rounds: once, number: wide, domain: off_zero,
                gradient: [],
                cpu: |a, b| a.trunc_divide(b),
                cuda: "trunc_divide(a, b)",
            }
            eq: Eq {
                doc: "`a == b`.",
                class: compare, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a.eq(b),
                cuda: "a == b",
            }
            ne: Ne {
                doc: "`a != b`.",
                class: compare, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a.ne(b),
                cuda: "a != b",
            }
            lt: Lt {
                doc: "`a < b`.",
                class: compare, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a.lt(b),
                cuda: "a < b",
            }
            le: Le {
                doc: "`a <= b`.",
                class: compare, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a.le(b),
                cuda: "a <= b",
            }
            gt: Gt {
                doc: "`a > b`.",
                class: compare, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a.gt(b),
                cuda: "a > b",
            }
            ge: Ge {
                doc: "`a >= b`.",
                class: compare, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a.ge(b),
                cuda: "a >= b",
            }
            logical_and: LogicalAnd {
                doc: "True where both operands are nonzero.",
                class: logic, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a & b,
                cuda: "truth(a) & truth(b)",
            }
            logical_or: LogicalOr {
                doc: "True where either operand is nonzero.",
                class: logic, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a | b,
                cuda: "truth(a) | truth(b)",
            }
            logical_xor: LogicalXor {
                doc: "True where exactly one operand is nonzero.",
                class: logic, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a ^ b,
                cuda: "truth(a) ^ truth(b)",
            }
            bitwise_and: BitwiseAnd {
                doc: "Bitwise and; logical for bool.",
                class: bits, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a & b,
                cuda: "T(a & b)",
            }
            bitwise_or: BitwiseOr {
                doc: "Bitwise or; logical for bool.",
                class: bits, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a | b,
                cuda: "T(a | b)",
            }
            bitwise_xor: BitwiseXor {
                doc: "Bitwise exclusive or; logical for bool.",
                class: bits, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a ^ b,
                cuda: "T(a ^ b)",
            }
        }
    };
}
pub(crate) use for_each_binary;
