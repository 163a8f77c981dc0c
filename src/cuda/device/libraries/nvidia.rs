//! The calls of NVIDIA's driver: streams, events, memory and modules. `driver_context` has contexts
//! and the list of GPUs, `graph/executable` graphs, `memory/pinned` page-locked memory.
//!
//! A handle is valid until `DriverContext::close`, whose caller promises that no handle is used
//! afterwards. All other requirements of a call are guaranteed by types ([`Span`]), or the call is
//! unsafe.

#![allow(unsafe_code)]

use super::driver;

use crate::cuda::device::Trouble;
use crate::sync::{Mutex, lock};
use cudarc::driver::sys;
use std::ffi::{CString, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::time::Duration;

/// An event that a waiting thread sleeps on; timed if its pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event(sys::CUevent);

// SAFETY: it is a handle; the driver's calls on events may be made from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// BLOCKING_SYNC | DISABLE_TIMING. The binding's flags are an enum, which cannot be OR-ed.
const UNTIMED: u32 = 3;
/// BLOCKING_SYNC.
const TIMED: u32 = 1;
/// CU_STREAM_NON_BLOCKING: no ordering with the legacy default stream.
const STREAM_FLAGS: u32 = 1;

impl Event {
    /// Whether the event has been reached; a fault is an error.
    pub fn is_reached(self) -> Result<bool, sys::CUresult> {
        // SAFETY: only `close` destroys events, here and below.
        has_come(unsafe { sys::cuEventQuery(self.0) })
    }

    /// The time between another event and this one, if both are timed and have been reached.
    pub fn since(self, earlier: Event) -> Option<Duration> {
        let mut milliseconds = 0.0;
        // SAFETY: as above, and the place can be written.
        let status = unsafe { driver::elapsed()?(&mut milliseconds, earlier.0, self.0) };
        let took = Duration::try_from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3);
        took.ok().filter(|_| status == sys::CUresult::CUDA_SUCCESS)
    }

    /// Sleeps until the event is reached. For threads that have nothing else to do.
    pub fn sleep(self) -> Result<(), sys::CUresult> {
        // SAFETY: as above.
        has_ended(unsafe { sys::cuEventSynchronize(self.0) })
    }
}

/// A pool of unused events of one kind.
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
        let mut event = null_mut();
        // SAFETY: `event` can be written.
        Trouble::of("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, self.flags) })?;
        Ok(Event(event))
    }

    /// Destroys the unused events.
    ///
    /// # Safety
    /// The events are not used afterwards.
    pub unsafe fn destroy(&self) {
        for event in std::mem::take(&mut *lock(&self.free)) {
            // SAFETY: the caller's promise.
            unsafe { sys::cuEventDestroy_v2(event.0) };
        }
    }

    /// Returns an event that is no longer waited for.
    pub fn give_back(&self, event: Event) {
        lock(&self.free).push(event);
    }
}

/// Interprets the answer of a query: reached, not yet, or a fault.
fn has_come(answer: sys::CUresult) -> Result<bool, sys::CUresult> {
    match answer {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        other => has_ended(other).map(|()| true),
    }
}

/// Interprets the answer of a wait: its end, or a fault.
fn has_ended(answer: sys::CUresult) -> Result<(), sys::CUresult> {
    if answer == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(answer) }
}

/// A range of device memory inside one allocation of the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    ptr: u64,
    bytes: usize,
}

impl Span {
    /// # Safety
    /// The range lies inside one allocation of the driver.
    pub unsafe fn new(ptr: u64, bytes: usize) -> Span {
        Span { ptr, bytes }
    }

    pub fn ptr(self) -> u64 {
        self.ptr
    }

    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// A part of the range.
    pub fn part(self, from: u64, bytes: usize) -> Span {
        assert!(
            from <= self.bytes as u64 && bytes <= self.bytes - from as usize,
            "outside of its memory"
        );
        Span { ptr: self.ptr + from, bytes }
    }
}

