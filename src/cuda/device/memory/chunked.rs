//! A large value that comes to the host in pieces, and who is told when all of them are there.
//!
//! Pieces land on threads of the background, in page-locked memory before that (`download`).

#![allow(unsafe_code)]

use super::pinned::PinnedBlock;
use crate::graph::node::Room;
use crate::graph::value::Buffer;
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

struct State {
    /// Bytes that are missing.
    left: usize,
    room: Option<Room>,
    /// What is to be done when all is there.
    then: Option<Box<dyn FnOnce() + Send>>,
}

/// A value that is arriving.
pub(crate) struct Arrival {
    to: usize,
    state: Mutex<State>,
}

impl Arrival {
    /// So many bytes are to come to a room.
    pub fn of(room: Room, bytes: usize) -> Arc<Arrival> {
        let to = room.ptr as usize;
        Arc::new(Arrival {
            to,
            state: Mutex::new(State { left: bytes, room: Some(room), then: None }),
        })
    }

    /// Does something when all is there, at once where it is.
    pub fn then(&self, what: Box<dyn FnOnce() + Send>) {
        let mut state = lock(&self.state);
        if state.left > 0 {
            state.then = Some(what);
            return;
        }
        drop(state);
        what();
    }
}

/// A piece: in page-locked memory, once its flight is reached.
pub(crate) struct Piece {
    pub arrival: Arc<Arrival>,
    pub at: usize,
    pub bytes: usize,
    pub block: Arc<PinnedBlock>,
    pub under_way: Arc<AtomicUsize>,
}

impl Piece {
    /// Copies it to where it belongs. For who knows that its flight is reached.
    pub fn land(self) {
        let Piece { arrival, at, bytes, block, under_way } = self;
        // SAFETY: the block has so many bytes, which nobody writes any more; the room has as many
        // from there on, no other piece's, and is kept until all are there.
        unsafe {
            std::ptr::copy_nonoverlapping(block.ptr(), (arrival.to as *mut u8).add(at), bytes)
        };
        drop(block);
        under_way.fetch_sub(1, SeqCst);
        let mut state = lock(&arrival.state);
        state.left -= bytes;
        if state.left > 0 {
            return;
        }
        let (room, then) = (state.room.take(), state.then.take());
        drop(state);
        room.into_iter().for_each(|room| (room.full)());
        then.into_iter().for_each(|then| then());
    }
}

/// A value of which not all pieces are queued.
pub(crate) struct Download {
    pub from: Arc<dyn Buffer>,
    /// Where it begins in its buffer.
    pub offset: usize,
    pub bytes: usize,
    pub queued: usize,
    pub arrival: Arc<Arrival>,
}

/// The values that are on their way to the host.
#[derive(Default)]
pub(crate) struct Downloads {
    pub waiting: VecDeque<Download>,
    pub under_way: Arc<AtomicUsize>,
}
