//! Copies to the device: from the host through page-locked staging, from another GPU directly.
//!
//! Few bytes go on the lane that needs them. Many bytes go a chunk at a time on the lane for
//! copies, so that the copy runs beside the kernels. Threads of the background gather the chunks,
//! several at a time: one thread reaches a fifth of what the bus carries, and the device's has
//! launches to make. A step that needs a value on its way is tried again later. What lies in
//! page-locked memory of a user's (`page_locked`) is copied from there, on the same lanes.

use super::chunked::Upload;
use super::heap::DeviceBuffer;
use super::lazy_upload::{LazyUpload, Residency};
use super::page_locked;
use super::pinned::PinnedBlock;
use crate::cuda::device::background::Wanted;
use crate::cuda::device::context::{DeviceContext, device};
use crate::cuda::device::libraries::nvidia::Span;
use crate::cuda::device::{Trouble, Until};
use crate::graph::value::{Buffer, INLINE_BYTES, Storage, Value};
use crate::host::kernels::copy;
use crate::sync::{Mutex, lock};
use crate::view::{View, ViewMut};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

/// Up to this many bytes go at once.
const AT_ONCE: usize = 64 << 10;
/// Bytes that are copied to staging in one go: some hundred microseconds.
const CHUNK_BYTES: usize = 1 << 20;
/// The same where the elements are copied from where they lie: a millisecond of the bus.
const CHUNK_IN_PLACE_BYTES: usize = 32 << 20;
/// Chunks of one value that are gathered ahead of their copies.
const GATHERED_MAX: usize = 8;
/// Chunks whose copies may be under way.
const CHUNKS_MAX: usize = 16;

fn lazy(buffer: &dyn Buffer) -> &LazyUpload {
    match buffer.as_any().downcast_ref() {
        Some(lazy) => lazy,
        None => unreachable!("values of this device lie on it, or were handed in"),
    }
}

/// Copies `bytes` of a value's elements to staging, in row-major order, from byte `done` on.
fn gather(value: &Value, of: &LazyUpload, done: usize, bytes: usize, to: &PinnedBlock) {
    let (size, strides) = (of.dtype.size(), value.strides(&of.shape));
    let from =
        View { ptr: value.first(of.dtype), dtype: of.dtype, shape: &of.shape, strides: &strides };
    let to = ViewMut { ptr: to.ptr(), dtype: of.dtype, shape: &[bytes / size], life: PhantomData };
    copy::copy_part(from, done / size, &to);
}

impl DeviceContext {
    /// Brings elements to the device for a launch on this lane; [later](Trouble::Later) where that
    /// takes a while.
    pub(crate) fn bring(
        &mut self,
        lane: usize,
        buffer: &Arc<dyn Buffer>,
    ) -> Result<Arc<DeviceBuffer>, Trouble> {
        let lazy = lazy(&**buffer);
        let bytes = lazy.bytes();
        let value = match &*lazy.residency() {
            Residency::Resident(here) => return Ok(here.clone()),
            Residency::InTransit => return Err(Trouble::Later(Until::Moved)),
            Residency::Elsewhere(value) => value.clone(),
        };
        if let Storage::Shared(source) = &value.storage
            && let Some(source) = device(&**source)
        {
            let here = self.heap.buffer(&self.pool, bytes, &self.lanes, lane)?;
            let offset = value.placed.as_ref().map_or(0, |p| p.offset) * lazy.dtype.size();
            let (Some(ours), Some(theirs)) = (self.heap.context(), source.heap.context()) else {
                unreachable!("a device closes only once nothing lies on it");
            };
            let from = source.span().part(offset as u64, bytes);
            self.lanes.raw(lane).bring((here.span(), ours), (from, theirs))?;
            self.retained[lane].keep(value);
            *lazy.residency() = Residency::Resident(here.clone());
            return Ok(here);
        }
        if bytes > AT_ONCE {
            self.pinned.reserve()?;
            let copy_lane = self.copy_lane();
            let here = self.heap.buffer(&self.pool, bytes, &self.lanes, copy_lane)?;
            *lazy.residency() = Residency::InTransit;
            self.uploads.push_back(Upload {
                lazy: buffer.clone(),
                value,
                buffer: here,
                done: 0,
                asked: 0,
                chunks: VecDeque::new(),
            });
            return Err(Trouble::Later(Until::Moved));
        }
        if bytes > 0 && page_locked::address(&value).is_some() {
            let here = self.heap.buffer(&self.pool, bytes, &self.lanes, lane)?;
            let raw = self.lanes.raw(lane);
            self.retained[lane].upload_in_place(here.span(), &value, 0, raw)?;
            *lazy.residency() = Residency::Resident(here.clone());
            return Ok(here);
        }
        // First: without a block there is nothing to give back either.
        let block = self.pinned.take(bytes)?;
        let here = self.heap.buffer(&self.pool, bytes, &self.lanes, lane)?;
        if bytes > 0 {
            gather(&value, lazy, 0, bytes, &block);
            self.retained[lane].upload(here.span(), block, self.lanes.raw(lane))?;
        }
        *lazy.residency() = Residency::Resident(here.clone());
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
        self.retained[lane].upload(to, block, self.lanes.raw(lane))
    }