/// Stream-ordered device memory; its owner frees it by [`Raw::free`]. Dropping it leaks the memory.
#[derive(Debug)]
pub(crate) struct Allocation {
    span: Span,
    /// The allocated bytes: the size of the span, or more.
    room: usize,
}

impl Default for Allocation {
    fn default() -> Allocation {
        Allocation::NOWHERE
    }
}

impl Allocation {
    /// No memory: the address of an empty value, which no kernel reads or writes. A step that
    /// launches nothing leaves nothing on its lane to wait for, so an allocation for it would not
    /// be ordered with its readers.
    pub const NOWHERE: Allocation = Allocation { span: Span { ptr: 0, bytes: 0 }, room: 0 };

    /// Memory that somebody else frees, who promised that it is device memory for as long as it is
    /// lent.
    pub fn lent(ptr: u64, bytes: usize) -> Allocation {
        Allocation { span: Span { ptr, bytes }, room: 0 }
    }

    pub fn span(&self) -> Span {
        self.span
    }

    pub fn room(&self) -> usize {
        self.room
    }

    /// Shrinks the span to this many bytes of the allocation.
    pub fn of(self, bytes: usize) -> Allocation {
        assert!(bytes <= self.room, "outside of its memory");
        Allocation { span: Span { bytes, ..self.span }, ..self }
    }

    /// Frees the memory while nothing runs; the driver waits for running work.
    pub fn free_now(self) {
        if self.room > 0 {
            // SAFETY: the driver allocated it, and its only owner frees it.
            let _ = unsafe { sys::cuMemFree_v2(self.span.ptr) };
        }
    }

    /// Takes the allocation, and leaves none behind.
    pub fn take(&mut self) -> Allocation {
        std::mem::replace(self, Allocation::NOWHERE)
    }
}

/// A stream's handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Raw(sys::CUstream);

// SAFETY: it is a handle; the driver's calls on streams may be made from any thread.
unsafe impl Send for Raw {}

/// A pool of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pool(sys::CUmemoryPool);

// SAFETY: it is a handle; the driver's calls on pools may be made from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A memory pool of a GPU that keeps freed blocks, and in which no stream waits for another
    /// unless the caller requests it. The default pool is not used, since other code of the process
    /// shares it.
    pub fn new(device: sys::CUdevice) -> Result<Pool, Trouble> {
        // SAFETY: all fields may be zero.
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = device;
        let mut pool = null_mut();
        // SAFETY: the pointer can be written.
        Trouble::of("cuMemPoolCreate", unsafe { sys::cuMemPoolCreate(&mut pool, &properties) })?;
        use sys::CUmemPool_attribute::*;
        let (mut keep, mut no) = (u64::MAX, 0 as c_int);
        let ties = CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
        // SAFETY: the pool is alive; a threshold is a u64, a switch an int.
        unsafe {
            let call = "cuMemPoolSetAttribute";
            let threshold = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            Trouble::of(call, sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut keep).cast()))?;
            Trouble::of(call, sys::cuMemPoolSetAttribute(pool, ties, (&raw mut no).cast()))?;
        }
        Ok(Pool(pool))
    }

    /// Returns kept memory to the GPU, if its frees have run. This may take
    /// long.
    pub fn trim(self) {
        // SAFETY: only `close` destroys pools.
        unsafe { sys::cuMemPoolTrimTo(self.0, 0) };
    }

    /// Bytes that are allocated from it, that it has of the GPU, and that were allocated at most.
    pub fn bytes(self) -> Option<[usize; 3]> {
        use sys::CUmemPool_attribute::*;
        let of = |attribute| {
            let mut bytes = 0u64;
            // SAFETY: as above; these attributes are of this type.
            let status =
                unsafe { sys::cuMemPoolGetAttribute(self.0, attribute, (&raw mut bytes).cast()) };
            (status == sys::CUresult::CUDA_SUCCESS).then_some(bytes as usize)
        };
        Some([
            of(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            of(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            of(CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        ])
    }

    /// Lets a GPU access the pool's memory; false if it cannot.
    pub fn open_to(self, reader: sys::CUdevice) -> bool {
        let location = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: reader,
        };
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location, flags };
        // SAFETY: as above; the call reads one description.
        unsafe { sys::cuMemPoolSetAccess(self.0, &access, 1) == sys::CUresult::CUDA_SUCCESS }
    }

    /// Destroys it.
    ///
    /// # Safety
    /// All of its memory is freed, and the pool is not used afterwards.
    pub unsafe fn destroy(self) {
        // SAFETY: the caller's promise.
        let _ = unsafe { sys::cuMemPoolDestroy(self.0) };
    }
}

