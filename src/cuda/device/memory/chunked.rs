//! Chunked transfers: a large value comes to the host, or goes to the device, a chunk at a time.
//!
//! A chunk for the host arrives in page-locked memory (`download`), and a thread of the background
//! copies it on. The last chunk calls back. Chunks for the device are gathered by these threads
//! (`upload`).

#![allow(unsafe_code)]

use super::heap::DeviceBuffer;
use super::pinned::PinnedBlock;
use crate::cuda::device::background::Pending;
use crate::graph::node::Room;
use crate::graph::value::{Buffer, Value};
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

struct State {
    /// Bytes that are missing.
    left: usize,
    room: Option<Room>,
    /// The callback for the last chunk.
    then: Option<Box<dyn FnOnce() + Send>>,
}

/// A value that is arriving.
pub(crate) struct ChunkedTransfer {
    to: usize,
    state: Mutex<State>,
}

impl ChunkedTransfer {
    /// So many bytes are to come to a room.
    pub fn of(room: Room, bytes: usize) -> Arc<ChunkedTransfer> {
        let to = room.ptr as usize;
        Arc::new(ChunkedTransfer {
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

/// A chunk: in page-locked memory, once its submission is reached.
pub(crate) struct Chunk {
    pub transfer: Arc<ChunkedTransfer>,
    pub at: usize,
    pub bytes: usize,
    /// None where the device has copied it to its place in the value.
    pub block: Option<Arc<PinnedBlock>>,
    pub under_way: Arc<AtomicUsize>,
}

impl Chunk {
    /// Copies it to its place in the value. The caller knows that its submission is reached.
    pub fn deliver(self) {
        let Chunk { transfer, at, bytes, block, under_way } = self;
        if let Some(block) = block {
            let to = (transfer.to as *mut u8).wrapping_add(at);
            // SAFETY: the block has so many bytes, which nobody writes any more; the room has as
            // many from there on, no other chunk's, and is kept until all are there.
            unsafe { std::ptr::copy_nonoverlapping(block.ptr(), to, bytes) };
        }
        under_way.fetch_sub(1, SeqCst);
        let mut state = lock(&transfer.state);
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

/// A value of which not all chunks are queued.
pub(crate) struct Download {
    pub from: Arc<dyn Buffer>,
    /// Where it begins in its buffer.
    pub offset: usize,
    pub bytes: usize,
    pub queued: usize,
    /// The room, where it is a user's page-locked memory.
    pub place: Option<Arc<dyn Buffer>>,
    pub transfer: Arc<ChunkedTransfer>,
}

/// The values that are on their way to the host.
#[derive(Default)]
pub(crate) struct Downloads {
    pub waiting: VecDeque<Download>,
    pub under_way: Arc<AtomicUsize>,
}

/// A chunk for the device, in page-locked memory.
pub(crate) type Gathered = Pending<Mutex<Option<PinnedBlock>>>;

/// A value of which not all chunks were copied to the device.
pub(crate) struct Upload {
    pub lazy: Arc<dyn Buffer>,
    pub value: Value,
    pub buffer: Arc<DeviceBuffer>,
    /// Bytes that were copied.
    pub done: usize,
    /// Bytes that were copied or are being gathered.
    pub asked: usize,
    /// The chunks between the two, in order.
    pub chunks: VecDeque<Gathered>,
}
