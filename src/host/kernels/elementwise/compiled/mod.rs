//! Several instructions of a program as one loop, compiled while the program runs.
//!
//! A tile that goes from step to step is written and read in between, which takes longer than an
//! addition. So simple instructions of f32 and 16-bit floats, and of truths beside them, become a
//! *group*: one loop in which every value stays in a register. What a group computes has the bits
//! that its loops have one by one: each operation rounds, nothing is contracted. The loops run one
//! by one where memory may not be executed, and on other processors than x86-64.
//!
//! `groups` finds the groups of a program, `emit` turns one into instructions of the processor,
//! `assembler` into bytes. Numbers are not in them, so a step of an optimiser is compiled once. A
//! group is remembered when it is first seen, and compiled when a second call has it. Called by the
//! planner.

#![allow(unsafe_code)]

mod assembler;
mod emit;
mod group;
mod groups;
mod memory;

use super::place::Place;
use crate::host::kernels::simd::Level;
use crate::host::kernels::stream::LINE;
use crate::sync::plain::{AtomicBool, Mutex, OnceLock, Ordering};
use crate::sync::statics;
use crate::sync::threads::spin_loop;
use group::{Held, Key};
pub(super) use groups::{Group, Known, Members, Source, groups};
use memory::Executable;
use smallvec::SmallVec;
use std::sync::Arc;

/// The groups that are remembered: a page of memory each.
const KEPT: usize = 128;
/// How often a thread tries to take the lock: some microseconds, where a look takes less than one.
const TRIES: usize = 200;
/// Places of a group at most.
const PLACES: usize = 32;

/// A group that was seen, and its loop, if it was seen again.
struct Seen {
    key: Key,
    /// The call that had it first.
    call: Option<u64>,
    /// A thread compiles it, or has done so.
    is_begun: AtomicBool,
    compiled: OnceLock<Compiled>,
}

/// The loop of a group; `None` where there can be none.
type Compiled = Option<Arc<Loop>>;

#[derive(Debug)]
struct Loop {
    executable: Executable,
    /// Positions in a register.
    lanes: usize,
}

// Those that were seen last come last.
statics! { static SEEN: Mutex<Vec<Arc<Seen>>> = Mutex::new(Vec::new()); }

/// The loop of a group that another call has had before this one. A poll may ask, and workers run
/// at a lower priority, so nobody sleeps here: without the lock after a moment, and while another
/// thread compiles, there is no loop.
fn found(key: &Key, call: Option<u64>) -> Compiled {
    let mut all = (0..TRIES).find_map(|_| {
        spin_loop();
        SEEN.try_lock().ok()
    })?;
    let Some(at) = all.iter().rposition(|seen| seen.key == *key) else {
        if all.len() == KEPT {
            all.remove(0);
        }
        let (is_begun, compiled) = (AtomicBool::new(false), OnceLock::new());
        all.push(Arc::new(Seen { key: key.clone(), call, is_begun, compiled }));
        return None;
    };
    let seen = all.remove(at);
    all.push(seen.clone());
    drop(all);
    let is_another = call.is_none() || seen.call != call;
    if is_another && !seen.is_begun.swap(true, Ordering::Relaxed) {
        let _ = seen.compiled.set(compile(key));
    }
    seen.compiled.get().cloned().flatten()
}

fn compile(key: &Key) -> Compiled {
    let (instructions, lanes) = emit::emit(key, key.level == Level::Avx512)?;
    Some(Arc::new(Loop { executable: Executable::new(&instructions)?, lanes }))
}

/// Room for the widest register.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Room([u8; LINE]);

/// A group of a plan, and where its operands lie.
pub(super) struct Fused {
    compiled: Arc<Loop>,
    held: SmallVec<[Held; 16]>,
    /// Those that are read, then those that are written.
    pub places: SmallVec<[Place; 16]>,
    /// How many are read.
    read: usize,
}

impl Fused {
    /// Computes the group at `n` positions.
    ///
    /// # Safety
    /// All places are valid there, and none that is written overlaps another.
    pub unsafe fn run(&self, position: usize, n: usize) {
        let mut addresses = [std::ptr::null_mut::<u8>(); PLACES];
        for (address, place) in addresses.iter_mut().zip(&self.places) {
            *address = place.at(position);
        }
        let Loop { executable, lanes } = &*self.compiled;
        let head = self.before_a_line(&addresses).min(n);
        let whole = (n - head) / lanes * lanes;
        let tail = head + whole;
        let pieces = [0..head, tail..n].map(|range| {
            range.clone().step_by(*lanes).map(move |at| (at, range.end.min(at + lanes) - at))
        });
        for (at, n) in pieces.into_iter().flatten() {
            // SAFETY: the caller's promise.
            unsafe { self.few(addresses, at, n) };
        }
        if whole > 0 {
            for (address, held) in addresses.iter_mut().zip(&self.held) {
                *address = address.wrapping_add(head * held.size().unwrap_or(0));
            }
            // SAFETY: as above; the loop takes whole registers.
            unsafe { executable.call(addresses.as_ptr(), whole) };
        }
    }

    /// Positions before the first boundary of a line in what is written around the caches; all of
    /// them, if the boundaries differ.
    fn before_a_line(&self, addresses: &[*mut u8; PLACES]) -> usize {
        let streamed =
            addresses.iter().zip(&self.held).filter(|(_, held)| **held == Held::Streamed);
        let heads = streamed.map(|(address, _)| address.align_offset(LINE) / size_of::<f32>());
        let (least, most) =
            heads.fold((usize::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
        if least < most { usize::MAX } else { most }
    }

    /// Computes a register's worth of positions or less, by way of places that have room for one.
    ///
    /// # Safety
    /// As for [`Fused::run`]: so many positions after `from`.
    #[inline(never)]
    unsafe fn few(&self, mut addresses: [*mut u8; PLACES], from: usize, n: usize) {
        let mut room = [Room([0; LINE]); PLACES];
        let mut out = [(std::ptr::null_mut::<u8>(), 0); PLACES];
        let rows = addresses.iter_mut().zip(&self.held).zip(&mut room).zip(&mut out).enumerate();
        for (k, (((address, held), room), out)) in rows {
            let Some(size) = held.size() else { continue };
            let (memory, room) = (address.wrapping_add(from * size), room.0.as_mut_ptr());
            if k < self.read {
                // SAFETY: the caller's promise, and room for a register.
                unsafe { std::ptr::copy_nonoverlapping(memory, room, n * size) };
            } else {
                *out = (memory, n * size);
            }
            *address = room;
        }
        let Loop { executable, lanes } = &*self.compiled;
        // SAFETY: a register's worth of each place, in `room` or one number.
        unsafe { executable.call(addresses.as_ptr(), *lanes) };
        for (&(memory, bytes), room) in out.iter().zip(&room) {
            if bytes > 0 {
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(room.0.as_ptr(), memory, bytes) };
            }
        }
    }
}
