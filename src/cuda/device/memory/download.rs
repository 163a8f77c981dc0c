//! Large values to the host: a chunk at a time through page-locked memory. Threads of the
//! background copy each chunk from there to its destination (`chunked`). What goes to page-locked
//! memory of a user's (`page_locked`) needs no such copy.
//!
//! So nobody page-locks memory for them while the device works, and the thread that publishes a
//! lane's values copies none of them. Chunks go on the lane for copies, behind the writer of the
//! value.

use super::chunked::{Chunk, ChunkedTransfer, Download};
use crate::cuda::device::Trouble;
use crate::cuda::device::context::{DeviceContext, device};
use crate::graph::node::Room;
use crate::graph::value::Buffer;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Bytes of a chunk; a larger value comes in chunks.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;
/// The same where the chunk is copied to where it stays: a millisecond of the bus.
const CHUNK_IN_PLACE_BYTES: usize = 32 << 20;
/// Chunks that may be on their way.
const CHUNKS_MAX: usize = 16;

impl DeviceContext {
    /// Brings contiguous elements of a buffer that is here to a room on the host.
    pub(crate) fn download(
        &mut self,
        from: Arc<dyn Buffer>,
        offset: usize,
        bytes: usize,
        room: Room,
        place: Option<Arc<dyn Buffer>>,
    ) -> Arc<ChunkedTransfer> {
        let transfer = ChunkedTransfer::of(room, bytes);
        self.downloads.waiting.push_back(Download {
            from,
            offset,
            bytes,
            queued: 0,
            place,
            transfer: transfer.clone(),
        });
        transfer
    }

    pub fn is_downloading(&self) -> bool {
        !self.downloads.waiting.is_empty() || self.downloads.under_way.load(SeqCst) > 0
    }

    /// Queues the next chunk, as part of the next submission of the lane for copies; none where
    /// there is no room for it now.
    pub fn download_chunk(&mut self) -> Result<Option<Chunk>, Trouble> {
        if self.downloads.under_way.load(SeqCst) >= CHUNKS_MAX {
            return Ok(None);
        }
        let Some(mut next) = self.downloads.waiting.pop_front() else { return Ok(None) };
        let chunk = self.chunk(&next);
        if let Ok(Some(chunk)) = &chunk {
            next.queued += chunk.bytes;
        }
        if next.queued < next.bytes {
            self.downloads.waiting.push_front(next);
        }
        chunk
    }

    fn chunk(&mut self, of: &Download) -> Result<Option<Chunk>, Trouble> {
        let most = if of.place.is_some() { CHUNK_IN_PLACE_BYTES } else { CHUNK_BYTES };
        let (lane, at, bytes) = (self.copy_lane(), of.queued, most.min(of.bytes - of.queued));
        let block = match of.place {
            Some(_) => None,
            None => match self.pinned.take(bytes) {
                Ok(block) => Some(block),
                Err(Trouble::Later(_) | Trouble::OutOfMemory { .. }) => return Ok(None),
                Err(trouble) => return Err(trouble),
            },
        };
        let Some(from) = device(&*of.from) else { unreachable!("it is on the device") };
        self.after.clear();
        self.reads(lane, from);
        self.order(lane)?;
        let span = from.span().part((of.offset + at) as u64, bytes);
        let (retained, raw) = (&mut self.retained[lane], self.lanes.raw(lane));
        let block = block.map(|block| retained.download(block, span, raw)).transpose()?;
        if let Some(place) = &of.place {
            retained.download_in_place(place.clone(), at, span, raw)?;
        }
        let under_way = self.downloads.under_way.clone();
        under_way.fetch_add(1, SeqCst);
        Ok(Some(Chunk { transfer: of.transfer.clone(), at, bytes, block, under_way }))
    }
}
