//! The steps that a tile takes, and where their operands lie. Knows nothing of threads.
//!
//! Registers of inputs that lie row by row are the inputs' own memory, registers that are written
//! out are the outputs' own memory where that is possible; the others are slots of a tile each. A
//! value that is the same at every position is in a cell, there from the beginning; one that is the
//! same along each *stretch* of positions (a number for each channel, beside images) is computed in
//! a cell as each begins. A tile of 16-bit floats holds them as memory does, a cell holds f32.

#![allow(unsafe_code)]

use super::compiled::Fused;
use super::gather::Gather;
use super::place::{NO_SLOT, NOWHERE, Place};
use super::tabled::Lookup;
use crate::dtype::{DType, Element, Scalar};
use crate::graph::program::{INSTRS_MAX, OUTPUTS_MAX, Program};
use crate::host::kernels::simd::{Level, Loop};
use crate::view::View;
use smallvec::SmallVec;
use std::mem::MaybeUninit;

/// Bytes of a slot. Two or three are in use at a time, so they stay in the first cache.
pub(super) const SLOT: usize = 8 << 10;
/// From one slot to the next: not a multiple of 4 KiB, so that a load is not mistaken for one of a
/// store that is in flight to another slot.
pub(super) const SLOT_STEP: usize = SLOT + 256;
/// Registers that live at once, kept inputs, and two operands that are converted and a result that
/// is yet to be: `INPUTS_MAX + INSTRS_MAX + 4` at most.
pub(super) const SLOTS: usize = 96;
/// An instruction takes at most four steps: two operands that are widened, the op, and a result
/// that is narrowed.
const STEPS: usize = 4 * INSTRS_MAX + OUTPUTS_MAX;
/// Three immediates or conversions and a result an instruction, one store an output.
const CELLS: usize = 5 * INSTRS_MAX + OUTPUTS_MAX;

/// What a tile does next.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Loop { run: Loop, dst: Place, a: Place, b: Place, c: Place },
    Fused { which: u8 },
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
    /// Registers that are looked up.
    pub lookups: &'a [Lookup],
    /// Where position 0 of each output lies.
    pub outputs: &'a [*mut u8],
    /// Write outputs around the cache.
    pub stream: bool,
    /// Its own, where several ranges of it are computed, so that a thread plans it once.
    pub number: Option<u64>,
}

/// The steps of a call, and what they need.
pub(super) struct Plan {
    steps: [MaybeUninit<Step>; STEPS],
    count: usize,
    cells: [MaybeUninit<u64>; CELLS],
    cells_used: usize,
    pub gathers: SmallVec<[Gather; 4]>,
    /// Groups of instructions that are one loop.
    pub fused: Vec<Fused>,
    /// Positions along which some inputs stay the same, if there are such inputs.
    pub stretch: Option<usize>,
    /// Positions along which other inputs are read where they lie: the stretch, or else the
    /// shortest of their rows.
    pub segment: Option<usize>,
    /// The inputs that stay the same, and the cells for an element of each.
    pub spots: SmallVec<[(Gather, *mut u8); 4]>,
    /// What is computed of them, as each stretch begins.
    first: SmallVec<[Step; 4]>,
    /// The inputs that are read where they lie, and the cells for the address of each.
    pub runs: SmallVec<[(Gather, *mut u8); 4]>,
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
            fused: Vec::new(),
            stretch: None,
            segment: None,
            spots: SmallVec::new(),
            first: SmallVec::new(),
            runs: SmallVec::new(),
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

    /// The steps, the inputs that they gather, and the groups.
    #[inline(always)]
    pub fn parts(&mut self) -> (&[Step], &mut [Gather], &[Fused]) {
        // SAFETY: the first `count` are initialised.
        let steps = unsafe { std::slice::from_raw_parts(self.steps.as_ptr().cast(), self.count) };
        (steps, &mut self.gathers, &self.fused)
    }

    #[inline]
    pub fn push(&mut self, step: Step) {
        self.steps[self.count].write(step);
        self.count += 1;
    }

    /// A place for one element that is the same everywhere.
    pub fn cell(&mut self) -> Place {
        let i = self.cells_used;
        self.cells_used += 1;
        Place::one((&raw mut self.cells[i]).cast())
    }

    /// A place for a tile.
    pub fn slot(&mut self) -> Place {
        let i = self.slots_free.trailing_zeros();
        self.slots_free &= !(1 << i);
        let ptr = self.slots.wrapping_add(i as usize * SLOT_STEP);
        Place { ptr, uniform: false, slot: i as u8, ..NOWHERE }
    }

    /// A place for what is kept from tile to tile. Other slots are taken from the other end, so
    /// that none that an earlier instruction has used and given back becomes one: that instruction
    /// comes again in the next tile.
    pub fn kept_slot(&mut self) -> Place {
        let i = u128::BITS - 1 - self.slots_free.leading_zeros();
        self.slots_free &= !(1 << i);
        let ptr = self.slots.wrapping_add(i as usize * SLOT_STEP);
        Place { ptr, uniform: false, ..NOWHERE }
    }

    /// A place for what is computed of operands: one element, or a tile.
    pub fn room(&mut self, operands: &[Place]) -> Place {
        match operands.iter().all(|a| a.uniform) {
            true => Place { varies: operands.iter().any(|a| a.varies), ..self.cell() },
            false => self.slot(),
        }
    }

    /// Gives a slot back, if the place is one.
    pub fn release(&mut self, place: Place) {
        if place.slot != NO_SLOT {
            self.slots_free |= 1 << place.slot;
        }
    }

    /// An immediate of a type, as a register holds it.
    #[inline]
    pub fn immediate(&mut self, x: Scalar, dtype: DType) -> Place {
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
                Step::Fused { which } => {
                    self.fused[*which as usize].places.iter_mut().for_each(moved)
                }
            }
        }
    }

    /// Makes the elements of the segment that begins at a position, or has this one, and finds
    /// where its rows lie.
    ///
    /// # Safety
    /// The inputs may be read at the position.
    pub unsafe fn begin_segment(&mut self, position: usize) {
        for (input, cell) in &self.runs {
            let scale = input.size.wrapping_mul(position);
            let first = input.at(position).cast_mut().wrapping_sub(scale);
            // SAFETY: a cell has room for an address.
            unsafe { cell.cast::<*mut u8>().write(first) };
        }
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
    pub fn run(&mut self, run: Loop, dst: Place, [a, b, c]: [Place; 3]) {
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
