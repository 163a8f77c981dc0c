//! Copies to the device: from the host through page-locked staging, from another GPU directly.
//!
//! Few bytes go on the lane that needs them; many go a piece at a time on the lane for copies, so
//! that the thread can launch in between and the copy runs beside what computes. A step that needs
//! what is still on its way is tried again later.

use super::heap::DeviceBuffer;
use super::lazy_upload::{Handed, Whereabouts};
use super::pinned::PinnedBlock;
use crate::cuda::device::context::{Gear, Upload, device};
use crate::cuda::device::libraries::nvidia::Span;
use crate::cuda::device::{Trouble, Until};
use crate::graph::value::{Buffer, INLINE_BYTES, Storage, Value};
use crate::host::kernels::copy;
use crate::view::{View, ViewMut};
use std::marker::PhantomData;
use std::sync::Arc;

/// Up to this many bytes go at once.
const AT_ONCE: usize = 64 << 10;
/// What is copied to staging in one go: some hundred microseconds.
const PIECE: usize = 1 << 20;
/// Pieces whose copies may be under way.
const PIECES_MAX: usize = 16;

fn handed(buffer: &dyn Buffer) -> &Handed {
    match buffer.as_any().downcast_ref() {
        Some(handed) => handed,
        None => unreachable!("values of this device lie on it, or were handed in"),
    }
}

/// Copies so many bytes of a value's elements to staging, in row-major order, from there on.
fn gather(value: &Value, of: &Handed, done: usize, bytes: usize, to: &PinnedBlock) {
    let (size, strides) = (of.dtype.size(), value.strides(&of.shape));
    let from =
        View { ptr: value.first(of.dtype), dtype: of.dtype, shape: &of.shape, strides: &strides };
    let to = ViewMut { ptr: to.ptr(), dtype: of.dtype, shape: &[bytes / size], life: PhantomData };
    copy::copy_part(from, done / size, &to);
}

impl Gear {
    /// Brings elements to the device for a launch on this lane; [later](Trouble::Later) where that
    /// takes a while.
    pub(crate) fn bring(
        &mut self,
        lane: usize,
        buffer: &Arc<dyn Buffer>,
    ) -> Result<Arc<DeviceBuffer>, Trouble> {
        let handed = handed(&**buffer);
        let bytes = handed.bytes();
        let value = match &*handed.whereabouts() {
            Whereabouts::Here(here) => return Ok(here.clone()),
            Whereabouts::OnTheWay => return Err(Trouble::Later(Until::Moved)),
            Whereabouts::Elsewhere(value) => value.clone(),
        };
        if let Storage::Shared(source) = &value.storage
            && let Some(source) = device(&**source)
        {
            let here = self.heap.buffer(&self.pool, bytes, &self.lanes, lane)?;
            let offset = value.placed.as_ref().map_or(0, |p| p.offset) * handed.dtype.size();
            let (Some(ours), Some(theirs)) = (self.heap.context(), source.heap.context()) else {
                unreachable!("a device closes only once nothing lies on it");
            };
            let from = source.span().part(offset as u64, bytes);
            self.lanes.raw(lane).bring((here.span(), ours), (from, theirs))?;
            self.cargo[lane].keep(value);
            *handed.whereabouts() = Whereabouts::Here(here.clone());
            return Ok(here);
        }
        if bytes > AT_ONCE {
            self.pinned.reserve()?;
            let copy_lane = self.copy_lane();
            let here = self.heap.buffer(&self.pool, bytes, &self.lanes, copy_lane)?;
            *handed.whereabouts() = Whereabouts::OnTheWay;
            self.uploads.push_back(Upload { handed: buffer.clone(), value, buffer: here, done: 0 });
            return Err(Trouble::Later(Until::Moved));
        }
        // First: who has none now has nothing to give back either, and sees that nothing moves.
        let block = self.pinned.take(bytes)?;
        let here = self.heap.buffer(&self.pool, bytes, &self.lanes, lane)?;
        if bytes > 0 {
            gather(&value, handed, 0, bytes, &block);
            self.cargo[lane].upload(here.span(), block, self.lanes.raw(lane))?;
        }
        *handed.whereabouts() = Whereabouts::Here(here.clone());
        Ok(here)
    }

    /// Copies of a constant's or a small value's words to memory of the step's own.
    pub(crate) fn bring_words(
        &mut self,
        words: &[u64; INLINE_BYTES / 8],
        to: Span,
        lane: usize,
    ) -> Result<(), Trouble> {
        let mut block = self.pinned.take(INLINE_BYTES)?;
        block.put(words);
        self.cargo[lane].upload(to, block, self.lanes.raw(lane))
    }

    /// True while a copy is being made and may go on.
    pub fn can_upload(&self, pieces_under_way: usize) -> bool {
        !self.uploads.is_empty() && pieces_under_way < PIECES_MAX
    }

    pub fn is_uploading(&self) -> bool {
        !self.uploads.is_empty()
    }

    /// Copies the next piece, as part of the next flight of the lane for copies.
    ///
    /// # Errors
    /// [`Trouble::Later`] where there is no page-locked memory for it now. After another error the
    /// elements are where they came from, and the next step that needs them begins anew.
    pub fn upload_piece(&mut self) -> Result<(), Trouble> {
        let lane = self.copy_lane();
        let Some(mut upload) = self.uploads.pop_front() else { return Ok(()) };
        let own = upload.handed.clone();
        let handed = handed(&*own);
        let bytes = handed.bytes();
        let n = PIECE.min(bytes - upload.done);
        let mut piece = || {
            let block = self.pinned.take(n)?;
            gather(&upload.value, handed, upload.done, n, &block);
            let to = upload.buffer.span().part(upload.done as u64, n);
            self.cargo[lane].upload(to, block, self.lanes.raw(lane))
        };
        match piece() {
            Ok(()) => {
                upload.done += n;
                upload.buffer.written_by(self.lanes.next(lane));
                if upload.done == bytes {
                    *handed.whereabouts() = Whereabouts::Here(upload.buffer);
                } else {
                    self.uploads.push_front(upload);
                }
                Ok(())
            }
            Err(Trouble::Later(until)) => {
                self.uploads.push_front(upload);
                Err(Trouble::Later(until))
            }
            Err(trouble) => {
                *handed.whereabouts() = Whereabouts::Elsewhere(upload.value);
                Err(trouble)
            }
        }
    }
}
