//! The steps of one instruction of a plan, or of two that make a [pair](pairs): which loops, and
//! what is converted before and after them. Called by the planner; knows neither registers nor
//! memory.

#![allow(unsafe_code)]

use super::place::{NOWHERE, Place};
use super::plan::{Call, Plan, Step, is_half};
use super::rep::Rep;
use super::{halves, loops, moves, pairs};
use crate::dtype::DType;
use crate::graph::program::{Arg, Code, Instr, Reg};
use crate::host::kernels::simd::{Level, Loop};
use crate::op::{BinaryOp, Class};

/// True for a conversion from or to a type for storage. Between its loops are elements of up to
/// eight bytes.
pub(super) fn is_stored_on_a_side(instr: &Instr) -> bool {
    matches!(instr.code, Code::Cast(_)) && (instr.on.is_storage() || instr.dtype.is_storage())
}

/// The step of two instructions: the first, which is a register that the second alone reads, and
/// not the same everywhere; and the second.
pub(super) fn both(
    plan: &mut Plan,
    call: &Call<'_>,
    [first, second]: [&Instr; 2],
    register: Reg,
    dst: Place,
    [[a, b, _], [left, right, _]]: [[Place; 3]; 2],
) {
    let (Some(how), Some(then)) = (pairs::how(first), pairs::how(second)) else {
        unreachable!("the planner pairs what can be one of a pair");
    };
    // A row comes first.
    let (how, a, b) = if a.uniform { (pairs::turned(how), b, a) } else { (how, a, b) };
    let (then, c) = match second.code.args() {
        [Some(Arg::Reg(r)), ..] if r == register => (then, right),
        _ => (pairs::turned(then), left),
    };
    plan.run(pairs::pair(call.level, how, then, (b.uniform, c.uniform)), dst, [a, b, c]);
}

/// The steps of one instruction into `dst`. In a cell, a 16-bit float is yet to be rounded.
pub(super) fn compute(plan: &mut Plan, call: &Call<'_>, i: usize, dst: Place, args: [Place; 3]) {
    let instr = &call.program.instrs[i];
    let takes_any = match instr.code {
        Code::Where(..) => true,
        Code::Binary(op, ..) => op.class() == Class::logic,
        _ => false,
    };
    let gives = is_half(instr.dtype);
    let halves = half_tiles(call, instr, &args);
    if dst.uniform || takes_any || !gives && halves == [None; 3] {
        return compute_wide(plan, call, i, dst, args);
    }
    if let Some(run) = half_loop(call.level, instr, &args, halves) {
        return plan.run(run, dst, args);
    }
    // As f32, between conversions.
    let mut wide = args;
    for (x, half) in wide.iter_mut().zip(halves) {
        if let Some(half) = half {
            let tile = plan.slot();
            plan.run(moves::widen(call.level, half), tile, [*x, NOWHERE, NOWHERE]);
            *x = tile;
        }
    }
    let result = if gives { plan.slot() } else { dst };
    compute_wide(plan, call, i, result, wide);
    if gives {
        plan.run(moves::narrow(call.level, instr.dtype), dst, [result, NOWHERE, NOWHERE]);
        plan.release(result);
    }
    for (tile, _) in wide.into_iter().zip(halves).filter(|(_, half)| half.is_some()) {
        plan.release(tile);
    }
}

/// Which operands are tiles of 16-bit floats, and of which type.
fn half_tiles(call: &Call<'_>, instr: &Instr, args: &[Place; 3]) -> [Option<DType>; 3] {
    let operands = instr.code.args();
    std::array::from_fn(|k| match operands[k] {
        Some(Arg::Reg(r)) if !args[k].uniform => {
            Some(call.program.dtype(r)).filter(|&dtype| is_half(dtype))
        }
        _ => None,
    })
}

/// The loop of an instruction that takes tiles of 16-bit floats as they are, or makes them, where
/// there is one. What computes on f32 and gives halves may take both; a cell holds f32 anyway.
fn half_loop(
    level: Level,
    instr: &Instr,
    args: &[Place; 3],
    halves: [Option<DType>; 3],
) -> Option<Loop> {
    let half = halves.into_iter().flatten().next();
    match (instr.code, half, instr.dtype) {
        (Code::Cast(_), Some(half), DType::F32) => Some(moves::widen(level, half)),
        (Code::Cast(_), Some(_), DType::Bool) => Some(moves::half_truth(level)),
        (Code::Cast(_), None, to) if instr.on == DType::F32 => Some(moves::narrow(level, to)),
        (Code::Unary(op, _), Some(half), _) => halves::unary(level, op, half),
        (Code::Binary(op, ..), Some(half), _) => {
            let splat = (args[0].uniform, args[1].uniform);
            let fits = (splat.0 || halves[0].is_some()) && (splat.1 || halves[1].is_some());
            if fits { halves::binary(level, op, half, splat) } else { None }
        }
        _ => None,
    }
}

