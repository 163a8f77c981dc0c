//! From a program to the steps that a tile takes: which loop, from where, to where.
//!
//! Made once per call by the executor, without allocating. Registers of inputs that lie row by row
//! are the inputs' own memory, registers that are written out are the outputs' own memory where
//! that is possible; the others are slots of a tile each, used again after their last reader. A
//! value that is the same at every position is computed here, once, in a cell; one that is the same
//! along each *stretch* of positions (a number for each channel, beside images) is computed in a
//! cell as each begins. Knows nothing of threads.

#![allow(unsafe_code)]

use super::gather::{Gather, Lie, lie, stays};
use super::loops;
use super::moves;
use super::rep::{Rep, held};
use crate::dtype::{DType, Element, Scalar};
use crate::graph::program::{Arg, Code, INSTRS_MAX, Instr, OUTPUTS_MAX, Program};
use crate::host::kernels::simd::{Level, Loop};
use crate::op::{BinaryOp, Class, UnaryOp};
use crate::view::View;
use smallvec::SmallVec;
use std::mem::MaybeUninit;

/// Bytes of a slot. Two or three are in use at a time, so they stay in the first cache.
pub(super) const SLOT: usize = 8 << 10;
/// From one slot to the next: not a multiple of 4 KiB, so that a load is not mistaken for one of a
/// store that is in flight to another slot.
pub(super) const SLOT_STEP: usize = SLOT + 256;
/// Registers that live at once, kept inputs, and two operands turned into bool or a result to be
/// rounded: `2 * INPUTS_MAX + (INSTRS_MAX - INPUTS_MAX) + 2` at most.
pub(super) const SLOTS: usize = 96;
/// An instruction takes at most three steps: two operands turned into bool and the op, or a gather
/// and a conversion.
const STEPS: usize = 3 * INSTRS_MAX + 2 * OUTPUTS_MAX;
/// Three immediates or conversions and a result an instruction, one store an output.
const CELLS: usize = 5 * INSTRS_MAX + OUTPUTS_MAX;

/// Where an operand lies: `ptr` at position 0, and `scale` bytes further at each next one. Slots
/// and cells do not move.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub ptr: *mut u8,
    scale: u8,
    /// The same at every position, and there already; or, if it `varies`, the same along each
    /// stretch, and there from its beginning on. Only meant while the plan is made.
    uniform: bool,
    varies: bool,
    /// The slot that it occupies, or [`NO_SLOT`]. Only meant while the plan is made.
    slot: u8,
    /// The output that it is, or [`NO_OUTPUT`].
    output: u8,
}

const NO_SLOT: u8 = u8::MAX;
const NOWHERE: Place = Place {
    ptr: std::ptr::null_mut(),
    scale: 0,
    uniform: true,
    varies: false,
    slot: NO_SLOT,
    output: NO_OUTPUT,
};

impl Place {
    /// Memory of the caller's: one element after the other.
    fn memory(ptr: *mut u8, size: usize) -> Place {
        Place { ptr, scale: size as u8, uniform: false, ..NOWHERE }
    }

    /// Memory of an output's.
    fn output(k: usize, ptr: *mut u8, size: usize) -> Place {
        Place { output: k as u8, ..Place::memory(ptr, size) }
    }

    /// One element that is there already.
    fn one(ptr: *mut u8) -> Place {
        Place { ptr, ..NOWHERE }
    }

    /// The address for a tile that begins at `position`.
    #[inline(always)]
    pub fn at(self, position: usize) -> *mut u8 {
        self.ptr.wrapping_add((self.scale as usize).wrapping_mul(position))
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
    /// Positions along which some inputs stay the same, if there are such inputs.
    pub stretch: Option<usize>,
    /// These inputs, and the cells for an element of each.
    spots: SmallVec<[(Gather, *mut u8); 4]>,
    /// What is computed of them, as each stretch begins.
    first: SmallVec<[Step; 4]>,
    /// Bytes of the widest element that a tile holds.
    pub widest: usize,
    slots_free: u128,
    /// Where the slots lie.
    slots: *mut u8,
}

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
            stretch: None,
            spots: SmallVec::new(),
            first: SmallVec::new(),
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

    /// The steps, and the inputs that they gather.
    #[inline(always)]
    pub fn parts(&mut self) -> (&[Step], &mut [Gather]) {
        // SAFETY: the first `count` are initialised.
        let steps = unsafe { std::slice::from_raw_parts(self.steps.as_ptr().cast(), self.count) };
        (steps, &mut self.gathers)
    }

