//! From a program to the steps that a tile takes.
//!
//! Made by the executor once for a call and a thread. Each register gets its place; a slot is
//! used again after its last reader, and two instructions that make a [pair](pairs) become one
//! step.

#![allow(unsafe_code)]

use super::compiled::{Group, Known, Members, Source, groups};
use super::gather::{Lie, lie, stays};
use super::halves::is_exact;
use super::place::{NO_OUTPUT, NOWHERE, Place};
use super::plan::{Call, Plan, SLOT, Step, is_half};
use super::steps::{beside, both, compute, is_stored_on_a_side};
use super::{COMPILED_FROM, moves, pairs, tabled};
use crate::dtype::DType;
use crate::graph::program::{Arg, Code, INSTRS_MAX, Instr, Reg};
use crate::view::View;
use smallvec::SmallVec;

/// Makes the steps of a call.
///
/// # Safety
/// Inputs may be read at every position of the shape. What the steps do is safe while inputs,
/// outputs, slots and `plan` stay where they are.
pub(super) unsafe fn make(plan: &mut Plan, call: &Call<'_>) {
    let instrs = &call.program.instrs[..];
    // The last instruction that reads each register, and how many reads of it are to come.
    let (mut last, mut reads) = ([0u8; INSTRS_MAX], [0u8; INSTRS_MAX]);
    for (i, instr) in instrs.iter().enumerate() {
        for r in instr.code.operands() {
            last[r as usize] = i as u8;
            reads[r as usize] += 1;
        }
        let converts = is_stored_on_a_side(instr);
        plan.widest = plan.widest.max(match instr.dtype {
            _ if converts => size_of::<f64>(),
            half if is_half(half) => size_of::<f32>(),
            other => other.size(),
        });
    }
    plan.stretch = stretch(call);
    plan.segment = plan.stretch.or_else(|| call.inputs.iter().filter_map(run).min());
    // Which registers are written out, and which of them are computed in the output itself.
    let (mut written, mut writable, mut direct) = (0u64, 0, [NO_OUTPUT; INSTRS_MAX]);
    for (k, &r) in call.program.outputs.iter().enumerate() {
        written |= 1 << r;
        let shares = call.inputs.iter().any(|v| v.ptr == call.outputs[k]);
        if !shares {
            direct[r as usize] = k as u8;
            writable |= 1 << r;
        }
    }

    let mut regs = [NOWHERE; INSTRS_MAX];
    let around = if call.stream { writable } else { 0 };
    let groups = found_groups(call, plan.stretch, around);
    let grouped = groups.iter().fold(0, |all, group| all | group.members);
    let mut groups = groups.iter().peekable();
    // The instruction that each takes into its own loop, itself if none.
    let mut taken: [u8; INSTRS_MAX] = std::array::from_fn(|i| i as u8);
    for (i, instr) in instrs.iter().enumerate() {
        while let Some(group) = groups.next_if(|group| group.before == i) {
            fuse(plan, call, group, &direct, &mut regs);
            for r in group.operands(call.program) {
                let_go(plan, r, &mut reads, written, &regs);
            }
        }
        if grouped >> i & 1 != 0 {
            continue;
        }
        let reader = last[i] as usize;
        if reads[i] == 1
            && (written >> i | grouped >> reader) & 1 == 0
            && taken[i] as usize == i
            && taken[reader] as usize == reader
            && pairs::how(&instrs[reader]).is_some()
            && pairs::how(instr).is_some()
            && instr.code.operands().any(|r| !regs[r as usize].uniform)
        {
            // It comes with its reader, and its operands stay until then.
            taken[reader] = i as u8;
            continue;
        }
        let args = arguments(plan, instr, &regs);
        let first = (taken[i] as usize != i).then(|| &instrs[taken[i] as usize]);
        let reg = match instr.code {
            // SAFETY: the caller's promise about inputs.
            Code::Input(k) => unsafe { input(plan, call, k, instr.dtype) },
            Code::Fill(x) => plan.immediate(x, instr.dtype),
            _ => {
                let placed = is_placed(instr);
                let uniform = !placed && first.is_none() && args.iter().all(|a| a.uniform);
                let dst = match direct[i] {
                    k if k != NO_OUTPUT && !uniform && !call.stream => output(call, k, instr.dtype),
                    _ if placed || first.is_some() => plan.slot(),
                    _ => plan.room(&args),
                };
                match first {
                    Some(first) => {
                        let of_first = arguments(plan, first, &regs);
                        both(plan, call, [first, instr], taken[i], dst, [of_first, args]);
                    }
                    None => match call.lookups.iter().find(|(r, _)| *r as usize == i) {
                        Some((_, table)) => {
                            let run = tabled::lookup(call.level, instr);
                            plan.run(run, dst, [args[0], Place::one(table.ptr()), args[1]]);
                        }
                        None => compute(plan, call, i, dst, args),
                    },
                }
                if uniform && is_half(instr.dtype) && !is_exact(instr.code) {
                    let rounded = plan.room(&[dst]);
                    let round = moves::round(call.level, instr.dtype);
                    plan.run(round, rounded, [dst, NOWHERE, NOWHERE]);
                    rounded
                } else {
                    dst
                }
            }
        };
        regs[i] = reg;
        for r in [Some(instr), first].into_iter().flatten().flat_map(|instr| instr.code.operands())
        {
            let_go(plan, r, &mut reads, written, &regs);
        }
    }
    for group in groups {
        fuse(plan, call, group, &direct, &mut regs);
    }
    for (k, &r) in call.program.outputs.iter().enumerate() {
        store(plan, call, k, call.program.dtype(r), regs[r as usize]);
    }
}