/// The steps of one instruction, with 16-bit floats as f32.
fn compute_wide(plan: &mut Plan, call: &Call<'_>, i: usize, dst: Place, args: [Place; 3]) {
    let instr = &call.program.instrs[i];
    let (level, on) = (call.level, Rep::of(instr.on));
    let [a, b, _] = args;
    match instr.code {
        Code::Unary(op, _) => plan.run(loops::unary(level, op, on), dst, args),
        Code::Binary(op, _, _) if op.class() == Class::logic && on != Rep::Bool => {
            let truths = [a, b].map(|x| {
                let truth = plan.room(&[x]);
                let run = match is_half(instr.on) && !x.uniform {
                    true => moves::half_truth(level),
                    false => moves::cast(level, on, Rep::Bool),
                };
                plan.run(run, truth, [x, NOWHERE, NOWHERE]);
                truth
            });
            binary(plan, level, op, Rep::Bool, dst, truths);
            truths.into_iter().for_each(|truth| plan.release(truth));
        }
        Code::Binary(op, _, _) => binary(plan, level, op, on, dst, [a, b]),
        Code::Where(..) if a.uniform && !a.varies => {
            // SAFETY: a uniform register holds its element already.
            let chosen = if unsafe { *a.ptr.cast::<bool>() } { args[1] } else { args[2] };
            let chosen = beside(plan, level, instr.dtype, dst, chosen);
            let size = held(instr.dtype, dst);
            let run =
                if chosen.uniform { moves::fill(level, size) } else { moves::copy(level, size) };
            plan.run(run, dst, [chosen, NOWHERE, NOWHERE]);
        }
        Code::Where(..) => {
            // The loop takes a truth for each element.
            let truths = if a.uniform && !dst.uniform { plan.slot() } else { a };
            if truths.slot != a.slot {
                plan.run(moves::fill(level, size_of::<bool>()), truths, [a, NOWHERE, NOWHERE]);
            }
            let [b, c] = [args[1], args[2]].map(|x| beside(plan, level, instr.dtype, dst, x));
            let select = moves::select(level, held(instr.dtype, dst), (b.uniform, c.uniform));
            plan.run(select, dst, [truths, b, c]);
            if truths.slot != a.slot {
                plan.release(truths);
            }
        }
        Code::Cast(_) if is_stored_on_a_side(instr) => {
            let loops = moves::conversion(level, instr.on, instr.dtype);
            let mut from = a;
            for (i, run) in loops.iter().enumerate() {
                let is_last = i + 1 == loops.len();
                let to = if is_last { dst } else { plan.room(&[dst]) };
                plan.run(*run, to, [from, NOWHERE, NOWHERE]);
                if i > 0 {
                    plan.release(from);
                }
                from = to;
            }
        }
        // Rounded next.
        Code::Cast(_) if is_half(instr.dtype) => plan.run(moves::cast_odd(level, on), dst, args),
        Code::Cast(_) => plan.run(moves::cast(level, on, Rep::of(instr.dtype)), dst, args),
        Code::Arange { start, step } => {
            plan.push(Step::Arange { dtype: instr.dtype, start, step, dst })
        }
        Code::Uniform { seed, offset } => {
            plan.push(Step::Random { normal: false, dtype: instr.dtype, seed, offset, dst });
        }
        Code::Normal { seed, offset } => {
            plan.push(Step::Random { normal: true, dtype: instr.dtype, seed, offset, dst });
        }
        Code::Input(_) | Code::Fill(_) => unreachable!("read in place"),
    }
}

/// The step of a binary op.
#[inline]
fn binary(plan: &mut Plan, level: Level, op: BinaryOp, on: Rep, dst: Place, [a, b]: [Place; 2]) {
    let splat = (a.uniform && !dst.uniform, b.uniform && !dst.uniform);
    plan.run(loops::binary(level, op, on, splat), dst, [a, b, NOWHERE]);
}

/// A value as a tile `dst` of its type holds it: the f32 of a cell is narrowed to 16 bits there.
pub(super) fn beside(
    plan: &mut Plan,
    level: Level,
    dtype: DType,
    dst: Place,
    value: Place,
) -> Place {
    if !is_half(dtype) || dst.uniform || !value.uniform {
        return value;
    }
    let one = plan.room(&[value]);
    plan.run(moves::narrow(level, dtype), one, [value, NOWHERE, NOWHERE]);
    one
}

/// Bytes of an element of a type in a place. Types for storage lie there as in memory: they are
/// moved, or converted.
fn held(dtype: DType, place: Place) -> usize {
    if is_half(dtype) && place.uniform { size_of::<f32>() } else { dtype.size() }
}