    #[inline]
    fn push(&mut self, step: Step) {
        self.steps[self.count].write(step);
        self.count += 1;
    }

    /// A place for one element that is the same everywhere.
    fn cell(&mut self) -> Place {
        let i = self.cells_used;
        self.cells_used += 1;
        Place::one((&raw mut self.cells[i]).cast())
    }

    /// A place for a tile.
    fn slot(&mut self) -> Place {
        let i = self.slots_free.trailing_zeros();
        self.slots_free &= !(1 << i);
        let ptr = self.slots.wrapping_add(i as usize * SLOT_STEP);
        Place { ptr, uniform: false, slot: i as u8, ..NOWHERE }
    }

    /// A place for what is kept from tile to tile. Other slots are taken from the other end, so
    /// that none that an earlier instruction has used and given back becomes one: that instruction
    /// comes again in the next tile.
    fn kept_slot(&mut self) -> Place {
        let i = u128::BITS - 1 - self.slots_free.leading_zeros();
        self.slots_free &= !(1 << i);
        let ptr = self.slots.wrapping_add(i as usize * SLOT_STEP);
        Place { ptr, uniform: false, ..NOWHERE }
    }

    /// A place for what is computed of operands: one element, or a tile.
    fn room(&mut self, operands: &[Place]) -> Place {
        match operands.iter().all(|a| a.uniform) {
            true => Place { varies: operands.iter().any(|a| a.varies), ..self.cell() },
            false => self.slot(),
        }
    }

    /// Gives a slot back, if the place is one.
    fn release(&mut self, place: Place) {
        if place.slot != NO_SLOT {
            self.slots_free |= 1 << place.slot;
        }
    }

    /// An immediate of a type, as a register holds it.
    #[inline]
    fn immediate(&mut self, x: Scalar, dtype: DType) -> Place {
        let cell = self.cell();
        // SAFETY: a cell has room for any element.
        unsafe { write_immediate(x, dtype, cell.ptr) };
        cell
    }

    /// Has the outputs lie elsewhere from now on.
    pub fn move_outputs(&mut self, outputs: &[*mut u8]) {
        // SAFETY: the first `count` are initialised.
        let steps: &mut [Step] =
            unsafe { std::slice::from_raw_parts_mut(self.steps.as_mut_ptr().cast(), self.count) };
        let moved = |place: &mut Place| {
            if let Some(&ptr) = outputs.get(place.output as usize) {
                place.ptr = ptr;
            }
        };
        for step in steps {
            match step {
                Step::Loop { dst, a, b, c, .. } => [dst, a, b, c].into_iter().for_each(moved),
                Step::Stream { dst, a, .. } => [dst, a].into_iter().for_each(moved),
                Step::Gather { dst, .. } | Step::Arange { dst, .. } | Step::Random { dst, .. } => {
                    moved(dst)
                }
            }
        }
    }

    /// Makes the elements of the stretch that begins at a position, or has this one.
    ///
    /// # Safety
    /// The inputs may be read at the position.
    pub unsafe fn begin_stretch(&mut self, position: usize) {
        for (input, cell) in &self.spots {
            // SAFETY: the caller's promise; a cell has room for any element.
            unsafe { input.element(position, *cell) };
        }
        for step in &self.first {
            let Step::Loop { run, dst, a, b, c } = *step else { continue };
            // SAFETY: all are cells that hold an element, or single elements of inputs.
            unsafe { run(dst.ptr, a.ptr, b.ptr, c.ptr, 1) };
        }
    }

    /// A loop over a tile, or, where nothing depends on the position, at once over one element.
    #[inline]
    fn run(&mut self, run: Loop, dst: Place, [a, b, c]: [Place; 3]) {
        if dst.varies {
            self.first.push(Step::Loop { run, dst, a, b, c });
        } else if dst.uniform {
            // SAFETY: all operands are cells that hold an element, or single elements of inputs.
            unsafe { run(dst.ptr, a.ptr, b.ptr, c.ptr, 1) }
        } else {
            self.push(Step::Loop { run, dst, a, b, c });
        }
    }
}

/// Writes an immediate of a type as a register holds it: 16-bit floats as f32.
///
/// # Safety
/// `ptr` has room for any element and is aligned to 8.
#[inline]
pub(super) unsafe fn write_immediate(x: Scalar, dtype: DType, ptr: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => ptr.cast::<f32>().write(f32::from_scalar(x)),
            DType::F16 => ptr.cast::<f32>().write(half::f16::from_scalar(x).to_f32()),
            DType::BF16 => ptr.cast::<f32>().write(half::bf16::from_scalar(x).to_f32()),
            _ => ptr.cast::<u64>().write(x.word(dtype)),
        }
    }
}