impl Raw {
    /// The handle, for libraries.
    pub fn handle(self) -> sys::CUstream {
        self.0
    }

    pub fn record(self, event: Event) -> Result<(), Trouble> {
        // SAFETY: only `close` destroys streams and events, here and below.
        Trouble::of("cuEventRecord", unsafe { sys::cuEventRecord(event.0, self.0) })
    }

    /// Orders work that is queued from now on after the event.
    pub fn wait(self, event: Event) -> Result<(), Trouble> {
        // SAFETY: as above; the call captures the event's current state.
        Trouble::of("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) })
    }

    /// Waits for all queued work: for the mode that completes each op before the next.
    pub fn sleep(self) -> Result<(), sys::CUresult> {
        // SAFETY: as above.
        has_ended(unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// Whether all queued work has completed.
    pub fn is_through(self) -> Result<bool, sys::CUresult> {
        // SAFETY: as above.
        has_come(unsafe { sys::cuStreamQuery(self.0) })
    }

    /// Allocates `room` bytes, of which the span has `bytes`.
    pub fn allocate(self, pool: Pool, bytes: usize, room: usize) -> Result<Allocation, Trouble> {
        if bytes == 0 {
            return Ok(Allocation::NOWHERE);
        }
        let mut ptr = 0;
        // SAFETY: as above, `ptr` can be written, and only `close` destroys pools.
        let status = unsafe { sys::cuMemAllocFromPoolAsync(&mut ptr, room, pool.0, self.0) };
        Trouble::of("cuMemAllocFromPoolAsync", status).map_err(|t| t.of_size(bytes))?;
        Ok(Allocation { span: Span { ptr, bytes }, room }.of(bytes))
    }

    /// Frees memory after all queued work: the caller promises that no other work uses it.
    pub fn free(self, memory: Allocation) -> Result<(), Trouble> {
        if memory.room == 0 {
            return Ok(());
        }
        // SAFETY: as above; the driver allocated it, and its only owner frees it.
        Trouble::of("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(memory.span.ptr, self.0) })
    }

    /// A stream of the current context.
    pub fn new() -> Result<Raw, Trouble> {
        Raw::of(0)
    }

    /// A stream of somebody else's, by its handle, and its context where that can be asked.
    pub fn of_others(stream: usize) -> Result<(Raw, Option<ContextHandle>), Trouble> {
        let stream = stream as sys::CUstream;
        if stream.is_null() {
            // The legacy default stream of whatever context is current.
            return Ok((Raw(stream), None));
        }
        let mut context = null_mut();
        // SAFETY: the owner of the stream promised that it is one; the place can be written.
        let status = unsafe { sys::cuStreamGetCtx(stream, &mut context) };
        Trouble::of("cuStreamGetCtx", status)?;
        Ok((Raw(stream), Some(ContextHandle(context))))
    }

    /// A stream whose work precedes work of other streams that has not begun.
    pub fn urgent() -> Result<Raw, Trouble> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the pointers can be written, here and below.
        let status = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        Trouble::of("cuCtxGetStreamPriorityRange", status)?;
        Raw::of(greatest)
    }

    fn of(priority: i32) -> Result<Raw, Trouble> {
        let mut stream = null_mut();
        // SAFETY: as above.
        let status =
            unsafe { sys::cuStreamCreateWithPriority(&mut stream, STREAM_FLAGS, priority) };
        Trouble::of("cuStreamCreateWithPriority", status)?;
        Ok(Raw(stream))
    }

    /// Destroys it.
    ///
    /// # Safety
    /// It is not used afterwards.
    pub unsafe fn destroy(self) {
        // SAFETY: the caller's promise.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.0) };
    }

    pub fn zero(self, to: Span) -> Result<(), Trouble> {
        self.fill(to, 0)
    }

    /// Sets every byte.
    pub fn fill(self, to: Span, byte: u8) -> Result<(), Trouble> {
        // SAFETY: as above; the span is device memory.
        let status = unsafe { sys::cuMemsetD8Async(to.ptr, byte, to.bytes, self.0) };
        Trouble::of("cuMemsetD8Async", status)
    }

    /// Copies from page-locked memory.
    ///
    /// # Safety
    /// `from` has as many bytes as the span, until the stream has passed the copy.
    pub unsafe fn upload(self, to: Span, from: *const u8) -> Result<(), Trouble> {
        // SAFETY: as above, and the caller's promise.
        let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to.ptr, from.cast(), to.bytes, self.0) };
        Trouble::of("cuMemcpyHtoDAsync", status)
    }

    /// Copies to page-locked memory.
    ///
    /// # Safety
    /// `to` has as many bytes as the span, and their values are not used until the stream has
    /// passed the copy.
    pub unsafe fn download(self, to: *mut u8, from: Span) -> Result<(), Trouble> {
        // SAFETY: as above, and the caller's promise.
        let status = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.ptr, from.bytes, self.0) };
        Trouble::of("cuMemcpyDtoHAsync", status)
    }

    /// Fills `to` from memory of the same device.
    pub fn copy(self, to: Span, from: Span) -> Result<(), Trouble> {
        let from = from.part(0, to.bytes);
        // SAFETY: as above; both are device memory of this size.
        let status = unsafe { sys::cuMemcpyDtoDAsync_v2(to.ptr, from.ptr, to.bytes, self.0) };
        Trouble::of("cuMemcpyDtoDAsync", status)
    }

    /// Fills `to` from another device's memory.
    pub fn bring(
        self,
        (to, here): (Span, ContextHandle),
        (from, there): (Span, ContextHandle),
    ) -> Result<(), Trouble> {
        if to.bytes == 0 {
            return Ok(());
        }
        let from = from.part(0, to.bytes);
        // SAFETY: as above; both are device memory of this size.
        let status =
            unsafe { sys::cuMemcpyPeerAsync(to.ptr, here.0, from.ptr, there.0, to.bytes, self.0) };
        Trouble::of("cuMemcpyPeerAsync", status)
    }

    /// Launches a kernel, whose arguments are at these words.
    ///
    /// # Safety
    /// The function's module is loaded. The arguments match the parameters in number and size. With
    /// them the kernel accesses only device memory that is valid for it in this stream's
    /// order.
    pub unsafe fn launch(
        self,
        function: Function,
        [grid, block]: [[u32; 3]; 2],
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), Trouble> {
        let ([x, y, z], [i, j, k]) = (grid, block);
        let (of, extra) = (arguments.as_mut_ptr(), null_mut());
        // SAFETY: the caller's promise; the call copies the arguments.
        let status =
            unsafe { sys::cuLaunchKernel(function.0, x, y, z, i, j, k, shared, self.0, of, extra) };
        Trouble::of("cuLaunchKernel", status)
    }
}

