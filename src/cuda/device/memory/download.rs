//! Large values to the host: a piece at a time through page-locked memory, and from there to where
//! they are wanted by threads of the background (`chunked`).
//!
//! So nobody page-locks memory for them while the device works, and the thread that publishes a
//! lane's values copies none of them. Pieces go on the lane for copies, behind who writes the
//! value.

use super::chunked::{Arrival, Download, Piece};
use crate::cuda::device::Trouble;
use crate::cuda::device::context::{Gear, device};
use crate::graph::node::Room;
use crate::graph::value::Buffer;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// From so many bytes on a value comes in pieces of so many.
pub(crate) const PIECE: usize = 1 << 20;
/// Pieces that may be on their way.
const PIECES_MAX: usize = 16;

impl Gear {
    /// Brings contiguous elements of a buffer that is here to a room on the host.
    pub(crate) fn download(
        &mut self,
        from: Arc<dyn Buffer>,
        offset: usize,
        bytes: usize,
        room: Room,
    ) -> Arc<Arrival> {
        let arrival = Arrival::of(room, bytes);
        self.downloads.waiting.push_back(Download {
            from,
            offset,
            bytes,
            queued: 0,
            arrival: arrival.clone(),
        });
        arrival
    }

    pub fn is_downloading(&self) -> bool {
        !self.downloads.waiting.is_empty() || self.downloads.under_way.load(SeqCst) > 0
    }

    /// Queues the next piece, as part of the next flight of the lane for copies; none where there
    /// is no room for it now.
    pub fn download_piece(&mut self) -> Result<Option<Piece>, Trouble> {
        if self.downloads.under_way.load(SeqCst) >= PIECES_MAX {
            return Ok(None);
        }
        let Some(mut next) = self.downloads.waiting.pop_front() else { return Ok(None) };
        let piece = self.piece(&next);
        if let Ok(Some(piece)) = &piece {
            next.queued += piece.bytes;
        }
        if next.queued < next.bytes {
            self.downloads.waiting.push_front(next);
        }
        piece
    }

    fn piece(&mut self, of: &Download) -> Result<Option<Piece>, Trouble> {
        let (lane, at, bytes) = (self.copy_lane(), of.queued, PIECE.min(of.bytes - of.queued));
        let block = match self.pinned.take(bytes) {
            Ok(block) => block,
            Err(Trouble::Later(_) | Trouble::OutOfMemory { .. }) => return Ok(None),
            Err(trouble) => return Err(trouble),
        };
        let Some(from) = device(&*of.from) else { unreachable!("it is on the device") };
        self.after.clear();
        self.reads(lane, from);
        self.order(lane)?;
        let span = from.span().part((of.offset + at) as u64, bytes);
        let block = self.cargo[lane].download(block, span, self.lanes.raw(lane))?;
        let under_way = self.downloads.under_way.clone();
        under_way.fetch_add(1, SeqCst);
        Ok(Some(Piece { arrival: of.arrival.clone(), at, bytes, block, under_way }))
    }
}
