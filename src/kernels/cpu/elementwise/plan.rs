//! From a program to the steps that a tile takes: which loop, from where, to where.
//!
//! Made once per call by the executor, without allocating. Registers of inputs that lie row by row are the
//! inputs' own memory, registers that are written out are the outputs' own memory where that is possible;
//! the others are slots of a tile each, used again after their last reader. What is the same at every
//! position is computed here, once, in a cell. Knows nothing of threads.

#![allow(unsafe_code)]

use super::gather::{Gather, Lie, lie};
use super::loops::{self, Rep};
use super::moves;
use crate::dtype::{DType, Element, Scalar, with_dtype};
use crate::graph::program::{Arg, Code, INSTRS_MAX, OUTPUTS_MAX, Program};
use crate::kernels::View;
use crate::kernels::cpu::simd::{Level, Loop};
use crate::op::{BinaryOp, Class, UnaryOp};
use smallvec::SmallVec;
use std::mem::MaybeUninit;

/// Bytes of a slot. Two or three are in use at a time, so they stay in the first cache.
pub(super) const SLOT: usize = 8 << 10;
/// From one slot to the next: not a multiple of 4 KiB, so that a load is not mistaken for one of a store
/// that is in flight to another slot.
pub(super) const SLOT_STEP: usize = SLOT + 256;
/// Registers that live at once, kept inputs, and two operands turned into bool or a result to be rounded:
/// `2 * INPUTS_MAX + (INSTRS_MAX - INPUTS_MAX) + 2` at most.
pub(super) const SLOTS: usize = 96;
/// An instruction takes at most three steps: two operands turned into bool and the op, or a gather and a
/// conversion.
const STEPS: usize = 3 * INSTRS_MAX + 2 * OUTPUTS_MAX;
/// Three immediates or conversions and a result an instruction, one store an output.
const CELLS: usize = 5 * INSTRS_MAX + OUTPUTS_MAX;

/// Where an operand lies: `ptr` at position 0, and so many bytes further at each next one. Slots and cells
/// do not move.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub ptr: *mut u8,
    pub scale: usize,
}

impl Place {
    /// The address for a tile that begins at `position`.
    #[inline(always)]
    pub fn at(self, position: usize) -> *mut u8 {
        self.ptr.wrapping_add(self.scale.wrapping_mul(position))
    }
}

/// What a tile does next.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Loop { run: Loop, dst: Place, a: Place, b: Place, c: Place },
    Gather { which: u8, dst: Place },
    Arange { dtype: DType, start: Scalar, step: Scalar, dst: Place },
    Random { normal: bool, dtype: DType, seed: u64, offset: u64, dst: Place },
    Stream { dst: Place, a: Place, size: usize },
}

/// A register while the plan is made.
#[derive(Clone, Copy)]
struct Reg {
    place: Place,
    /// The same at every position, and computed.
    uniform: bool,
    /// The slot that it occupies.
    slot: Option<u8>,
}

/// What a call is about.
pub(super) struct Call<'a> {
    pub level: Level,
    pub program: &'a Program,
    pub shape: &'a [usize],
    pub inputs: &'a [View<'a>],
    /// Where position 0 of each output lies.
    pub outputs: &'a [*mut u8],
    /// Write outputs around the cache.
    pub stream: bool,
}

/// The steps of a call, and what they need.
pub(super) struct Plan {
    steps: [MaybeUninit<Step>; STEPS],
    count: usize,
    cells: [MaybeUninit<u64>; CELLS],
    cells_used: usize,
    pub gathers: SmallVec<[Gather; 4]>,
    /// Bytes of the widest element that a tile holds.
    pub widest: usize,
    slots_free: u128,
    /// Where the slots lie.
    slots: *mut u8,
}

const NOWHERE: Place = Place { ptr: std::ptr::null_mut(), scale: 0 };
/// "Read at the end of the tile."
const END: u8 = u8::MAX;

impl Plan {
    /// An empty plan whose slots lie at `slots`.
    #[inline(always)]
    pub fn new(slots: *mut u8) -> Plan {
        Plan {
            steps: [const { MaybeUninit::uninit() }; STEPS],
            count: 0,
            cells: [const { MaybeUninit::uninit() }; CELLS],
            cells_used: 0,
            gathers: SmallVec::new(),
            widest: 1,
            slots_free: (1 << SLOTS) - 1,
            slots,
        }
    }

    /// The steps, in order.
    #[inline(always)]
    pub fn steps(&self) -> &[Step] {
        // SAFETY: the first `count` are initialised.
        unsafe { std::slice::from_raw_parts(self.steps.as_ptr().cast(), self.count) }
    }