/// Allocates page-locked memory, without flags.
pub(crate) fn lock_pages(bytes: usize) -> Result<*mut u8, Trouble> {
    let mut ptr = null_mut();
    // SAFETY: `ptr` can be written.
    let status = unsafe { sys::cuMemHostAlloc(&mut ptr, bytes, 0) };
    Trouble::of("cuMemHostAlloc", status).map_err(|t| t.of_size(bytes))?;
    Ok(ptr.cast())
}

/// Frees page-locked memory.
///
/// # Safety
/// [`lock_pages`] allocated it, and neither the host nor a copy uses it afterwards.
pub(crate) unsafe fn unlock_pages(ptr: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { sys::cuMemFreeHost(ptr.cast()) };
}

/// A loaded kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Function(sys::CUfunction);

// SAFETY: it is a handle; the driver's calls on functions may be made from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// The handle, for graphs.
    pub(crate) fn handle(self) -> sys::CUfunction {
        self.0
    }
}

/// A loaded image; its owner unloads it.
pub(crate) struct Module(sys::CUmodule);

// SAFETY: it is a handle; the driver's calls on modules may be made from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads the compiler's output: a binary, which contains its length, or PTX text.
    pub fn load(image: &[u8]) -> Result<Module, Trouble> {
        let mut raw = null_mut();
        // The driver needs a zero byte at the end of text.
        let mut text;
        let image = if image.starts_with(b"\x7fELF") || image.last() == Some(&0) {
            image
        } else {
            text = image.to_vec();
            text.push(0);
            &text[..]
        };
        // SAFETY: the image is complete: it comes from the compiler, or from the disk with a
        // checksum. The pointer can be written.
        let status = unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) };
        Trouble::of("cuModuleLoadData", status)?;
        Ok(Module(raw))
    }

    pub fn function(&self, entry: &str) -> Result<Function, Trouble> {
        let name = CString::new(entry).unwrap_or_default();
        let mut raw = null_mut();
        // SAFETY: the module is loaded, and the name ends with a zero byte.
        let status = unsafe { sys::cuModuleGetFunction(&mut raw, self.0, name.as_ptr()) };
        Trouble::of("cuModuleGetFunction", status)?;
        Ok(Function(raw))
    }

    /// Unloads the module; its functions must not be launched again ([`Raw::launch`]).
    pub fn unload(self, _: &Idle<'_>) {
        // SAFETY: the module is loaded, and no launch of it is in progress.
        let _ = unsafe { sys::cuModuleUnload(self.0) };
    }
}

