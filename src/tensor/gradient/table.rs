//! Gradient rules of the op table and of the ops that every device knows: casts, views, reductions.
//!
//! The table's own come from its gradient column (`op.rs`); each rule is written in ops, so that it
//! has a gradient itself.
//!
//! Where a slope is infinite and what flows is nothing, their product is NaN, which no mask
//! behind it takes away from the second gradient. So a rule masks what it reads: the slope is that
//! of another place, where it is finite.
//!
//! # Halves
//!
//! One op, one method, one gradient rule, one optimizer step computes in float32 between its inputs
//! and its result where they are halves, and rounds once; sums into one place and statistics too.
//! So a rule is given halves in float32, what it gives is summed up and then rounded
//! ([`Backward::give`]), and several gradients of one value are added in float32. The result of an
//! op on halves may have lost what the rule is about (of `sigmoid(12)` in float16, 1, the slope is
//! 0): it is made again, of the operands. A rule that rounds once by itself (it moves elements, or
//! is one product) says so by [`Needs::as_they_are`]; the casts would only cost it memory. Chains
//! of a user's ops round at each op, and the rules of his ops see values in their own types.

// A new row has no gradient that nobody thought of.
#![deny(clippy::wildcard_enum_match_arm)]

use super::backward::Backward;
use crate::dtype::{DType, Scalar};
use crate::graph::node::{Op, Reduction, ViewOp};
use crate::graph::operation::{Needs, Refusal};
use crate::graph::program::number_beside;
use crate::graph::tape::Made;
use crate::op::{BinaryOp, Class, ReduceOp, UnaryOp, for_each_binary, for_each_unary};
use crate::ops::order::others::others;
use crate::shape::Shape;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use smallvec::SmallVec;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// What a rule of the table reads, by the names in its brackets.
const fn needs_of(names: &[&str]) -> Needs {
    let (mut needs, mut i) = (Needs::NOTHING, 0);
    while i < names.len() {
        needs = match names[i].as_bytes() {
            b"x" | b"a" => needs.and(Needs::inputs(&[0])),
            b"b" => needs.and(Needs::inputs(&[1])),
            b"y" => needs.and_output(),
            _ => needs,
        };
        i += 1;
    }
    needs
}

macro_rules! give {
    ($call:ident, $i:literal, ($($name:ident)*), $e:expr) => {
        $call.give($i, |call| {
            $(let $name = call.named(stringify!($name));)*
            $e
        })
    };
}

macro_rules! rule {
    ($call:ident, []) => {{}};
    ($call:ident, [($($name:ident)*) $e:expr]) => { give!($call, 0, ($($name)*), $e) };
    ($call:ident, [($($name:ident)*) $e:expr; halves ($($other:ident)*) $half:expr]) => {
        match $call.output_meta.dtype.is_half() {
            true => give!($call, 0, ($($other)*), $half),
            false => give!($call, 0, ($($name)*), $e),
        }
    };
    ($call:ident, [($($a:ident)*) $da:expr; ($($b:ident)*) $db:expr]) => {{
        give!($call, 0, ($($a)*), $da);
        give!($call, 1, ($($b)*), $db);
    }};
}

macro_rules! needs {
    ($half:ident, []) => { [Needs::NOTHING; 2] };
    ($half:ident, [($($name:ident)*) $e:expr]) => {
        [const { needs_of(&[$(stringify!($name)),*]) }, Needs::NOTHING]
    };
    ($half:ident, [($($name:ident)*) $e:expr; halves $names:tt $other:expr]) => {
        if $half { needs!($half, [$names $other]) } else { needs!($half, [($($name)*) $e]) }
    };
    ($half:ident, [($($a:ident)*) $da:expr; ($($b:ident)*) $db:expr]) => {
        [const { needs_of(&[$(stringify!($a)),*]) }, const { needs_of(&[$(stringify!($b)),*]) }]
    };
}

macro_rules! rules {
    ($rule:ident, $needs:ident, $Enum:ident;
     $($doc:literal, $name:ident, $V:ident, $class:ident, |$($x:ident),*| $e:expr, $kernel:literal, $grad:tt;)*) => {
        fn $rule(op: $Enum, call: &mut Backward<'_>) {
            match op { $($Enum::$V => rule!(call, $grad),)* }
        }
        fn $needs(op: $Enum, half: bool) -> [Needs; 2] {
            let _ = half;
            match op { $($Enum::$V => needs!(half, $grad),)* }
        }
    };
}
macro_rules! unary_rules { ($($rows:tt)*) => { rules! { unary, unary_needs, UnaryOp; $($rows)* } } }
macro_rules! binary_rules { ($($rows:tt)*) => { rules! { binary, binary_needs, BinaryOp; $($rows)* } } }
for_each_unary!(unary_rules);
for_each_binary!(binary_rules);

