//! Runs a fused elementwise [`Program`] over views: the CPU's kernel for everything elementwise.
//!
//! Called by `host/step` ([`run_parallel`]), and by kernels that take a program in front
//! of their own work ([`Front`]). A range of positions is cut into tiles that stay in the first
//! cache; each instruction is one vectorised loop over a tile. Every instruction rounds to its own
//! type and nothing is contracted, so results are bitwise the same fused or not, and however a
//! range is cut.
//!
//! In here: `loops`, `mended`, `halves`, `pairs` and `moves` are the loops, `forms` is what they
//! share, `direct` runs the simplest programs, `planner` and `steps` turn others into a `plan`,
//! whose operands lie in a `place` each. `compiled` makes several simple instructions one loop,
//! `narrowed` first makes a long program shorter, `tabled` looks functions of 16-bit floats up,
//! `arange` counts, `gather` reads inputs that do not lie row by row, `stream` writes around the
//! cache. None of it knows nodes, devices or the engine.
//!
//! An output may be the very memory of an input that lies row by row with elements of the same
//! size: each position is read before it is written. Any other overlap is the caller's mistake.

#![allow(unsafe_code)]

mod arange;
mod compiled;
mod direct;
mod forms;
mod gather;
mod halves;
pub(super) mod loops;
mod mended;
mod moves;
mod narrowed;
mod pairs;
mod place;
mod plan;
mod planner;
pub(super) mod rep;
mod steps;
mod tabled;
#[cfg(test)]
mod tests;

use crate::graph::cost::program_ns;
use crate::graph::program::{OUTPUTS_MAX, Program};
use crate::host::kernels::nest::parts_of;
use crate::host::kernels::random;
use crate::host::kernels::simd::{Level, level};
use crate::host::kernels::stream::{self, LINE, STREAM_FROM};
use crate::room;
use crate::sync::plain::{AtomicU64, Ordering};
use crate::sync::threads::thread_local;
use crate::view::{Parallel, View, ViewMut};
pub(crate) use direct::{Lone, One, lone_number, one};
use plan::{Call, Plan, SLOT, SLOT_STEP, SLOTS, Step};
use smallvec::SmallVec;
use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::ops::Range;
use tabled::{Lookup, Tabled};

/// Tiles whose result is written around the cache: smaller, so that reading, computing and writing
/// overlap. (One unary op on f32, and what is compiled, need none.)
const SLOT_STREAMED: usize = SLOT / 4;
/// Positions from which on it pays to do on halves what a program does by way of f32.
const NARROWED_FROM: usize = if cfg!(all(test, debug_assertions)) { 20 } else { 4 << 10 };
/// Positions from which on functions of 16-bit floats are looked up: their tables are computed as
/// fast as a quarter of it.
const TABLED_FROM: usize = if cfg!(all(test, debug_assertions)) { 4 << 10 } else { 256 << 10 };
/// Positions from which on it pays to look for groups of instructions that are compiled.
const COMPILED_FROM: usize = if cfg!(all(test, debug_assertions)) { 20 } else { 16 << 10 };
/// Positions from which on a program in front of another kernel is planned once for each thread.
const PLANNED_FROM: usize = if cfg!(all(test, debug_assertions)) { 20 } else { 16 << 10 };
/// A part of a step that is handed to another thread takes at least so long, by the estimate (a
/// quarter of it where that thread is awake). Two threads are faster than one from some 5 us of
/// work on where the second is awake, and from 30 to 60 us on where it sleeps
/// (`benches/hand_over.rs`): parts of 20 us cost nothing then, and below two threads would be busy
/// for what one does nearly as fast. Here and at the other kernels' constants stand three times in
/// us for two parts: on one thread, on two, and on two of which one has slept. 64 Ki of `exp`:
/// 34.7, 19.2, 34.3; of `x + 1`, 128 Ki: 32.7, 19.1, 32.3; of `gelu`, 16 Ki: 30.3, 21.3, 28.5.
const PART_NS: usize = 20_000;

