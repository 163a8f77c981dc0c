//! Runs the blocks of a launch, one after the other, a block's threads as fibers.
//!
//! A fiber starts thread after thread (the loop is in the shim, `futsim_next`). A thread that must
//! wait for others parks its fiber, and another fiber goes on starting threads; so a kernel without
//! barriers runs in one fiber without a switch. Once all threads of a block are started, those that
//! wait are let go in rounds: a warp's when every lane that a collective names has come, the
//! block's when all that are left have come to the barrier.

use crate::checks::shared;
use crate::kernels::abi::Api;
use crate::kernels::image::{Image, Shape};
use crate::kernels::limit::Watched;
use crate::kernels::trap::{self, Ending, Trap};
use crate::machine::faults::Fault;
use crate::status::{ASSERT, ILLEGAL_INSTRUCTION, LAUNCH_TIMEOUT};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_void};

/// Room for a thread's local arrays. Only touched pages cost memory.
const STACK_BYTES: usize = 256 << 10;

/// Why a thread waits.
#[derive(Clone, Copy)]
enum Park {
    /// `__syncthreads` and its counting forms: `op` 0 plain, 1 count, 2 and, 3 or.
    Barrier { thread: u32, op: u32, value: u32 },
    /// A warp collective.
    Warp { thread: u32, mask: u32, value: u64 },
    /// The thread gives up: 0 `__trap`, 1 an assertion.
    Trap { thread: u32, kind: u32, text: usize },
}

/// What a thread is given when it goes on.
#[derive(Clone, Copy)]
struct Resume {
    value: u32,
    /// The 32 values of its warp, for a collective; valid until the thread parks again.
    lanes: *const [u64; 32],
}

const NOTHING: Resume = Resume { value: 0, lanes: std::ptr::null() };

type Fiber = Coroutine<Resume, Park, Ending, DefaultStack>;

struct Parked {
    fiber: Fiber,
    park: Park,
}

thread_local! {
    /// The way back out of the fiber that runs.
    static WAY_OUT: Cell<*const Yielder<Resume, Park>> = const { Cell::new(std::ptr::null()) };
    /// Stacks, made once and used again.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

fn park(why: Park) -> Resume {
    let way_out = WAY_OUT.get();
    // SAFETY: `WAY_OUT` is set by the fiber that runs, to its own yielder, which lives as long as
    // the fiber; the kernel that calls this runs in that fiber.
    let resume = unsafe { (*way_out).suspend(why) };
    WAY_OUT.set(way_out);
    resume
}

extern "C" fn barrier(thread: u32, op: u32, value: u32) -> u32 {
    park(Park::Barrier { thread, op, value }).value
}

extern "C" fn warp(thread: u32, mask: u32, value: u64, lanes: *mut [u64; 32]) -> u32 {
    let resume = park(Park::Warp { thread, mask, value });
    // SAFETY: `lanes` is an array of the shim's caller; what `resume` points at lives in `release`,
    // which waits for this fiber to park again or end.
    unsafe { lanes.write(resume.lanes.read()) };
    resume.value
}

extern "C" fn give_up(thread: u32, kind: u32, text: *const c_char) {
    park(Park::Trap { thread, kind, text: text as usize });
}

/// The one table of calls.
pub static API: Api = Api { barrier, warp, trap: give_up };

fn start(work: extern "C" fn(*mut *mut c_void), arguments: *mut *mut c_void) -> Fiber {
    let stack = STACKS.with_borrow_mut(|stacks| stacks.pop());
    let stack = stack
        .unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("memory for a fiber's stack"));
    Fiber::with_stack(stack, move |yielder, _| {
        WAY_OUT.set(yielder);
        work(arguments);
        Ok(())
    })
}

/// Lets a fiber run until it parks (`Some`) or ends.
fn step(mut fiber: Fiber, with: Resume) -> Result<Option<Parked>, Trap> {
    trap::watch(Some(fiber.trap_handler()));
    let result = fiber.resume(with);
    trap::watch(None);
    match result {
        CoroutineResult::Yield(park) => Ok(Some(Parked { fiber, park })),
        CoroutineResult::Return(ending) => {
            let stack = fiber.into_stack();
            STACKS.with_borrow_mut(|stacks| stacks.push(stack));
            ending.map(|()| None)
        }
    }
}

fn abandon(slots: &mut [Option<Parked>]) {
    for parked in slots.iter_mut().filter_map(Option::take) {
        let mut fiber = parked.fiber;
        // SAFETY: below the kernel's C++ frames, which have no destructors, the fiber holds only
        // the closure of `start`, whose captures are plain.
        unsafe { fiber.force_reset() };
        let stack = fiber.into_stack();
        STACKS.with_borrow_mut(|stacks| stacks.push(stack));
    }
}

/// Runs a kernel over a grid. The image is exclusively this call's: kernels run one at a time.
pub fn run(
    image: &Image,
    work: extern "C" fn(*mut *mut c_void),
    arguments: &mut [*mut c_void],
    shape: &Shape,
    descending: bool,
) -> Result<(), Fault> {
    trap::install();
    let _watched = Watched::new();
    image.begin(&API, shape, descending);
    shared::begin(image, (shape.dynamic as usize, shape.dynamic_bytes));
    let threads = shape.block.iter().product::<u32>() as usize;
    let mut slots: Vec<Option<Parked>> = Vec::new();
    loop {
        let outcome = run_blocks(image, work, arguments, threads, &mut slots, descending);
        if let Err(fault) = outcome {
            abandon(&mut slots);
            return Err(fault);
        }
        if !image.advance() {
            return Ok(());
        }
    }
}

