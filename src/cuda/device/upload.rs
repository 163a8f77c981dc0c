//! Copies to the device: from the host through page-locked staging, from another GPU directly.
//!
//! Few bytes go on the lane that needs them; many go a piece at a time on the lane for copies, so
//! that the thread can launch in between and the copy runs beside what computes. A step that needs
//! what is still on its way is tried again later.

#![allow(unsafe_code)]

use super::Trouble;
use super::context::Raw;
use super::gear::{Gear, Upload, device};
use super::handed::{Handed, Whereabouts};
use super::memory::DeviceBuffer;
use crate::graph::value::{Buffer, INLINE_BYTES, Storage, Value};
use crate::host::kernels::copy;
use crate::view::{Serial, View, ViewMut};
use cudarc::driver::sys;
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

fn write(to: u64, from: *const u8, bytes: usize, raw: Raw) -> Result<(), Trouble> {
    // SAFETY: both have room for so many bytes; the flight keeps the staging until it is reached.
    let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, raw.0) };
    Trouble::of("cuMemcpyHtoDAsync", status)
}

/// Copies elements of a host value to staging, in row-major order.
fn gather(value: &Value, handed: &Handed, to: *mut u8) {
    let strides = value.strides(&handed.shape);
    let from =
        View { ptr: value.first(handed.dtype), dtype: handed.dtype, shape: &handed.shape, strides: &strides };
    let to = ViewMut { ptr: to, dtype: handed.dtype, shape: &handed.shape, life: PhantomData };
    copy::copy(from, &to, &Serial);
}

impl Gear {
    /// Brings elements to the device for a launch on this lane; [later](Trouble::Later) where that
    /// takes a while.
    pub(super) fn bring(
        &mut self,
        lane: usize,
        buffer: &Arc<dyn Buffer>,
    ) -> Result<Arc<DeviceBuffer>, Trouble> {
        let handed = handed(&**buffer);
        let bytes = handed.bytes();
        let value = match &*handed.whereabouts() {
            Whereabouts::Here(here) => return Ok(here.clone()),
            Whereabouts::OnTheWay => return Err(Trouble::Later),
            Whereabouts::Elsewhere(value) => value.clone(),
        };
        if let Storage::Shared(source) = &value.storage
            && let Some(source) = device(&**source)
        {
            let here = self.heap.buffer(bytes, &self.lanes, lane)?;
            let offset = value.placed.as_ref().map_or(0, |p| p.offset) * handed.dtype.size();
            let contexts = (self.heap.context(), source.heap.context());
            // SAFETY: both hold so many bytes from there on; the source is complete, and the flight
            // keeps it.
            let status = unsafe {
                sys::cuMemcpyPeerAsync(
                    here.ptr,
                    contexts.0 as sys::CUcontext,
                    source.ptr + offset as u64,
                    contexts.1 as sys::CUcontext,
                    bytes,
                    self.lanes.raw(lane).0,
                )
            };
            if bytes > 0 {
                Trouble::of("cuMemcpyPeerAsync", status)?;
            }
            self.cargo[lane].foreign.push(value);
            *handed.whereabouts() = Whereabouts::Here(here.clone());
            return Ok(here);
        }
        if bytes > AT_ONCE && value.placed.is_none() {
            let copy_lane = self.copy_lane();
            let here = self.heap.buffer(bytes, &self.lanes, copy_lane)?;
            *handed.whereabouts() = Whereabouts::OnTheWay;
            self.uploads.push_back(Upload { handed: buffer.clone(), value, buffer: here, done: 0 });
            return Err(Trouble::Later);
        }
        let here = self.heap.buffer(bytes, &self.lanes, lane)?;
        if bytes > 0 {
            let block = self.pinned.take(bytes)?;
            gather(&value, handed, block.ptr());
            write(here.ptr, block.ptr(), bytes, self.lanes.raw(lane))?;
            self.cargo[lane].blocks.push(block);
        }
        *handed.whereabouts() = Whereabouts::Here(here.clone());
        Ok(here)
    }

    /// Copies of a constant's or a small value's words to memory of the step's own.
    pub(super) fn bring_words(
        &mut self,
        words: &[u64; INLINE_BYTES / 8],
        to: u64,
        lane: usize,
    ) -> Result<(), Trouble> {
        if let Some(tape) = &self.tape {
            tape.constant(words, to);
            return Ok(());
        }
        let bytes = INLINE_BYTES;
        let block = self.pinned.take(bytes)?;
        // SAFETY: the block has room for the words.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr().cast(), block.ptr(), bytes) };
        write(to, block.ptr(), bytes, self.lanes.raw(lane))?;
        self.cargo[lane].blocks.push(block);
        Ok(())
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
    /// After an error the elements are where they came from, and the next step that needs them begins anew.
    pub fn upload_piece(&mut self) -> Result<(), Trouble> {
        let lane = self.copy_lane();
        let Some(mut upload) = self.uploads.pop_front() else { return Ok(()) };
        let own = upload.handed.clone();
        let handed = handed(&*own);
        let bytes = handed.bytes();
        let n = PIECE.min(bytes - upload.done);
        let piece = || {
            let block = self.pinned.take(n)?;
            // SAFETY: `done + n` is at most the length of the contiguous elements.
            unsafe {
                let from = upload.value.first(handed.dtype).add(upload.done);
                std::ptr::copy_nonoverlapping(from, block.ptr(), n);
            }
            write(upload.buffer.ptr + upload.done as u64, block.ptr(), n, self.lanes.raw(lane))?;
            Ok(block)
        };
        match piece() {
            Ok(block) => {
                self.cargo[lane].blocks.push(block);
                upload.done += n;
                upload.buffer.written_by(self.lanes.next(lane));
                if upload.done == bytes {
                    *handed.whereabouts() = Whereabouts::Here(upload.buffer);
                } else {
                    self.uploads.push_front(upload);
                }
                Ok(())
            }
            Err(trouble) => {
                *handed.whereabouts() = Whereabouts::Elsewhere(upload.value);
                Err(trouble)
            }
        }
    }
}