    fn push(&mut self, step: Step) {
        self.steps[self.count].write(step);
        self.count += 1;
    }

    /// A place for one element that is the same everywhere.
    fn cell(&mut self) -> Place {
        let i = self.cells_used;
        self.cells_used += 1;
        // SAFETY of later use: the plan does not move between its making and its last step.
        Place { ptr: (&raw mut self.cells[i]).cast(), scale: 0 }
    }

    fn slot(&mut self) -> (Place, u8) {
        let i = self.slots_free.trailing_zeros();
        self.slots_free &= !(1 << i);
        (Place { ptr: self.slots.wrapping_add(i as usize * SLOT_STEP), scale: 0 }, i as u8)
    }

    fn release(&mut self, slot: Option<u8>) {
        if let Some(i) = slot {
            self.slots_free |= 1 << i;
        }
    }

    /// An immediate of a type, as a register holds it.
    fn immediate(&mut self, x: Scalar, dtype: DType) -> Place {
        let cell = self.cell();
        // SAFETY: a cell has room for any element.
        unsafe {
            match dtype {
                DType::F16 => cell.ptr.cast::<f32>().write(half::f16::from_scalar(x).to_f32()),
                DType::BF16 => cell.ptr.cast::<f32>().write(half::bf16::from_scalar(x).to_f32()),
                _ => with_dtype!(dtype, T => cell.ptr.cast::<T>().write(T::from_scalar(x))),
            }
        }
        cell
    }

