//! The gradient rules of the op tables and of the ops that every device has: casts, views,
//! reductions.
//!
//! The rules of the tables come from the gradient column (`op`); each rule is written in ops, so
//! that it has a gradient itself.
//!
//! If a slope is infinite and the upstream gradient is 0, their product is NaN, and a mask on the
//! product would not remove it from the second gradient. So a rule masks the values that it reads
//! instead: it takes the slope at another point, where it is finite.
//!
//! # Halves
//!
//! Each op, method, gradient rule and optimizer step takes halves, computes in float32, and rounds
//! its result once; so do sums into one place, and statistics. So a rule gets halves in float32,
//! its results are summed and then rounded ([`Backward::give`]), and several gradients of one value
//! are added in float32. The rounded result of an op on halves may have lost the slope
//! (`sigmoid(12)` is 1 in float16, with slope 0), so the result is recomputed from the operands. A
//! rule that rounds only once anyway (it moves elements, or is a single product) declares
//! [`Needs::as_they_are`], since casts would only cost memory. A chain of a user's ops rounds at
//! each op, and the rules of custom ops get values in their own types.

// A new op must state its gradient.
#![deny(clippy::wildcard_enum_match_arm)]

use super::backward::Backward;
use super::rules::*;
use super::side::{Number, Side};
use crate::dtype::{DType, Scalar};
use crate::graph::node::{Op, Reduction, ViewOp};
use crate::graph::operation::{Needs, Refusal};
use crate::graph::program::number_beside;
use crate::graph::tape::Made;
use crate::op::{
    BinaryOp, ReduceOp, Rounds, UnaryOp, for_each_binary, for_each_reduce, for_each_unary,
};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use smallvec::SmallVec;

/// The values that a gradient of the tables reads, by the names in its parentheses.
#[derive(Clone, Copy)]
struct Reads {
    /// The operands.
    operands: [bool; 2],
    result: bool,
}

const NOTHING: Reads = Reads { operands: [false; 2], result: false };

const fn reads(names: &[&str]) -> Reads {
    let (mut reads, mut i) = (NOTHING, 0);
    while i < names.len() {
        match names[i].as_bytes() {
            b"x" | b"a" => reads.operands[0] = true,
            b"b" => reads.operands[1] = true,
            b"y" => reads.result = true,
            b"g" | b"over" => {}
            _ => panic!("a gradient reads g, x or a and b, y"),
        }
        i += 1;
    }
    reads
}

impl Reads {
    /// The needs, among operands that are values.
    fn needs(self, number: Number) -> Needs {
        let mut needs = if self.result { Needs::OUTPUT } else { Needs::NOTHING };
        for (i, reads) in self.operands.into_iter().enumerate() {
            if let Some(place) = Side::place(number, i).filter(|_| reads) {
                needs = needs.and(Needs::inputs(&[place]));
            }
        }
        needs
    }
}

/// Binds the names of a gradient.
macro_rules! named {
    ($call:ident, $at:ident, g) => {
        $call.upstream.clone()
    };
    ($call:ident, $at:ident, y) => {
        $call.output().clone()
    };
    ($call:ident, $at:ident, x) => {
        $call.input(0).clone()
    };
    ($call:ident, $at:ident, a) => {
        Side::of($call, $at, 0)
    };
    ($call:ident, $at:ident, b) => {
        Side::of($call, $at, 1)
    };
}

macro_rules! give {
    ($call:ident, $at:ident, $place:expr, ($($name:ident)*) $e:expr) => {
        $call.give($place, |call| {
            let _ = $at;
            $(let $name = named!(call, $at, $name);)*
            $e
        })
    };
}

macro_rules! unary_rule {
    ($call:ident, []) => {{}};
    ($call:ident, [$names:tt $e:expr]) => {{
        let alone = None::<(Scalar, bool)>;
        give!($call, alone, 0, $names $e)
    }};
    ($call:ident, [$names:tt $e:expr; halves $others:tt $half:expr]) => {{
        let alone = None::<(Scalar, bool)>;
        match $call.output_meta.dtype.is_half() {
            true => give!($call, alone, 0, $others $half),
            false => give!($call, alone, 0, $names $e),
        }
    }};
}