/// `cdf(x) + x * pdf(x)` of the normal distribution.
fn gelu_slope(x: &TensorFuture) -> TensorFuture {
    let below = x.mul(FRAC_1_SQRT_2).erf().add(1).mul(0.5);
    let density = x.square().mul(-0.5).exp().mul(FRAC_2_SQRT_PI * FRAC_1_SQRT_2 / 2.0);
    below.add(x.mul(density))
}

/// Of `x (1 + tanh u) / 2` with `u = sqrt(2/pi) (x + 0.044715 x^3)`.
fn gelu_tanh_slope(x: &TensorFuture) -> TensorFuture {
    const K: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
    const C: f64 = 0.044715;
    let square = x.square();
    let t = x.mul(square.mul(C).add(1)).mul(K).tanh();
    let inner = square.mul(3.0 * C).add(1).mul(K);
    let slope = (1.0 - t.square()).mul(inner).mul(x);
    t.add(1).add(slope).mul(0.5)
}

/// The same by `(1 + tanh u) / 2 = sigmoid(2 u)`, which keeps its digits where that is near 0.
fn gelu_tanh_slope_at_ends(x: &TensorFuture) -> TensorFuture {
    const K: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
    const C: f64 = 0.044715;
    let square = x.square();
    let u = x.mul(square.mul(C).add(1)).mul(2.0 * K);
    let inner = square.mul(3.0 * C).add(1).mul(2.0 * K);
    u.sigmoid().add(sigmoid_slope(&u).mul(inner).mul(x))
}

/// Of `1 / (1 + e^-x)`, with all its digits where it is small.
fn sigmoid_slope(x: &TensorFuture) -> TensorFuture {
    x.sigmoid().mul(x.neg().sigmoid())
}

/// `1 - x^2`, which keeps its digits near 1 and -1. There the factors have them; elsewhere, and at
/// 1 itself, the slope of the factors would lose them.
fn one_less_square(x: &TensorFuture) -> TensorFuture {
    let size = x.abs();
    let near = size.gt(0.5).logical_and(size.lt(1));
    near.where_cond((1.0 - x).mul(x.add(1)), 1.0 - x.square())
}

/// `x^2 - 1`, likewise.
fn square_less_one(x: &TensorFuture) -> TensorFuture {
    let near = x.gt(1).logical_and(x.lt(2));
    near.where_cond(x.sub(1).mul(x.add(1)), x.square().sub(1))
}

/// To `a`: `b * a^(b - 1)`, and nothing where `b` is 0.
fn through_base(g: &TensorFuture, a: &TensorFuture, b: &TensorFuture) -> TensorFuture {
    let finite = a.recip().isfinite().logical_and(g.isfinite());
    let still = b.eq(0).logical_and(finite.logical_not());
    let (g, a) = (still.where_cond(0.0, g), still.where_cond(1.0, a));
    b.mul(a.pow(b.sub(1))).mul(g)
}

/// To `b`: `y log(a)`, and nothing where `a` is 0 and stays it.
fn through_exponent(
    g: &TensorFuture,
    a: &TensorFuture,
    b: &TensorFuture,
    y: &TensorFuture,
) -> TensorFuture {
    let still = a.eq(0).logical_and(b.ge(0));
    y.mul(still.where_cond(1.0, a.to_dtype(y.dtype())).log()).mul(g)
}

/// All to the operand that was chosen, and half where both are equal. What compares with nothing
/// is NaN, and all of it goes to both.
fn chosen(g: &TensorFuture, lost: TensorFuture, tied: TensorFuture) -> TensorFuture {
    lost.where_cond(0.0, tied.where_cond(g.mul(0.5), g))
}

/// `x / square`, and nothing where that is 0: the angle of the point where both axes meet.
fn of_angle(x: TensorFuture, square: TensorFuture) -> TensorFuture {
    let nothing = square.eq(0);
    nothing.where_cond(0.0, x).div(nothing.where_cond(1.0, square))
}