fn run_blocks(
    image: &Image,
    work: extern "C" fn(*mut *mut c_void),
    arguments: &mut [*mut c_void],
    threads: usize,
    slots: &mut Vec<Option<Parked>>,
    descending: bool,
) -> Result<(), Fault> {
    let place = |trap: Trap| {
        let (block, thread) = image.position();
        let text = format!("{} {:#x} in block {block}, thread {thread}", trap.what, trap.address);
        Fault { status: trap.status, text }
    };
    let mut waiting = false;
    loop {
        let parked = step(start(work, arguments.as_mut_ptr()), NOTHING).map_err(place)?;
        if let Some(parked) = parked {
            keep(slots, parked, threads)?;
            waiting = true;
        }
        if image.all_started() {
            break;
        }
    }
    while waiting {
        waiting = release(slots, descending, &place)?;
    }
    Ok(())
}

fn keep(slots: &mut Vec<Option<Parked>>, parked: Parked, threads: usize) -> Result<(), Fault> {
    if slots.len() < threads {
        slots.resize_with(threads, || None);
    }
    let (Park::Barrier { thread, .. } | Park::Warp { thread, .. } | Park::Trap { thread, .. }) =
        parked.park;
    let park = parked.park;
    slots[thread as usize] = Some(parked);
    if let Park::Trap { kind, text, .. } = park {
        // SAFETY: the shim passes a string literal of the kernel library, which stays loaded.
        let text = unsafe { CStr::from_ptr(text as *const c_char) }.to_string_lossy();
        let status = if kind == 1 { ASSERT } else { ILLEGAL_INSTRUCTION };
        return Err(Fault { status, text: format!("{text} in thread {thread}") });
    }
    Ok(())
}

/// Lets those go on who have what they wait for. False once nobody waits.
fn release(
    slots: &mut Vec<Option<Parked>>,
    descending: bool,
    place: &dyn Fn(Trap) -> Fault,
) -> Result<bool, Fault> {
    let mut lanes: Vec<[u64; 32]> = Vec::new();
    let mut chosen: Vec<(usize, u32, Option<usize>)> = Vec::new();
    let mut at_barrier = 0;
    let mut all = 0;
    for warp in 0..slots.len().div_ceil(32) {
        let mine = warp * 32..slots.len().min(warp * 32 + 32);
        let mut done = 0u32;
        for thread in mine.clone() {
            let Some(parked) = &slots[thread] else { continue };
            all += 1;
            let (lane, mask) = match parked.park {
                Park::Warp { mask, .. } => (thread % 32, mask),
                _ => {
                    at_barrier += 1;
                    continue;
                }
            };
            if done >> lane & 1 == 1 {
                continue;
            }
            let Some((present, values)) = collective(&slots[mine.clone()], mask, lane)? else {
                continue;
            };
            done |= present;
            lanes.push(values);
            shared::collective(warp, present);
            for other in (0..32).filter(|other| present >> other & 1 == 1) {
                chosen.push((warp * 32 + other, present, Some(lanes.len() - 1)));
            }
        }
    }
    if all == 0 {
        return Ok(false);
    }
    if chosen.is_empty() {
        if at_barrier < all {
            let text = format!(
                "deadlock: {at_barrier} threads at a barrier, {} in warp collectives",
                all - at_barrier
            );
            return Err(Fault { status: LAUNCH_TIMEOUT, text });
        }
        let value = barrier_value(slots)?;
        shared::barrier();
        chosen =
            (0..slots.len()).filter(|&i| slots[i].is_some()).map(|i| (i, value, None)).collect();
    }
    if descending {
        chosen.reverse();
    }
    for (thread, value, index) in chosen {
        let Some(parked) = slots[thread].take() else { continue };
        let with = Resume { value, lanes: index.map_or(std::ptr::null(), |i| &lanes[i]) };
        if let Some(parked) = step(parked.fiber, with).map_err(place)? {
            keep(slots, parked, 0)?;
        }
    }
    Ok(true)
}

/// The lanes and values of the collective that `lane` waits in, once every lane of the mask has
/// come.
fn collective(
    warp: &[Option<Parked>],
    mask: u32,
    lane: usize,
) -> Result<Option<(u32, [u64; 32])>, Fault> {
    if mask >> lane & 1 == 0 {
        let text =
            format!("lane {lane} takes part in a collective whose mask {mask:#x} does not name it");
        return Err(Fault { status: ILLEGAL_INSTRUCTION, text });
    }
    // A lane that has returned, or that the block does not have, need not come (CUDA C++
    // Programming Guide: "all non-exited threads named in mask"); to read from it is undefined, and
    // gives all ones here.
    let mut values = [u64::MAX; 32];
    let mut present = 0;
    for other in (0..32).filter(|other| mask >> other & 1 == 1) {
        match warp.get(other).and_then(Option::as_ref).map(|parked| parked.park) {
            Some(Park::Warp { mask: same, value, .. }) if same == mask => {
                values[other] = value;
                present |= 1 << other;
            }
            Some(_) => return Ok(None),
            None => {}
        }
    }
    Ok(Some((present, values)))
}

/// What the barrier gives: all that are left have come to it.
fn barrier_value(slots: &[Option<Parked>]) -> Result<u32, Fault> {
    let mut kind = None;
    let (mut count, mut all) = (0, 0);
    for parked in slots.iter().flatten() {
        let Park::Barrier { op, value, .. } = parked.park else { continue };
        if *kind.get_or_insert(op) != op {
            let text = "threads of a block are at barriers of different kinds".to_owned();
            return Err(Fault { status: ILLEGAL_INSTRUCTION, text });
        }
        count += value;
        all += 1;
    }
    Ok(match kind {
        Some(1) => count,
        Some(2) => u32::from(count == all),
        Some(3) => u32::from(count > 0),
        _ => 0,
    })
}
