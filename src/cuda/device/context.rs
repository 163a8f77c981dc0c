//! A device's context, streams, events and memory pool: made once on the device's thread, kept till
//! its end.
//!
//! Streams are never destroyed while anything may run on them: `close` is for a device that is idle
//! and over.

#![allow(unsafe_code)]

use super::{Gpu, Trouble, describe, probe};
use crate::sync::{Mutex, lock};
use cudarc::driver::sys;
use std::time::Duration;

/// An event that a waiting thread sleeps on, timed where its pool says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event(sys::CUevent);

// SAFETY: a handle; the driver's calls on events may be made from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// BLOCKING_SYNC | DISABLE_TIMING. The binding's flags are an enum, which cannot be OR-ed.
const UNTIMED: u32 = 3;
/// BLOCKING_SYNC.
const TIMED: u32 = 1;
/// CU_STREAM_NON_BLOCKING: the legacy default stream orders nothing here.
const STREAM_FLAGS: u32 = 1;

impl Event {
    /// Where the event stands: reached, not yet, or a fault.
    pub fn is_reached(self) -> Result<bool, sys::CUresult> {
        // SAFETY: an event that was made and not destroyed: the device is closed only after its
        // waiters.
        match unsafe { sys::cuEventQuery(self.0) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            fault => Err(fault),
        }
    }

    /// How long after another the event was reached, where both are timed and have been.
    pub fn since(self, earlier: Event) -> Option<Duration> {
        let mut milliseconds = 0.0;
        // SAFETY: both were made and not destroyed, and the place can be written.
        let status = unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.0, self.0) };
        (status == sys::CUresult::CUDA_SUCCESS)
            .then(|| Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    /// Waits, asleep, until the event is reached. For threads that have nothing else to do.
    pub fn sleep(self) -> Result<(), sys::CUresult> {
        // SAFETY: as above.
        match unsafe { sys::cuEventSynchronize(self.0) } {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            fault => Err(fault),
        }
    }
}

/// Events that are not in use, all of one kind.
#[derive(Debug)]
pub(crate) struct Events {
    flags: u32,
    free: Mutex<Vec<Event>>,
}

impl Events {
    pub fn untimed() -> Events {
        Events { flags: UNTIMED, free: Mutex::default() }
    }

    pub fn timed() -> Events {
        Events { flags: TIMED, free: Mutex::default() }
    }

    pub fn take(&self) -> Result<Event, Trouble> {
        if let Some(event) = lock(&self.free).pop() {
            return Ok(event);
        }
        let mut event = std::ptr::null_mut();
        // SAFETY: `event` can be written; the context is current.
        Trouble::of("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, self.flags) })?;
        Ok(Event(event))
    }

    /// An event that nobody waits for any more.
    pub fn give_back(&self, event: Event) {
        lock(&self.free).push(event);
    }

    /// To be called with the context current, and nobody waiting for any of them.
    pub fn destroy(&self) {
        for event in lock(&self.free).drain(..) {
            // SAFETY: made by `take`, and in nobody's hands.
            unsafe { sys::cuEventDestroy_v2(event.0) };
        }
    }
}

/// A stream's handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Raw(pub sys::CUstream);

// SAFETY: a handle; the driver's calls on streams may be made from any thread.
unsafe impl Send for Raw {}

impl Raw {
    pub fn record(self, event: Event) -> Result<(), Trouble> {
        // SAFETY: both are alive and of one context.
        Trouble::of("cuEventRecord", unsafe { sys::cuEventRecord(event.0, self.0) })
    }

    /// What is queued here from now on comes after the event.
    pub fn wait(self, event: Event) -> Result<(), Trouble> {
        // SAFETY: both are alive; the call takes the event's state of now.
        Trouble::of("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) })
    }

    /// Waits for all that is queued: for the mode that runs each op to its end.
    pub fn sleep(self) -> Result<(), sys::CUresult> {
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamSynchronize(self.0) } {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            fault => Err(fault),
        }
    }
}

/// The open context of a device.
#[derive(Debug)]
pub(crate) struct Context {
    pub gpu: Gpu,
    device: sys::CUdevice,
    pool: sys::CUmemoryPool,
    pub streams: Vec<Raw>,
}

/// A current context, as a number that other threads may keep. 0 for none.
pub(crate) fn make_current(context: usize) {
    // SAFETY: a context that is retained, or null.
    unsafe { sys::cuCtxSetCurrent(context as sys::CUcontext) };
}

impl Context {
    /// Retains the GPU's primary context, makes it current on this thread, and makes streams.
    pub fn open(ordinal: usize, streams: usize) -> Result<Context, String> {
        let device = probe::device(ordinal)?;
        let said = |call: &str, status: sys::CUresult| match status {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            other => Err(format!("{call} says {}", describe(other))),
        };
        let mut context = std::ptr::null_mut();
        // SAFETY: the places can be written, here and below; the context is current from the second
        // call on.
        unsafe {
            said("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            said("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
        }
        use sys::CUdevice_attribute::*;
        let gpu = Gpu {
            ordinal: ordinal as i32,
            context,
            capability: (
                probe::attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                probe::attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            multiprocessors: probe::attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        };
        let mut pool = std::ptr::null_mut();
        let mut keep = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: as above; the threshold is a u64.
        unsafe {
            said("cuDeviceGetDefaultMemPool", sys::cuDeviceGetDefaultMemPool(&mut pool, device))?;
            let keep = (&raw mut keep).cast();
            said("cuMemPoolSetAttribute", sys::cuMemPoolSetAttribute(pool, threshold, keep))?;
        }
        let mut made = Context { gpu, device, pool, streams: Vec::new() };
        for _ in 0..streams {
            let mut stream = std::ptr::null_mut();
            // SAFETY: as above.
            said("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, STREAM_FLAGS) })?;
            made.streams.push(Raw(stream));
        }
        Ok(made)
    }

    /// Gives what the pool keeps back to the device, as far as its frees have run.
    pub fn trim(&self) {
        // SAFETY: the pool is the device's own.
        unsafe { sys::cuMemPoolTrimTo(self.pool, 0) };
    }

    /// The end, with nothing running any more and nothing of its memory alive.
    pub fn close(self, events: &Events) {
        events.destroy();
        self.trim();
        // SAFETY: the streams are idle and nobody else has them; the context was retained once.
        unsafe {
            for stream in &self.streams {
                sys::cuStreamDestroy_v2(stream.0);
            }
            sys::cuCtxSetCurrent(std::ptr::null_mut());
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// Free and total bytes of the GPU of a context that is open; the caller's current context stays.
pub(crate) fn free_memory(context: usize) -> Option<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    let mut before = std::ptr::null_mut();
    // SAFETY: the places can be written, and the context is retained by its device.
    let status = unsafe {
        sys::cuCtxGetCurrent(&mut before);
        sys::cuCtxSetCurrent(context as sys::CUcontext);
        let status = sys::cuMemGetInfo_v2(&mut free, &mut total);
        sys::cuCtxSetCurrent(before);
        status
    };
    (status == sys::CUresult::CUDA_SUCCESS).then_some((free, total))
}