/// A tensor and a number.
fn with_scalar(op: BinaryOp, s: Scalar, left: bool, call: &mut Backward<'_>) {
    use BinaryOp::*;
    let limit = |keep: TensorFuture, g: &TensorFuture| keep.where_cond(g, 0.0);
    call.give(0, |call| {
        let (g, x, s64) = (&call.upstream, || call.input(0), s.as_f64());
        match (op, left) {
            (Add, _) | (Sub, false) | (Fmod | Remainder, false) => g.clone(),
            (Sub, true) => g.neg(),
            (Mul, _) => g.mul(s),
            (Div, false) => g.div(s),
            (Div, true) => g.mul(call.output()).div(x()).neg(),
            (Pow, false) if s64 == 0.0 => call.zeros(0),
            (Pow, true) if s64 == 0.0 => {
                x().ge(0).where_cond(0.0, g.mul(call.output()).mul(s64.ln()))
            }
            (Pow, false) if s64 == 2.0 => g.mul(x()).mul(2),
            (Pow, false) => g.mul(x().pow(s64 - 1.0)).mul(s),
            (Pow, true) => g.mul(call.output()).mul(s64.ln()),
            // At the limit itself nothing goes through, as in PyTorch's clamp.
            (Maximum, _) => limit(x().gt(s), g),
            (Minimum, _) => limit(x().lt(s), g),
            (Atan2, left) => {
                let flow = of_angle(g.mul(s), x().square().add(s64 * s64));
                if left { flow.neg() } else { flow }
            }
            (Fmod, true) => g.mul(whole_quotient(&call.output().neg().add(s), x())).neg(),
            (Remainder, true) => g.mul(s.floor_divide(x())).neg(),
            (FloorDivide | TruncDivide | Eq | Ne | Lt | Le | Gt | Ge, _) => call.zeros(0),
            (LogicalAnd | LogicalOr | LogicalXor | BitwiseAnd | BitwiseOr | BitwiseXor, _) => {
                call.zeros(0)
            }
        }
    });
}

fn scalar_needs(op: BinaryOp, s: Scalar, left: bool) -> Needs {
    use BinaryOp::*;
    match (op, left) {
        (Add | Mul | Sub | FloorDivide | TruncDivide, _) | (Div | Fmod | Remainder, false) => {
            Needs::NOTHING
        }
        (Div | Fmod, true) => Needs::inputs(&[0]).and_output(),
        (Pow, true) if s.as_f64() == 0.0 => Needs::inputs(&[0]).and_output(),
        (Pow, true) => Needs::OUTPUT,
        (Pow, false) | (Remainder, true) | (Atan2, _) => Needs::inputs(&[0]),
        // As the limit was seen.
        (Maximum | Minimum, _) => Needs::inputs(&[0]).as_they_are(),
        (Eq | Ne | Lt | Le | Gt | Ge, _) => Needs::NOTHING,
        (LogicalAnd | LogicalOr | LogicalXor | BitwiseAnd | BitwiseOr | BitwiseXor, _) => {
            Needs::NOTHING
        }
    }
}

/// The whole number that a multiple of `b` is of it. The quotient may lie a rounding beside it.
fn whole_quotient(multiple: &TensorFuture, b: &TensorFuture) -> TensorFuture {
    multiple.div(b).round()
}

/// What is made of nothing, and what nobody differentiates.
macro_rules! without_rule {
    () => {
        Op::Fill(_)
            | Op::Arange { .. }
            | Op::Random { .. }
            | Op::Source(_)
            | Op::Sink(_)
            | Op::Call(_)
            | Op::Part(_)
            | Op::Predicated(_)
            | Op::Marker
            | Op::Given
    };
}

/// Which values the rule of an op with a result of this type reads.
pub(super) fn needs(made: &Made, wanted: &[bool], dtype: DType) -> Needs {
    let both = |[a, b]: [Needs; 2]| {
        let used =
            |i: usize, needs| if wanted.get(i) == Some(&true) { needs } else { Needs::NOTHING };
        used(0, a).and(used(1, b))
    };
    let Made::Op(op) = made else { return Needs::NOTHING.as_they_are() };
    let needs = match op {
        Op::Unary(op) => both(unary_needs(*op, dtype.is_half())),
        Op::Binary(op) => both(binary_needs(*op, dtype.is_half())),
        Op::WithScalar { op, scalar, left } => scalar_needs(*op, *scalar, *left),
        Op::Where => Needs::inputs(&[0]).as_they_are(),
        Op::Cast | Op::View(_) => Needs::NOTHING.as_they_are(),
        Op::Reduce(r) => match r.op {
            ReduceOp::Prod => Needs::inputs(&[0]),
            ReduceOp::Max | ReduceOp::Min => Needs::inputs(&[0]).and_output(),
            ReduceOp::Sum | ReduceOp::Mean => Needs::NOTHING,
            ReduceOp::Any | ReduceOp::All | ReduceOp::ArgMax | ReduceOp::ArgMin => Needs::NOTHING,
        },
        Op::Custom(op) => op.gradient_needs(wanted),
        without_rule!() => Needs::NOTHING,
    };
    let rounded = dtype.is_half() && !needs.are_as_they_are() && !is_exact(op);
    if rounded { needs.with_output_again() } else { needs }
}

/// An op on halves as one on float32: what rounds its number to their type has that.
pub(super) fn in_float32(op: &Op, dtype: DType) -> Op {
    let &Op::WithScalar { op, scalar, left } = op else { return op.clone() };
    Op::WithScalar { op, scalar: seen(op, scalar, dtype), left }
}

