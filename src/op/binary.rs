//! The table of elementwise ops of two operands: one row an op. [`op`](super) has the columns.

/// Rows of binary ops: `name: Variant { columns }`.
///
/// The gradients are those of `a` and of `b`; they read `g`, `a`, `b` and `y`. What broadcasting
/// repeated is added up by whoever calls them. Where one operand is a number, the same gradients
/// are given the number, and the other operand's alone is asked for.
macro_rules! for_each_binary {
    ($callback:ident) => {
        $callback! {
            add: Add {
                doc: "`a + b`; on bool, logical or.",
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
                doc: "`a * b`; on bool, logical and.",
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
                doc: "`a` to the power `b`; an integer to a negative one is 0 unless `a` is 1 or \
-1.",
                class: number, cost: power, rounds: more, number: wide, domain: positive,
                gradient: [(g a b) through_base(&g, &a, &b); (g a y) through_exponent(&g, &a, &y)],
                cpu: |a, b| a.pow(b),
                cuda: "pow(a, b)",
            }
            maximum: Maximum {
                doc: "The larger; NaN if either is NaN.",
                class: any, cost: simple, rounds: never, number: limit, domain: apart,
                gradient: [(g a b) larger(&g, &a, &b); (g a b) larger(&g, &b, &a)],
                cpu: |a, b| a.maximum(b),
                cuda: "maximum(a, b)",
            }
            minimum: Minimum {
                doc: "The smaller; NaN if either is NaN.",
                class: any, cost: simple, rounds: never, number: limit, domain: apart,
                gradient: [(g a b) smaller(&g, &a, &b); (g a b) smaller(&g, &b, &a)],
                cpu: |a, b| a.minimum(b),
                cuda: "minimum(a, b)",
            }
            atan2: Atan2 {
                doc: "Angle of the point `(b, a)` in radians.",
                class: float, cost: power, rounds: more, number: rounded, domain: off_zero,
                gradient: [
                    (g a b) of_angle(g.mul(&b), a.square().add(b.square()));
                    (g a b) of_angle(g.mul(&a), a.square().add(b.square())).neg()
                ],
                cpu: |a, b| a.atan2(b),
                cuda: "atan2(a, b)",
            }
            logaddexp: LogAddExp {
                doc: "`log(e^a + e^b)`, of the larger and the distance, so that nothing overflows.",
                class: float, cost: power, rounds: cancels, number: rounded, domain: all,
                gradient: [
                    (g a b) part_of_sum(&a, &b).mul(g);
                    (g a b) part_of_sum(&b, &a).mul(g)
                ],
                cpu: |a, b| {
                    // Equal infinities have no distance.
                    let apart = if a.eq(b) { a.one().sub(a.one()) } else { a.sub(b) };
                    a.maximum(b).add(apart.abs().neg().exp().log1p())
                },
                cuda: "maximum(a, b) + log1p(exp(neg(abs(a == b ? T(0) : a - b))))",
            }
            fmod: Fmod {
                doc: "Remainder with the sign of `a`, as C's `fmod`; of an integer division by \
zero, 0.",
                class: number, cost: remainder, rounds: once, number: rounded,
                domain: large_divisor,
                gradient: [(g) g; (g a b y) g.mul(whole_quotient(&a.sub(y), &b)).neg()],
                cpu: |a, b| a.fmod(b),
                cuda: "fmod(a, b)",
            }
            remainder: Remainder {
                doc: "Remainder with the sign of `b`, as Python's `%`; of an integer division by \
zero, 0.",
                class: number, cost: remainder, rounds: once, number: rounded,
                domain: large_divisor,
                gradient: [(g) g; (g a b) g.mul(a.floor_divide(b)).neg()],
                cpu: |a, b| a.remainder(b),
                cuda: "remainder(a, b)",
            }
            floor_divide: FloorDivide {
                doc: "The whole number at or below `a / b`, PyTorch's `div` with \
`rounding_mode=\"floor\"`; integers stay integers, and divided by zero are \
0. Of floats it is what belongs to `remainder`.",
                class: number, cost: remainder, rounds: once, number: wide, domain: off_zero,
                gradient: [],
                cpu: |a, b| a.floor_divide(b),
                cuda: "floor_divide(a, b)",
            }
            trunc_divide: TruncDivide {
                doc: "The whole part of `a / b`, PyTorch's `div` with `rounding_mode=\"trunc\"`; \
integers stay integers, and divided by zero are 0.",
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
                doc: "True where both are.",
                class: logic, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a & b,
                cuda: "truth(a) & truth(b)",
            }
            logical_or: LogicalOr {
                doc: "True where either is.",
                class: logic, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a | b,
                cuda: "truth(a) | truth(b)",
            }
            logical_xor: LogicalXor {
                doc: "True where exactly one is.",
                class: logic, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a ^ b,
                cuda: "truth(a) ^ truth(b)",
            }
            bitwise_and: BitwiseAnd {
                doc: "Bitwise and; on bool, logical.",
                class: bits, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a & b,
                cuda: "T(a & b)",
            }
            bitwise_or: BitwiseOr {
                doc: "Bitwise or; on bool, logical.",
                class: bits, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a | b,
                cuda: "T(a | b)",
            }
            bitwise_xor: BitwiseXor {
                doc: "Bitwise exclusive or; on bool, logical.",
                class: bits, cost: simple, rounds: never, number: rounded, domain: all,
                gradient: [],
                cpu: |a, b| a ^ b,
                cuda: "T(a ^ b)",
            }
        }
    };
}
pub(crate) use for_each_binary;