    /// True while a copy is being made and may go on.
    pub fn can_upload(&self, chunks_in_flight: usize) -> bool {
        !self.uploads.is_empty() && chunks_in_flight < CHUNKS_MAX
    }

    pub fn is_uploading(&self) -> bool {
        !self.uploads.is_empty()
    }

    /// Has the next chunks gathered, as far as there is page-locked memory for them now.
    ///
    /// # Errors
    /// [`Trouble::Later`] where there is none, and nothing is being gathered.
    fn gather_some(&self, upload: &mut Upload, bytes: usize) -> Result<(), Trouble> {
        while upload.asked < bytes && upload.chunks.len() < GATHERED_MAX {
            let n = CHUNK_BYTES.min(bytes - upload.asked);
            let block = match self.pinned.take(n) {
                Err(Trouble::Later(_)) if !upload.chunks.is_empty() => break,
                block => block?,
            };
            let (value, own, from) = (upload.value.clone(), upload.lazy.clone(), upload.asked);
            let gathered = move || {
                gather(&value, lazy(&*own), from, n, &block);
                Ok(Mutex::new(Some(block)))
            };
            upload.chunks.push_back(self.launcher.background.make(Wanted::Copy, gathered));
            upload.asked += n;
        }
        Ok(())
    }

    /// Copies the next chunk, as part of the next submission of the lane for copies.
    ///
    /// # Errors
    /// [`Trouble::Later`] where it is not gathered yet, or there is no page-locked memory for it
    /// now. After another error the elements are where they came from, and the next step that needs
    /// them begins anew.
    pub fn upload_chunk(&mut self) -> Result<(), Trouble> {
        let lane = self.copy_lane();
        let Some(mut upload) = self.uploads.pop_front() else { return Ok(()) };
        let own = upload.lazy.clone();
        let lazy = lazy(&*own);
        let bytes = lazy.bytes();
        let in_place = page_locked::address(&upload.value).is_some();
        let most = if in_place { CHUNK_IN_PLACE_BYTES } else { CHUNK_BYTES };
        let n = most.min(bytes - upload.done);
        let mut chunk = || {
            if in_place {
                let to = upload.buffer.span().part(upload.done as u64, n);
                let raw = self.lanes.raw(lane);
                return self.retained[lane].upload_in_place(to, &upload.value, upload.done, raw);
            }
            self.gather_some(&mut upload, bytes)?;
            let gathered =
                upload.chunks.front().map_or(Ok(None), |c| c.get().map(|c| lock(c).take()))?;
            upload.chunks.pop_front();
            let block = gathered.unwrap_or_else(|| unreachable!("each chunk is taken once"));
            let to = upload.buffer.span().part(upload.done as u64, n);
            self.retained[lane].upload(to, block, self.lanes.raw(lane))
        };
        match chunk() {
            Ok(()) => {
                upload.done += n;
                upload.buffer.written_by(self.lanes.next(lane));
                if upload.done == bytes {
                    *lazy.residency() = Residency::Resident(upload.buffer);
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
                *lazy.residency() = Residency::Elsewhere(upload.value);
                Err(trouble)
            }
        }
    }
}