macro_rules! unary_reads {
    ($half:ident, []) => { NOTHING };
    ($half:ident, [($($name:ident)*) $e:expr]) => { const { reads(&[$(stringify!($name)),*]) } };
    ($half:ident, [$names:tt $e:expr; halves $others:tt $other:expr]) => {
        if $half { unary_reads!($half, [$others $other]) } else { unary_reads!($half, [$names $e]) }
    };
}

macro_rules! unary_rules {
    ($($name:ident: $Variant:ident {
        doc: $text:literal,
        page: $page:ident, class: $class:ident, cost: $cost:ident, rounds: $rounds:ident,
        domain: $domain:ident,
        gradient: $gradient:tt,
        $($columns:tt)*
    })*) => {
        fn unary(op: UnaryOp, call: &mut Backward<'_>) {
            match op { $(UnaryOp::$Variant => unary_rule!(call, $gradient),)* }
        }
        fn unary_reads(op: UnaryOp, half: bool) -> Reads {
            match op { $(UnaryOp::$Variant => unary_reads!(half, $gradient),)* }
        }
    };
}
for_each_unary!(unary_rules);

macro_rules! binary_rule {
    ($call:ident, $at:ident, []) => {{}};
    ($call:ident, $at:ident, [$a:tt $da:expr; $b:tt $db:expr]) => {{
        if let Some(place) = Side::place($at, 0) {
            give!($call, $at, place, $a $da);
        }
        if let Some(place) = Side::place($at, 1) {
            give!($call, $at, place, $b $db);
        }
    }};
}

macro_rules! binary_reads {
    ([]) => { [NOTHING; 2] };
    ([($($a:ident)*) $da:expr; ($($b:ident)*) $db:expr]) => {
        const { [reads(&[$(stringify!($a)),*]), reads(&[$(stringify!($b)),*])] }
    };
}

macro_rules! binary_rules {
    ($($name:ident: $Variant:ident {
        doc: $text:literal,
        class: $class:ident, cost: $cost:ident, rounds: $rounds:ident, number: $number:ident,
        domain: $domain:ident,
        gradient: $gradient:tt,
        $($columns:tt)*
    })*) => {
        fn binary(op: BinaryOp, at: Number, call: &mut Backward<'_>) {
            match op { $(BinaryOp::$Variant => binary_rule!(call, at, $gradient),)* }
        }
        fn binary_reads(op: BinaryOp) -> [Reads; 2] {
            match op { $(BinaryOp::$Variant => binary_reads!($gradient),)* }
        }
    };
}
for_each_binary!(binary_rules);

/// Binds the names of a reduction's gradient; all except the operand have the reduced dimensions at
/// size 1.
macro_rules! reduced {
    ($call:ident, $over:ident, g) => {
        $over.kept(&$call.upstream)
    };
    ($call:ident, $over:ident, y) => {
        $over.kept($call.output())
    };
    ($call:ident, $over:ident, x) => {
        $call.input(0).clone()
    };
    ($call:ident, $over:ident, over) => {
        &$over
    };
}

macro_rules! reduce_rule {
    ($call:ident, $r:ident, []) => {{}};
    ($call:ident, $r:ident, [($($name:ident)*) $e:expr]) => {
        $call.give(0, |call| {
            let over = Over::new(&call.meta(0).shape, &$r.dims, call.keeps_graph());
            $(let $name = reduced!(call, over, $name);)*
            $e
        })
    };
}

macro_rules! reduce_reads {
    ([]) => { NOTHING };
    ([($($name:ident)*) $e:expr]) => { const { reads(&[$(stringify!($name)),*]) } };
}

macro_rules! reduce_rules {
    ($($name:ident: $Variant:ident {
        doc: $text:literal,
        keepdim: $keepdim:ident, everything: $everything:ident,
        class: $class:ident, cost: $cost:ident, rounds: $rounds:ident, of_nothing: $nothing:ident,
        of_no_dims: $no_dims:ident, domain: $domain:ident,
        gradient: $gradient:tt,
    })*) => {
        fn reduction(r: &Reduction, call: &mut Backward<'_>) {
            match r.op { $(ReduceOp::$Variant => reduce_rule!(call, r, $gradient),)* }
        }
        fn reduce_reads(op: ReduceOp) -> Reads {
            match op { $(ReduceOp::$Variant => reduce_reads!($gradient),)* }
        }
    };
}
for_each_reduce!(reduce_rules);