#[inline]
pub(super) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// True for a conversion from or to a type for storage. Between its loops are elements of up to
/// eight bytes.
fn is_stored_on_a_side(instr: &Instr) -> bool {
    matches!(instr.code, Code::Cast(_)) && (instr.on.is_storage() || instr.dtype.is_storage())
}

/// True where the f32 result of an op on 16-bit floats is itself one.
fn is_exact(code: Code) -> bool {
    use BinaryOp as B;
    use UnaryOp as U;
    match code {
        Code::Unary(op, _) => {
            matches!(
                op,
                U::Neg | U::Abs | U::Sign | U::Relu | U::Floor | U::Ceil | U::Round | U::Trunc
            )
        }
        Code::Binary(op, _, _) => matches!(op, B::Maximum | B::Minimum | B::Fmod),
        Code::Where(..) | Code::Uniform { .. } | Code::Fill(_) => true,
        _ => false,
    }
}

/// Makes the steps of a call.
///
/// # Safety
/// Inputs may be read at every position of the shape. What the steps do is safe while inputs,
/// outputs, slots and `plan` stay where they are.
pub(super) unsafe fn make(plan: &mut Plan, call: &Call<'_>) {
    let instrs = &call.program.instrs[..];
    // The last instruction that reads each register, itself if none does.
    let mut last = [0u8; INSTRS_MAX];
    for (i, instr) in instrs.iter().enumerate() {
        last[i] = i as u8;
        let mut read = |arg: Arg| {
            if let Arg::Reg(r) = arg {
                last[r as usize] = i as u8;
            }
        };
        match instr.code {
            Code::Unary(_, a) | Code::Cast(a) => read(a),
            Code::Binary(_, a, b) => [a, b].into_iter().for_each(read),
            Code::Where(a, b, c) => [a, b, c].into_iter().for_each(read),
            _ => {}
        }
        let converts = is_stored_on_a_side(instr);
        plan.widest = plan.widest.max(if converts { 8 } else { held(instr.dtype) });
    }
    plan.stretch = stretch(call);
    // Which registers are written out, and which of them are computed in the output itself.
    let (mut written, mut direct) = (0u64, [NO_OUTPUT; INSTRS_MAX]);
    for (k, &r) in call.program.outputs.iter().enumerate() {
        written |= 1 << r;
        let shares = call.inputs.iter().any(|v| v.ptr == call.outputs[k]);
        if !call.stream && !shares && !is_half(call.program.dtype(r)) {
            direct[r as usize] = k as u8;
        }
    }

    let mut regs = [NOWHERE; INSTRS_MAX];
    for (i, instr) in instrs.iter().enumerate() {
        let take = |plan: &mut Plan, arg: Arg, dtype: DType| match arg {
            Arg::Reg(r) => regs[r as usize],
            Arg::Scalar(x) => plan.immediate(x, dtype),
        };
        let args = match instr.code {
            Code::Unary(_, a) | Code::Cast(a) => [take(plan, a, instr.on), NOWHERE, NOWHERE],
            Code::Binary(_, a, b) => [take(plan, a, instr.on), take(plan, b, instr.on), NOWHERE],
            Code::Where(a, b, c) => {
                [take(plan, a, DType::Bool), take(plan, b, instr.on), take(plan, c, instr.on)]
            }
            _ => [NOWHERE; 3],
        };
        let reg = match instr.code {
            // SAFETY: the caller's promise about inputs.
            Code::Input(k) => unsafe { input(plan, call, k, instr.dtype) },
            Code::Fill(x) => plan.immediate(x, instr.dtype),
            _ => {
                let placed = matches!(
                    instr.code,
                    Code::Arange { .. } | Code::Uniform { .. } | Code::Normal { .. }
                );
                let uniform = !placed && args.iter().all(|a| a.uniform);
                let dst = match direct[i] {
                    k if k != NO_OUTPUT && !uniform => {
                        Place::output(k as usize, call.outputs[k as usize], instr.dtype.size())
                    }
                    _ if placed => plan.slot(),
                    _ => plan.room(&args),
                };
                compute(plan, call, i, dst, args);
                // A 16-bit result that is only stored is rounded by the store.
                if is_half(instr.dtype) && !is_exact(instr.code) && (uniform || last[i] > i as u8) {
                    let rounded = plan.room(&[dst]);
                    plan.run(
                        moves::round(call.level, instr.dtype),
                        rounded,
                        [dst, NOWHERE, NOWHERE],
                    );
                    plan.release(dst);
                    rounded
                } else {
                    dst
                }
            }
        };
        regs[i] = reg;
        let mut done = |arg: Arg| {
            if let Arg::Reg(r) = arg
                && last[r as usize] == i as u8
                && written >> r & 1 == 0
            {
                plan.release(regs[r as usize]);
            }
        };
        match instr.code {
            Code::Unary(_, a) | Code::Cast(a) => done(a),
            Code::Binary(_, a, b) => [a, b].into_iter().for_each(done),
            Code::Where(a, b, c) => [a, b, c].into_iter().for_each(done),
            _ => {}
        }
    }
    for (k, &r) in call.program.outputs.iter().enumerate() {
        store(plan, call, k, call.program.dtype(r), regs[r as usize]);
    }
}