    /// A loop over a tile, or, where nothing depends on the position, at once over one element.
    fn run(&mut self, uniform: bool, run: Loop, dst: Place, [a, b, c]: [Place; 3]) {
        if uniform {
            // SAFETY: all operands are cells that hold an element, or single elements of inputs.
            unsafe { run(dst.ptr, a.ptr, b.ptr, c.ptr, 1) }
        } else {
            self.push(Step::Loop { run, dst, a, b, c });
        }
    }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// True where the f32 result of an op on 16-bit floats is itself one.
fn is_exact(code: Code) -> bool {
    use BinaryOp as B;
    use UnaryOp as U;
    match code {
        Code::Unary(op, _) => {
            matches!(op, U::Neg | U::Abs | U::Sign | U::Relu | U::Floor | U::Ceil | U::Round | U::Trunc)
        }
        Code::Binary(op, _, _) => matches!(op, B::Maximum | B::Minimum | B::Fmod),
        Code::Where(..) | Code::Uniform { .. } | Code::Fill(_) => true,
        _ => false,
    }
}

fn operands(code: &Code) -> [Option<Arg>; 3] {
    match *code {
        Code::Unary(_, a) | Code::Cast(a) => [Some(a), None, None],
        Code::Binary(_, a, b) => [Some(a), Some(b), None],
        Code::Where(a, b, c) => [Some(a), Some(b), Some(c)],
        _ => [None; 3],
    }
}

/// Makes the steps of a call.
///
/// # Safety
/// Inputs may be read at every position of the shape. What the steps do is safe while inputs, outputs, slots
/// and `plan` stay where they are.
pub(super) unsafe fn make(plan: &mut Plan, call: &Call<'_>) {
    let instrs = &call.program.instrs;
    let outputs = &call.program.outputs;
    let mut last: [MaybeUninit<u8>; INSTRS_MAX] = [const { MaybeUninit::uninit() }; INSTRS_MAX];
    for (i, instr) in instrs.iter().enumerate() {
        last[i].write(i as u8);
        for arg in operands(&instr.code).into_iter().flatten() {
            if let Arg::Reg(r) = arg {
                last[r as usize].write(i as u8);
            }
        }
        plan.widest = plan.widest.max(Rep::of(instr.dtype).size());
    }
    // Which output each register may be computed in.
    let mut direct: [MaybeUninit<Option<u8>>; INSTRS_MAX] = [const { MaybeUninit::uninit() }; INSTRS_MAX];
    direct[..instrs.len()].fill(MaybeUninit::new(None));
    for (k, &r) in outputs.iter().enumerate() {
        last[r as usize].write(END);
        let shares = call.inputs.iter().any(|v| v.ptr == call.outputs[k]);
        if !call.stream && !shares && !is_half(call.program.dtype(r)) {
            direct[r as usize].write(Some(k as u8));
        }
    }
    // SAFETY: initialised above for every instruction.
    let last = |r: usize| unsafe { last[r].assume_init() };
    // SAFETY: as above.
    let direct = |r: usize| unsafe { direct[r].assume_init() };

    let mut regs: [MaybeUninit<Reg>; INSTRS_MAX] = [const { MaybeUninit::uninit() }; INSTRS_MAX];
    for (i, instr) in instrs.iter().enumerate() {
        let rep = Rep::of(instr.dtype);
        let mut args = [Reg { place: NOWHERE, uniform: true, slot: None }; 3];
        for (k, arg) in operands(&instr.code).into_iter().enumerate() {
            match arg {
                // SAFETY: a program reads only registers of earlier instructions.
                Some(Arg::Reg(r)) => args[k] = unsafe { regs[r as usize].assume_init() },
                Some(Arg::Scalar(x)) => {
                    let condition = k == 0 && matches!(instr.code, Code::Where(..));
                    args[k].place = plan.immediate(x, if condition { DType::Bool } else { instr.on });
                }
                None => {}
            }
        }
        let reg = match instr.code {
            // SAFETY: the caller's promise about inputs.
            Code::Input(k) => unsafe { input(plan, call, k, instr.dtype) },
            Code::Fill(x) => Reg { place: plan.immediate(x, instr.dtype), uniform: true, slot: None },
            _ => {
                let generated =
                    matches!(instr.code, Code::Arange { .. } | Code::Uniform { .. } | Code::Normal { .. });
                let uniform = !generated && args.iter().all(|a| a.uniform);
                // A 16-bit result that is only stored is rounded by the store.
                let rounds =
                    is_half(instr.dtype) && !is_exact(instr.code) && (uniform || read_again(call.program, i));
                let place = |plan: &mut Plan, direct: Option<u8>| match direct {
                    _ if uniform => (plan.cell(), None),
                    Some(k) => (Place { ptr: call.outputs[k as usize], scale: rep.size() }, None),
                    None => {
                        let (place, slot) = plan.slot();
                        (place, Some(slot))
                    }
                };
                let (mut dst, mut slot) = place(plan, if rounds { None } else { direct(i) });
                let extra = compute(plan, call, i, uniform, dst, &args);
                if rounds {
                    let (rounded, rounded_slot) = place(plan, None);
                    plan.run(uniform, moves::round(call.level, instr.dtype), rounded, [dst, NOWHERE, NOWHERE]);
                    plan.release(slot);
                    (dst, slot) = (rounded, rounded_slot);
                }
                extra.into_iter().for_each(|slot| plan.release(slot));
                Reg { place: dst, uniform, slot }
            }
        };
        regs[i].write(reg);
        for (k, arg) in operands(&instr.code).into_iter().enumerate() {
            if let Some(Arg::Reg(r)) = arg
                && last(r as usize) == i as u8
            {
                plan.release(args[k].slot);
            }
        }
    }
    for (k, &r) in outputs.iter().enumerate() {
        // SAFETY: every register of the program is initialised now.
        let reg = unsafe { regs[r as usize].assume_init() };
        store(plan, call, k, call.program.dtype(r), reg);
    }
}

/// True where an instruction after `i` reads its register.
fn read_again(program: &Program, i: usize) -> bool {
    program.instrs[i + 1..]
        .iter()
        .any(|instr| operands(&instr.code).into_iter().flatten().any(|arg| arg == Arg::Reg(i as u8)))
}

/// The register of an input.
///
/// # Safety
/// The input may be read at every position.
unsafe fn input(plan: &mut Plan, call: &Call<'_>, k: u8, dtype: DType) -> Reg {
    let view = &call.inputs[k as usize];
    debug_assert_eq!((view.dtype, view.shape), (dtype, call.shape));
    let size = dtype.size();
    let own = view.ptr.cast_mut();
    let widen = |plan: &mut Plan, a: Place, uniform: bool| {
        let (place, slot) = if uniform { (plan.cell(), None) } else { plan.slot_of() };
        plan.run(uniform, moves::widen(call.level, dtype), place, [a, NOWHERE, NOWHERE]);
        Reg { place, uniform, slot }
    };
    let lie =
        if view.is_contiguous() { Lie::Contiguous } else { lie(view.ptr, size, view.shape, view.strides) };
    match lie {
        Lie::Contiguous if is_half(dtype) => widen(plan, Place { ptr: own, scale: size }, false),
        Lie::Contiguous => Reg { place: Place { ptr: own, scale: size }, uniform: false, slot: None },
        Lie::Uniform if is_half(dtype) => widen(plan, Place { ptr: own, scale: 0 }, true),
        Lie::Uniform => Reg { place: Place { ptr: own, scale: 0 }, uniform: true, slot: None },
        Lie::Strided(gather) => {
            // What repeats is kept in its slot from tile to tile, so the slot is never given back.
            let keeps = gather.period.is_some();
            let which = plan.gathers.len() as u8;
            plan.gathers.push(gather);
            let (place, slot) = plan.slot_of();
            plan.push(Step::Gather { which, dst: place });
            let slot = if keeps { None } else { slot };
            if is_half(dtype) {
                let reg = widen(plan, place, false);
                plan.release(slot);
                reg
            } else {
                Reg { place, uniform: false, slot }
            }
        }
    }
}

/// The steps of one instruction into `dst`. Returns the slots that it used on the way.
fn compute(
    plan: &mut Plan,
    call: &Call<'_>,
    i: usize,
    uniform: bool,
    dst: Place,
    args: &[Reg; 3],
) -> [Option<u8>; 2] {
    let instr = &call.program.instrs[i];
    let (level, on) = (call.level, Rep::of(instr.on));
    let [a, b, c] = args.map(|a| a.place);
    let mut extra = [None; 2];
    match instr.code {
        Code::Unary(op, _) => {
            // Rounding to whole numbers has no loop for integers: they are whole.
            let run = loops::unary(level, op, on).unwrap_or(moves::copy(on.size()));
            plan.run(uniform, run, dst, [a, NOWHERE, NOWHERE]);
        }
        Code::Binary(op, _, _) => {
            let (mut operands, mut on) = ([a, b], on);
            if op.class() == Class::logic && on != Rep::Bool {
                for (k, operand) in operands.iter_mut().enumerate() {
                    let (place, slot) = if args[k].uniform { (plan.cell(), None) } else { plan.slot_of() };
                    plan.run(
                        args[k].uniform,
                        moves::cast(level, on, Rep::Bool),
                        place,
                        [*operand, NOWHERE, NOWHERE],
                    );
                    (*operand, extra[k]) = (place, slot);
                }
                on = Rep::Bool;
            }
            let splat = (args[0].uniform && !uniform, args[1].uniform && !uniform);
            let run = loops::binary(level, op, on, splat)
                .unwrap_or_else(|| panic!("{} has no loop for {}", op.name(), instr.on));
            plan.run(uniform, run, dst, [operands[0], operands[1], NOWHERE]);
        }
        Code::Where(..) if args[0].uniform => {
            // SAFETY: a uniform register holds its element already.
            let chosen = if unsafe { *a.ptr.cast::<bool>() } { &args[1] } else { &args[2] };
            let rep = Rep::of(instr.dtype);
            let run = if chosen.uniform { moves::fill(level, rep.size()) } else { moves::copy(rep.size()) };
            plan.run(uniform, run, dst, [chosen.place, NOWHERE, NOWHERE]);
        }
        Code::Where(..) => {
            let run = moves::select(level, Rep::of(instr.dtype), (args[1].uniform, args[2].uniform));
            plan.run(uniform, run, dst, [a, b, c]);
        }
        Code::Cast(_) => {
            let run = if is_half(instr.dtype) {
                moves::cast_odd(level, on) // and rounded next
            } else {
                moves::cast(level, on, Rep::of(instr.dtype))
            };
            plan.run(uniform, run, dst, [a, NOWHERE, NOWHERE]);
        }
        Code::Arange { start, step } => plan.push(Step::Arange { dtype: instr.dtype, start, step, dst }),
        Code::Uniform { seed, offset } => {
            plan.push(Step::Random { normal: false, dtype: instr.dtype, seed, offset, dst });
        }
        Code::Normal { seed, offset } => {
            plan.push(Step::Random { normal: true, dtype: instr.dtype, seed, offset, dst });
        }
        Code::Input(_) | Code::Fill(_) => unreachable!("read in place"),
    }
    extra
}

/// Writes a register to output `k`, unless it was computed there.
fn store(plan: &mut Plan, call: &Call<'_>, k: usize, dtype: DType, reg: Reg) {
    let size = dtype.size();
    let dst = Place { ptr: call.outputs[k], scale: size };
    if reg.place.ptr == dst.ptr && reg.place.scale == size && !reg.uniform {
        return; // computed there, or an input that shares its memory
    }
    let step = |run: Loop, a: Place| Step::Loop { run, dst, a, b: NOWHERE, c: NOWHERE };
    let narrow = moves::narrow(call.level, dtype);
    if reg.uniform {
        let mut one = reg.place;
        if is_half(dtype) {
            one = plan.cell();
            plan.run(true, narrow, one, [reg.place, NOWHERE, NOWHERE]);
        }
        plan.push(step(moves::fill(call.level, size), one));
    } else if is_half(dtype) {
        plan.push(step(narrow, reg.place));
    } else if call.stream {
        plan.push(Step::Stream { dst, a: reg.place, size });
    } else {
        plan.push(step(moves::copy(size), reg.place));
    }
}

impl Plan {
    fn slot_of(&mut self) -> (Place, Option<u8>) {
        let (place, slot) = self.slot();
        (place, Some(slot))
    }
}