/// True for what depends on the position alone.
fn is_placed(instr: &Instr) -> bool {
    matches!(instr.code, Code::Arange { .. } | Code::Uniform { .. } | Code::Normal { .. })
}

/// Where the operands of an instruction are.
fn arguments(plan: &mut Plan, instr: &Instr, regs: &[Place; INSTRS_MAX]) -> [Place; 3] {
    let condition = matches!(instr.code, Code::Where(..));
    let mut args = [NOWHERE; 3];
    for (k, (place, arg)) in args.iter_mut().zip(instr.code.args()).enumerate() {
        *place = match arg {
            Some(Arg::Reg(r)) => regs[r as usize],
            Some(Arg::Scalar(x)) if condition && k == 0 => plan.immediate(x, DType::Bool),
            Some(Arg::Scalar(x)) => plan.immediate(x, instr.on),
            None => break,
        };
    }
    args
}

/// Output `k`, as a place.
fn output(call: &Call<'_>, k: u8, dtype: DType) -> Place {
    Place::output(k as usize, call.outputs[k as usize], dtype.size())
}

/// A reader of a register has been planned: the slot is free after the last one.
fn let_go(
    plan: &mut Plan,
    r: Reg,
    reads: &mut [u8; INSTRS_MAX],
    written: u64,
    regs: &[Place; INSTRS_MAX],
) {
    reads[r as usize] -= 1;
    if reads[r as usize] == 0 && written >> r & 1 == 0 {
        plan.release(regs[r as usize]);
    }
}

/// The groups of a call's program, if it is long enough for that.
fn found_groups(call: &Call<'_>, stretch: Option<usize>, around: Members) -> SmallVec<[Group; 2]> {
    let program = call.program;
    if program.instrs.len() < 2 || crate::shape::numel(call.shape) < COMPILED_FROM {
        return SmallVec::new();
    }
    let mut same: Members = 0;
    for (i, instr) in program.instrs.iter().enumerate() {
        let is_same = match instr.code {
            Code::Input(k) => is_cell(&call.inputs[k as usize], stretch),
            _ => !is_placed(instr) && instr.code.operands().all(|r| same >> r & 1 != 0),
        };
        same |= (is_same as Members) << i;
    }
    let apart = call.lookups.iter().fold(0, |all, (r, _)| all | 1 << r);
    groups(call.level, program, Known { same, apart, around, call: call.number })
}

/// The step of a group.
fn fuse(
    plan: &mut Plan,
    call: &Call<'_>,
    group: &Group,
    direct: &[u8; INSTRS_MAX],
    regs: &mut [Place; INSTRS_MAX],
) {
    let mut places: SmallVec<[Place; 16]> = SmallVec::new();
    for source in &group.read {
        places.push(match *source {
            Source::Reg(r) => regs[r as usize],
            Source::Number(x, on) => plan.immediate(x, on),
            Source::Bits(bits) => Place::one((bits as *const u32).cast_mut().cast()),
        });
    }
    for &r in &group.written {
        let place = match direct[r as usize] {
            NO_OUTPUT => plan.slot(),
            _ if call.stream && group.streamed >> r & 1 == 0 => plan.slot(),
            k => output(call, k, call.program.dtype(r)),
        };
        regs[r as usize] = place;
        places.push(place);
    }
    plan.push(Step::Fused { which: plan.fused.len() as u8 });
    plan.fused.push(group.at(places));
}