/// Proof that no work of a device is in progress.
pub(crate) struct Idle<'a>(PhantomData<&'a ()>);

impl Idle<'_> {
    /// # Safety
    /// No launch and no copy is in progress on any of the device's streams, and none is queued
    /// while this exists.
    pub unsafe fn new() -> Self {
        Idle(PhantomData)
    }
}

/// An open context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextHandle(pub(crate) sys::CUcontext);

// SAFETY: it is a handle; the driver's calls on contexts may be made from any thread.
unsafe impl Send for ContextHandle {}
// SAFETY: as above.
unsafe impl Sync for ContextHandle {}

impl ContextHandle {
    /// The handle, for graphs.
    pub(crate) fn handle(self) -> sys::CUcontext {
        self.0
    }

    /// Makes it the current context of this thread.
    pub fn make_current(self) {
        // SAFETY: only `close` releases contexts.
        unsafe { sys::cuCtxSetCurrent(self.0) };
    }

    /// Free and total bytes of its GPU; this thread's current context is restored.
    pub fn free_memory(self) -> Option<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        let mut before = null_mut();
        // SAFETY: as above, and the pointers can be written.
        let status = unsafe {
            sys::cuCtxGetCurrent(&mut before);
            sys::cuCtxSetCurrent(self.0);
            let status = sys::cuMemGetInfo_v2(&mut free, &mut total);
            sys::cuCtxSetCurrent(before);
            status
        };
        (status == sys::CUresult::CUDA_SUCCESS).then_some((free, total))
    }
}