/// "Not computed in an output."
const NO_OUTPUT: u8 = u8::MAX;

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
            if plan.stretch.is_some_and(|n| stays(view.shape, view.strides).is_multiple_of(n)) =>
        {
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
    if !is_half(dtype) {
        return raw;
    }
    let wide = plan.room(&[raw]);
    plan.run(moves::widen(call.level, dtype), wide, [raw, NOWHERE, NOWHERE]);
    plan.release(raw);
    wide
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

/// The steps of one instruction into `dst`.
fn compute(plan: &mut Plan, call: &Call<'_>, i: usize, dst: Place, args: [Place; 3]) {
    let instr = &call.program.instrs[i];
    let (level, on) = (call.level, Rep::of(instr.on));
    let [a, b, _] = args;
    match instr.code {
        Code::Unary(op, _) => plan.run(loops::unary(level, op, on), dst, args),
        Code::Binary(op, _, _) if op.class() == Class::logic && on != Rep::Bool => {
            let truths = [a, b].map(|x| {
                let truth = plan.room(&[x]);
                plan.run(moves::cast(level, on, Rep::Bool), truth, [x, NOWHERE, NOWHERE]);
                truth
            });
            binary(plan, level, op, Rep::Bool, dst, truths);
            truths.into_iter().for_each(|truth| plan.release(truth));
        }
        Code::Binary(op, _, _) => binary(plan, level, op, on, dst, [a, b]),
        Code::Where(..) if a.uniform && !a.varies => {
            // SAFETY: a uniform register holds its element already.
            let chosen = if unsafe { *a.ptr.cast::<bool>() } { args[1] } else { args[2] };
            let size = held(instr.dtype);
            let run = if chosen.uniform { moves::fill(level, size) } else { moves::copy(size) };
            plan.run(run, dst, [chosen, NOWHERE, NOWHERE]);
        }
        Code::Where(..) => {
            // The loop takes a truth for each element.
            let truths = if a.uniform && !dst.uniform { plan.slot() } else { a };
            if truths.slot != a.slot {
                plan.run(moves::fill(level, size_of::<bool>()), truths, [a, NOWHERE, NOWHERE]);
            }
            let splat = (args[1].uniform, args[2].uniform);
            let select = moves::select(level, held(instr.dtype), splat);
            plan.run(select, dst, [truths, args[1], args[2]]);
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
        // rounded next
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

/// Writes a register to output `k`, unless it was computed there.
fn store(plan: &mut Plan, call: &Call<'_>, k: usize, dtype: DType, reg: Place) {
    let size = dtype.size();
    let dst = Place::output(k, call.outputs[k], size);
    if reg.ptr == dst.ptr && reg.scale == dst.scale {
        return; // computed there, or an input that shares its memory
    }
    let narrow = moves::narrow(call.level, dtype);
    let (run, a) = if reg.uniform {
        let mut one = reg;
        if is_half(dtype) {
            one = plan.room(&[reg]);
            plan.run(narrow, one, [reg, NOWHERE, NOWHERE]);
        }
        (moves::fill(call.level, size), one)
    } else if is_half(dtype) {
        (narrow, reg)
    } else if call.stream {
        return plan.push(Step::Stream { dst, a: reg, size });
    } else {
        (moves::copy(size), reg)
    };
    plan.push(Step::Loop { run, dst, a, b: NOWHERE, c: NOWHERE });
}