/// A program over views. Inputs have `shape` and strides over it; outputs lie row by row.
struct Whole<'a> {
    level: Level,
    program: &'a Program,
    lookups: &'a [Lookup],
    shape: &'a [usize],
    inputs: &'a [View<'a>],
    outputs: &'a [ViewMut<'a>],
    /// For a thread that computes several ranges: they have one plan.
    number: Option<u64>,
}

impl Whole<'_> {
    /// Computes the positions `range` (row-major) of all outputs. Several threads may compute
    /// disjoint ranges at once.
    fn run(&self, range: Range<usize>) {
        let Whole { level, program, lookups, shape, inputs, outputs, number } = *self;
        let mut bases = [std::ptr::null_mut(); OUTPUTS_MAX];
        let mut bytes = 0;
        for (base, output) in bases.iter_mut().zip(outputs) {
            *base = output.ptr;
            bytes += output.dtype.size();
        }
        let numel = crate::shape::numel(shape);
        debug_assert!(range.end <= numel && outputs.len() == program.outputs.len());
        let stream = bytes * numel >= STREAM_FROM;
        let outputs = &bases[..outputs.len()];
        let call = Call { level, program, shape, inputs, lookups, outputs, stream, number };
        // SAFETY: views promise their memory; an output has an element for every position of the
        // shape.
        unsafe { execute(&call, range.len(), range) }
    }
}

/// Computes a range of a program.
fn run(
    level: Level,
    program: &Program,
    lookups: &[Lookup],
    shape: &[usize],
    inputs: &[View<'_>],
    outputs: &[ViewMut<'_>],
    range: Range<usize>,
) {
    Whole { level, program, lookups, shape, inputs, outputs, number: None }.run(range);
}

/// A program in front of a kernel that asks for its elements tile by tile.
pub(crate) struct Front<'a> {
    program: &'a Program,
    shape: &'a [usize],
    inputs: &'a [View<'a>],
    /// Tells it from all others of the process.
    number: u64,
}

/// The plan by which a thread has computed last: plans take as long as some tiles.
struct Planned {
    number: u64,
    plan: Plan,
    _slots: Slots,
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A number that nothing else of the process has.
fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    static PLANNED: Cell<Vec<Planned>> = const { Cell::new(Vec::new()) };
}

impl<'a> Front<'a> {
    pub fn new(program: &'a Program, shape: &'a [usize], inputs: &'a [View<'a>]) -> Front<'a> {
        Front { program, shape, inputs, number: number() }
    }

    /// Computes the positions `range` of all outputs into memory that begins at that range: element
    /// `range.start` of output k is written to `outputs[k]`.
    ///
    /// # Safety
    /// `outputs[k]` is valid for writes of `range.len()` elements of the type of output k, and does
    /// not overlap an input.
    pub unsafe fn read(&self, range: Range<usize>, outputs: &mut [*mut u8]) {
        let Front { program, shape, inputs, number } = *self;
        let mut bases = [std::ptr::null_mut::<u8>(); OUTPUTS_MAX];
        for ((base, output), &r) in bases.iter_mut().zip(&*outputs).zip(&program.outputs) {
            *base = output.wrapping_sub(range.start * program.dtype(r).size());
        }
        let outputs = &bases[..outputs.len()];
        let (level, lookups, stream, number) = (level(), &[][..], false, Some(number));
        let call = Call { level, program, shape, inputs, lookups, outputs, stream, number };
        // SAFETY: the caller's promise, and that of the views.
        unsafe { execute(&call, crate::shape::numel(shape), range) }
    }
}