/// The register of an input.
///
/// # Safety
/// The input may be read at every position.
unsafe fn input(plan: &mut Plan, call: &Call<'_>, k: u8, dtype: DType) -> Place {
    let view = &call.inputs[k as usize];
    debug_assert_eq!((view.dtype, view.shape), (dtype, call.shape));
    let size = dtype.size();
    let raw = match how(view) {
        Lie::Contiguous => Place::memory(view.ptr.cast_mut(), size),
        Lie::Uniform => Place::one(view.ptr.cast_mut()),
        Lie::Strided(gather)
            if gather.run(SLOT).zip(plan.segment).is_some_and(|(n, of)| n.is_multiple_of(of)) =>
        {
            let cell = plan.cell();
            plan.runs.push((gather, cell.ptr));
            Place { moves: true, ..Place::memory(cell.ptr, size) }
        }
        Lie::Strided(gather) if changes_with(view, plan.stretch) => {
            let cell = Place { varies: true, ..plan.cell() };
            plan.spots.push((gather, cell.ptr));
            cell
        }
        Lie::Strided(gather) => {
            // What repeats is kept in its slot from tile to tile, so the slot is never given back.
            let dst = if gather.period.is_some() { plan.kept_slot() } else { plan.slot() };
            plan.push(Step::Gather { which: plan.gathers.len() as u8, dst });
            plan.gathers.push(gather);
            dst
        }
    };
    if !is_half(dtype) || !raw.uniform {
        return raw;
    }
    let wide = plan.room(&[raw]);
    plan.run(moves::widen(call.level, dtype), wide, [raw, NOWHERE, NOWHERE]);
    wide
}

/// Whether an input is the same everywhere, or along each stretch.
fn is_cell(view: &View<'_>, stretch: Option<usize>) -> bool {
    match how(view) {
        Lie::Contiguous => false,
        Lie::Uniform => true,
        Lie::Strided(_) => changes_with(view, stretch),
    }
}

/// The positions for which an input lies one element after the other, if it is read there.
fn run(view: &View<'_>) -> Option<usize> {
    match how(view) {
        Lie::Strided(gather) => gather.run(SLOT),
        _ => None,
    }
}

/// Whether an input stays the same along each stretch.
fn changes_with(view: &View<'_>, stretch: Option<usize>) -> bool {
    stretch.is_some_and(|n| stays(view.shape, view.strides).is_multiple_of(n))
}

/// The least positions along which inputs stay the same that are worth a beginning of their own.
const STRETCH: usize = if cfg!(all(test, debug_assertions)) { 3 } else { 128 };

/// The positions along which inputs stay the same, for those that do so for long.
fn stretch(call: &Call<'_>) -> Option<usize> {
    let all = call.inputs.iter().map(|view| stays(view.shape, view.strides));
    all.filter(|&n| n >= STRETCH && n < crate::shape::numel(call.shape)).min()
}

/// How an input lies.
#[inline]
pub(super) fn how(view: &View<'_>) -> Lie {
    if view.is_contiguous() {
        Lie::Contiguous
    } else {
        lie(view.ptr, view.dtype.size(), view.shape, view.strides)
    }
}

/// Writes a register to output `k`, unless it was computed there.
fn store(plan: &mut Plan, call: &Call<'_>, k: usize, dtype: DType, reg: Place) {
    let size = dtype.size();
    let dst = Place::output(k, call.outputs[k], size);
    if reg.ptr == dst.ptr && reg.scale == dst.scale {
        return; // computed there, or an input that shares its memory
    }
    let (run, a) = if reg.uniform {
        (moves::fill(call.level, size), beside(plan, call.level, dtype, dst, reg))
    } else if call.stream {
        return plan.push(Step::Stream { dst, a: reg, size });
    } else {
        (moves::copy(call.level, size), reg)
    };
    plan.push(Step::Loop { run, dst, a, b: NOWHERE, c: NOWHERE });
}