/// A number beside values of a type, as an op sees it.
fn seen(op: BinaryOp, s: Scalar, dtype: DType) -> Scalar {
    if number_beside(op, dtype) == dtype { s.rounded_to(dtype) } else { s }
}

/// True of an op whose result in halves is what it is in float32.
fn is_exact(op: &Op) -> bool {
    let is_unary = |op: &UnaryOp| op.class() == Class::number && *op != UnaryOp::Square;
    matches!(op, Op::Unary(op) if is_unary(op))
        || matches!(op, Op::Reduce(r) if matches!(r.op, ReduceOp::Max | ReduceOp::Min))
}

/// Applies the rule of an op.
pub(super) fn apply(made: &Made, call: &mut Backward<'_>, back: &Device) -> Result<(), Refusal> {
    let op = match made {
        Made::Leaf => return Ok(()),
        Made::Same => {
            call.give(0, |call| call.upstream.clone());
            return Ok(());
        }
        Made::Moved => {
            call.give(0, |call| call.upstream.to_device(back));
            return Ok(());
        }
        Made::Op(op) => op,
    };
    match op {
        Op::Unary(op) => unary(*op, call),
        Op::Binary(op) => binary(*op, call),
        Op::WithScalar { op, scalar, left } => {
            with_scalar(*op, seen(*op, *scalar, call.meta(0).dtype), *left, call);
        }
        Op::Where => {
            call.give(1, |call| call.input(0).where_cond(&call.upstream, 0.0));
            call.give(2, |call| call.input(0).where_cond(0.0, &call.upstream));
        }
        Op::Cast => call.give(0, |call| call.upstream.clone()),
        Op::View(op) => call.give(0, |call| view(op, call)),
        Op::Reduce(r) => call.give(0, |call| reduction(r, call)),
        Op::Custom(op) => return op.gradient(call),
        without_rule!() => return Err(Refusal::argument("this op has no gradient rule")),
    }
    Ok(())
}

fn view(op: &ViewOp, call: &Backward<'_>) -> TensorFuture {
    let (g, shape) = (&call.upstream, &call.meta(0).shape);
    match op {
        ViewOp::Reshape => g.reshape(shape.dims()),
        // `give` sums up.
        ViewOp::Expand => g.clone(),
        ViewOp::Permute(order) => {
            let mut inverse: SmallVec<[isize; 8]> = SmallVec::from_elem(0, order.len());
            for (to, &from) in order.iter().enumerate() {
                inverse[from as usize] = to as isize;
            }
            g.permute(&inverse[..])
        }
        &ViewOp::Slice { dim, start, step } => {
            let parts: Vec<(usize, usize, isize)> =
                (0..shape.rank())
                    .map(|d| {
                        if d == dim as usize {
                            (start, g.dims()[d], step)
                        } else {
                            (0, shape[d], 1)
                        }
                    })
                    .collect();
            g.among_zeros(shape, &parts)
        }
    }
}

fn reduction(r: &Reduction, call: &Backward<'_>) -> TensorFuture {
    let shape = &call.meta(0).shape;
    let kept: SmallVec<[isize; 8]> =
        shape.iter().zip(&r.dims).map(|(&n, &gone)| if gone { 1 } else { n as isize }).collect();
    let dims: SmallVec<[isize; 8]> =
        (0..shape.rank()).filter(|&d| r.dims[d]).map(|d| d as isize).collect();
    let over = shape.iter().zip(&r.dims).filter(|(_, gone)| **gone).map(|(&n, _)| n);
    let count = over.collect::<Shape>().numel();
    let g = call.upstream.reshape(&kept[..]);
    match r.op {
        ReduceOp::Mean => g.div(count as f64),
        // Equals share.
        ReduceOp::Max | ReduceOp::Min => {
            let y = call.output().reshape(&kept[..]);
            let chosen = call.input(0).eq(&y).to_dtype(g.dtype());
            chosen.mul(g.div(chosen.sum_keepdim(&dims[..])))
        }
        ReduceOp::Prod => {
            let x = call.input(0);
            // What goes as one dimension, at the end.
            let mut order: SmallVec<[usize; 8]> =
                (0..shape.rank()).filter(|&d| !r.dims[d]).collect();
            let mut rows: SmallVec<[usize; 8]> = order.iter().map(|&d| shape[d]).collect();
            rows.push(count);
            order.extend((0..shape.rank()).filter(|&d| r.dims[d]));
            let x = x.permute(&order[..]);
            let back: SmallVec<[usize; 8]> = (0..order.len())
                .map(|d| order.iter().position(|&from| from == d).unwrap_or(d))
                .collect();
            others(&x.reshape(&rows[..]), -1).reshape(x.dims()).permute(&back[..]).mul(g)
        }
        ReduceOp::Sum => g,
        ReduceOp::Any | ReduceOp::All | ReduceOp::ArgMax | ReduceOp::ArgMin => call.zeros(0),
    }
}