/// Computes a program over its whole shape, on several threads where that pays.
pub(crate) fn run_parallel(
    program: &Program,
    shape: &[usize],
    inputs: &[View<'_>],
    outputs: &[ViewMut<'_>],
    par: &dyn Parallel,
) {
    let numel = crate::shape::numel(shape);
    if numel >= NARROWED_FROM
        && let Some((program, read)) = narrowed::narrowed(program)
    {
        let inputs: SmallVec<[View<'_>; 8]> = read.iter().map(|&k| inputs[k as usize]).collect();
        return run_parallel(&program, shape, &inputs, outputs, par);
    }
    let parts = parts_of(program_ns(program, numel) as usize, PART_NS, par);
    let level = level();
    let tabled = match numel >= TABLED_FROM {
        true => tabled::tabled(level, program, inputs),
        false => None,
    };
    let looked_up: SmallVec<[View<'_>; 8]>;
    let (program, inputs, lookups) = match &tabled {
        None => (program, inputs, &[][..]),
        Some(Tabled { program, read, lookups }) => {
            looked_up = read.iter().map(|&k| inputs[k as usize]).collect();
            (program, &looked_up[..], &lookups[..])
        }
    };
    let number = (parts > 1).then(number);
    let whole = Whole { level, program, lookups, shape, inputs, outputs, number };
    if parts <= 1 {
        return whole.run(0..numel);
    }
    // Whole pages of bytes, so that no two threads write one line.
    let part = numel.div_ceil(parts).next_multiple_of(4096);
    par.run(numel.div_ceil(part), &|i| whole.run(i * part..numel.min((i + 1) * part)));
}

#[cfg(test)]
thread_local! {
    /// Positions that this thread has computed.
    pub(crate) static COMPUTED: Cell<usize> = const { Cell::new(0) };
}

/// Runs a call over a range of positions: by the plan that this thread has of the calls of this
/// number, if it has one. So many positions are expected in all.
///
/// # Safety
/// Inputs may be read, and outputs written, at every position of the range. Calls of one number
/// differ in their outputs alone.
unsafe fn execute(call: &Call<'_>, expected: usize, range: Range<usize>) {
    if range.is_empty() {
        return;
    }
    #[cfg(test)]
    COMPUTED.set(COMPUTED.get() + range.len());
    // SAFETY: the caller's promise.
    if unsafe { direct::run(call, &range) } {
        return;
    }
    match call.number.filter(|_| crate::shape::numel(call.shape) >= PLANNED_FROM) {
        // SAFETY: as above.
        Some(number) => unsafe { planned(call, number, expected, range) },
        // SAFETY: as above.
        None => unsafe { tiled(call, range) },
    }
}

/// Runs a call by the plan that this thread keeps.
///
/// # Safety
/// As for [`execute`].
#[inline(never)]
unsafe fn planned(call: &Call<'_>, number: u64, expected: usize, range: Range<usize>) {
    // One at most. Its place in memory stays, for the plan has addresses within itself.
    let mut kept = PLANNED.try_with(Cell::take).unwrap_or_default();
    if kept.first().is_none_or(|planned| planned.number != number) {
        kept.clear();
        room::reserve(&mut kept, 1);
        let slots = Slots::take();
        kept.push(Planned { number, plan: Plan::new(slots.ptr), _slots: slots });
        // SAFETY: the caller's promise; the plan stays in its place, and the slots with it.
        unsafe { planner::make(&mut kept[0].plan, call) };
        kept[0].plan.gathers.iter_mut().for_each(|gather| gather.expect(expected));
    } else {
        kept[0].plan.move_outputs(call.outputs);
    }
    // SAFETY: as above. The inputs of a plan that is found again are those of the call.
    unsafe { walk(call, &mut kept[0].plan, range) };
    // A thread that is at its end keeps nothing.
    let _ = PLANNED.try_with(|last| last.set(kept));
}

/// Runs a call tile by tile.
///
/// # Safety
/// As for [`execute`].
#[inline(never)]
unsafe fn tiled(call: &Call<'_>, range: Range<usize>) {
    let slots = Slots::take();
    let mut plan = Plan::new(slots.ptr);
    // SAFETY: the caller's promise; `plan` and the slots stay where they are until the end of this
    // function.
    unsafe { planner::make(&mut plan, call) };
    plan.gathers.iter_mut().for_each(|gather| gather.expect(range.len()));
    // SAFETY: as above.
    unsafe { walk(call, &mut plan, range) }
}

/// Runs a plan over a range.
///
/// # Safety
/// As for [`execute`]; the plan is one of the call.
unsafe fn walk(call: &Call<'_>, plan: &mut Plan, range: Range<usize>) {
    let slot = if call.stream { SLOT_STREAMED } else { SLOT };
    let mut tile = slot / plan.widest;
    if let Some(segment) = plan.segment {
        // As long as each other, in whole lines.
        tile = segment.div_ceil(segment.div_ceil(tile)).next_multiple_of(LINE).min(tile);
    }
    if plan.steps().len() == 1 && plan.gathers.is_empty() {
        tile = range.len(); // one loop straight from memory to memory
    }
    // A row that repeats begins each tile anew if tiles are whole rows; then it is gathered once.
    let periods = plan.gathers.iter().filter_map(|g| g.period);
    if let Some(period) = periods.filter(|&period| period <= tile).max() {
        tile -= tile % period;
    }
    let mut position = range.start;
    while position < range.end {
        let mut end = range.end;
        if let Some(segment) = plan.segment {
            end = end.min((position / segment + 1) * segment);
            // SAFETY: inputs may be read at every position, by the caller's promise.
            unsafe { plan.begin_segment(position) };
        }
        while position < end {
            let n = tile.min(end - position);
            // SAFETY: inputs may be read and outputs written at these positions, by the caller's
            // promise; slots have room for a tile.
            unsafe { one_tile(call, plan, position, n) };
            position += n;
        }
    }
    if call.stream {
        stream::fence();
    }
}

/// Runs the steps of a plan over `n` positions.
///
/// # Safety
/// Places are valid for `n` elements from `position` on.
#[inline(always)]
unsafe fn one_tile(call: &Call<'_>, plan: &mut Plan, position: usize, n: usize) {
    let (steps, gathers, fused) = plan.parts();
    for step in steps {
        // SAFETY: the caller's promise.
        unsafe {
            match *step {
                Step::Loop { run, dst, a, b, c } => {
                    run(dst.at(position), a.at(position), b.at(position), c.at(position), n);
                }
                Step::Fused { which } => fused[which as usize].run(position, n),
                Step::Gather { which, dst } => gathers[which as usize].tile(position, n, dst.ptr),
                Step::Arange { dtype, start, step, dst } => {
                    arange::fill(dtype, start, step, position, dst.at(position), n);
                }
                Step::Random { normal, dtype, seed, offset, dst } => {
                    let f = if normal { random::normal } else { random::uniform };
                    f(call.level, dtype, seed, offset, position, dst.at(position), n);
                }
                Step::Stream { dst, a, size } => {
                    stream::copy(call.level, a.at(position), dst.at(position), n * size);
                }
            }
        }
    }
}

/// A thread's slots, for the time of a call. Pages that no call has touched cost nothing.
struct Slots {
    ptr: *mut u8,
}

/// The slots of a thread that are not in use.
struct Idle(Cell<*mut u8>);

const SLOTS_LAYOUT: Layout = match Layout::from_size_align(SLOTS * SLOT_STEP, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("the slots have a layout"),
};

thread_local! {
    static IDLE: Idle = const { Idle(Cell::new(std::ptr::null_mut())) };
}

impl Slots {
    #[inline]
    fn take() -> Slots {
        // Null if a call is running on this thread already, or the thread is ending: then new ones.
        let ptr = IDLE
            .try_with(|idle| idle.0.replace(std::ptr::null_mut()))
            .unwrap_or(std::ptr::null_mut());
        if !ptr.is_null() {
            return Slots { ptr };
        }
        // SAFETY: the layout is not empty.
        let ptr = unsafe { alloc(SLOTS_LAYOUT) };
        if ptr.is_null() {
            crate::room::denied(SLOTS_LAYOUT.size());
        }
        Slots { ptr }
    }
}

impl Drop for Slots {
    #[inline]
    fn drop(&mut self) {
        let ptr = self.ptr;
        // What was idle meanwhile (null but for a call within a call) is let go.
        let old = IDLE.try_with(|idle| idle.0.replace(ptr)).unwrap_or(ptr);
        drop(Idle(Cell::new(old)));
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        if !self.0.get().is_null() {
            // SAFETY: it was allocated with this layout, and nobody else has it.
            unsafe { dealloc(self.0.get(), SLOTS_LAYOUT) }
        }
    }
}