/// Ops without operands, and ops that are never differentiated.
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

/// The values that the rule of an op reads, for a result of this type.
pub(super) fn needs(made: &Made, wanted: &[bool], dtype: DType) -> Needs {
    let Made::Op(op) = made else { return Needs::NOTHING.as_they_are() };
    let both = |op: BinaryOp, number: Number| {
        let mut needs = Needs::NOTHING;
        for (i, reads) in binary_reads(op).into_iter().enumerate() {
            let is_wanted = Side::place(number, i).and_then(|place| wanted.get(place));
            if is_wanted == Some(&true) {
                needs = needs.and(reads.needs(number));
            }
        }
        needs
    };
    // An op that never rounds selects between its operands or turns their signs, and so does its
    // gradient.
    let exact = |rounds: Rounds, needs: Needs| {
        if rounds == Rounds::never { needs.as_they_are() } else { needs }
    };
    let needs = match op {
        Op::Unary(op) => match wanted.first() {
            Some(true) => exact(op.rounds(), unary_reads(*op, dtype.is_half()).needs(None)),
            _ => Needs::NOTHING,
        },
        Op::Binary(op) => both(*op, None),
        Op::WithScalar { op, scalar, left } => {
            exact(op.rounds(), both(*op, Some((*scalar, *left))))
        }
        Op::Where => Needs::inputs(&[0]).as_they_are(),
        Op::Cast | Op::View(_) => Needs::NOTHING.as_they_are(),
        // What flows back through a sum is repeated, and nothing is computed.
        Op::Reduce(r) if r.op == ReduceOp::Sum => Needs::NOTHING.as_they_are(),
        Op::Reduce(r) => reduce_reads(r.op).needs(None),
        Op::Custom(op) => op.gradient_needs(wanted),
        without_rule!() => Needs::NOTHING,
    };
    let picks = matches!(op, Op::Reduce(r) if r.op.rounds() == Rounds::never);
    let rounded = dtype.is_half() && !needs.are_as_they_are() && !picks;
    if rounded { needs.with_output_again() } else { needs }
}

/// An op on halves as an op on float32, with its number already rounded if the op rounds it.
pub(super) fn in_float32(op: &Op, dtype: DType) -> Op {
    let &Op::WithScalar { op, scalar, left } = op else { return op.clone() };
    Op::WithScalar { op, scalar: seen(op, scalar, dtype), left }
}

/// The number operand of an op on values of a type, after rounding.
fn seen(op: BinaryOp, s: Scalar, dtype: DType) -> Scalar {
    if number_beside(op, dtype) == dtype { s.rounded_to(dtype) } else { s }
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
        Op::Binary(op) => binary(*op, None, call),
        Op::WithScalar { op, scalar, left } => {
            binary(*op, Some((seen(*op, *scalar, call.meta(0).dtype), *left)), call);
        }
        Op::Where => {
            call.give(1, |call| call.input(0).where_cond(&call.upstream, 0.0));
            call.give(2, |call| call.input(0).where_cond(0.0, &call.upstream));
        }
        Op::Cast => call.give(0, |call| call.upstream.clone()),
        Op::View(op) => call.give(0, |call| view(op, call)),
        Op::Reduce(r) => reduction(r, call),
        Op::Custom(op) => return op.gradient(call),
        without_rule!() => return Err(Refusal::no_gradient()),
    }
    Ok(())
}

fn view(op: &ViewOp, call: &Backward<'_>) -> TensorFuture {
    let (g, shape) = (&call.upstream, &call.meta(0).shape);
    match op {
        ViewOp::Reshape => g.reshape(shape.dims()),
        // `give` sums over broadcast dimensions.
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
        &ViewOp::Windows { dim, step } => of_windows(g, shape, dim as usize, step),
        &ViewOp::Diagonal { start } => g.on_diagonal(shape, start),
    }
}
