//! Whether one GPU's copies from another arrive.
//!
//! Some machines say that GPUs reach each other's memory, and then copies bring nothing, without an
//! error (CUDA.jl's issue 3112 has one). So the first question about a pair copies a few bytes and
//! looks at them, in the background; until the answer is known, elements go by the host.

#![allow(unsafe_code)]

use super::Trouble;
use super::background::{Background, Pending, Wanted};
use super::driver_context::can_reach;
use super::libraries::nvidia::{Allocation, ContextHandle, Pool, Raw};
use super::memory::pinned::{Pinned, Retained};
use crate::sync::{Mutex, lock};
use std::sync::Arc;

/// A device that is open, as far as others need it.
#[derive(Clone)]
pub(crate) struct Open {
    /// Which GPU it is.
    pub ordinal: usize,
    pub context: ContextHandle,
    pub pool: Pool,
    pub background: Background,
    pub pinned: Arc<Pinned>,
    /// It has been closed; nobody closes it under this lock.
    pub closed: Arc<Mutex<bool>>,
}

const WORDS: usize = 8;
const PATTERN: u8 = 0xA5;

/// The answers about the GPUs that may copy from a device, by number.
#[derive(Default)]
pub(crate) struct Peers(Mutex<Vec<(usize, Pending<bool>)>>);

impl Peers {
    /// True where the second device can copy from the first, whose these are, and that is known by
    /// now.
    pub fn reach(&self, from: Open, to: Open) -> bool {
        let mut known = lock(&self.0);
        if let Some((_, answer)) = known.iter().find(|(ordinal, _)| *ordinal == to.ordinal) {
            return matches!(answer.get(), Ok(true));
        }
        let (reader, background) = (to.ordinal, from.background.clone());
        let answer =
            background.make(Wanted::Now, move || match can_reach(to.ordinal, from.ordinal) {
                Some(gpu) if from.pool.open_to(gpu) => {
                    // Neither closes meanwhile; two pairs that are the same two devices take one
                    // order.
                    let [first, second] =
                        if from.ordinal < to.ordinal { [&from, &to] } else { [&to, &from] };
                    let (first, second) = (lock(&first.closed), lock(&second.closed));
                    let arrives = if *first || *second { Ok(false) } else { arrives(&from, &to) };
                    from.context.make_current();
                    arrives
                }
                _ => Ok(false),
            });
        known.push((reader, answer));
        false
    }
}

/// A stream of a context with a piece of memory, for as long as this lives.
struct Piece {
    raw: Raw,
    memory: Allocation,
}

impl Piece {
    fn new(of: &Open, byte: u8) -> Result<Piece, Trouble> {
        of.context.make_current();
        let mut piece = Piece { raw: Raw::new()?, memory: Allocation::NOWHERE };
        let bytes = 8 * WORDS;
        piece.memory = piece.raw.allocate(of.pool, bytes, bytes)?;
        piece.raw.fill(piece.memory.span(), byte)?;
        Ok(piece)
    }

    /// Waits for its queued work.
    fn sleep(&self) -> Result<(), Trouble> {
        self.raw.sleep().map_err(|status| Trouble::Fault { call: "cuStreamSynchronize", status })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let _ = self.raw.free(self.memory.take());
        // SAFETY: it is this piece's own; the driver lets its queued work run to the end.
        unsafe { self.raw.destroy() };
    }
}

/// Copies a little from one device to another, and looks.
fn arrives(from: &Open, to: &Open) -> Result<bool, Trouble> {
    let sent = Piece::new(from, PATTERN)?;
    sent.sleep()?;
    let got = Piece::new(to, 0)?;
    got.raw.bring((got.memory.span(), to.context), (sent.memory.span(), from.context))?;
    let mut retained = Retained::default();
    let block = retained.download(to.pinned.take(8 * WORDS)?, got.memory.span(), got.raw)?;
    got.sleep()?;
    Ok(block.words::<WORDS>() == [u64::from_ne_bytes([PATTERN; 8]); WORDS])
}
