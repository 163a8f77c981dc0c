//! The calls of NVIDIA's driver: streams, events, memory and modules. `driver_context` has contexts
//! and the list of GPUs, `graph/executable` graphs, `memory/pinned` page-locked memory.
//!
//! A handle here is good until `DriverContext::close`, whose caller promises that nobody uses one
//! any more. The types carry everything else that a call needs ([`Span`]), or the call is unsafe.

#![allow(unsafe_code)]

use super::driver;

use crate::cuda::device::Trouble;
use crate::sync::{Mutex, lock};
use cudarc::driver::sys;
use std::ffi::{CString, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
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
        // SAFETY: events are destroyed by `close` alone, here and below.
        has_come(unsafe { sys::cuEventQuery(self.0) })
    }

    /// How long after another the event was reached, where both are timed and have been.
    pub fn since(self, earlier: Event) -> Option<Duration> {
        let mut milliseconds = 0.0;
        // SAFETY: as above, and the place can be written.
        let status = unsafe { driver::elapsed()?(&mut milliseconds, earlier.0, self.0) };
        let took = Duration::try_from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3);
        took.ok().filter(|_| status == sys::CUresult::CUDA_SUCCESS)
    }

    /// Waits, asleep, until the event is reached. For threads that have nothing else to do.
    pub fn sleep(self) -> Result<(), sys::CUresult> {
        // SAFETY: as above.
        has_ended(unsafe { sys::cuEventSynchronize(self.0) })
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
        let mut event = null_mut();
        // SAFETY: `event` can be written.
        Trouble::of("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, self.flags) })?;
        Ok(Event(event))
    }

    /// Destroys those that are not in use.
    ///
    /// # Safety
    /// Nobody uses one of them any more.
    pub unsafe fn destroy(&self) {
        for event in std::mem::take(&mut *lock(&self.free)) {
            // SAFETY: the caller's promise.
            unsafe { sys::cuEventDestroy_v2(event.0) };
        }
    }

    /// An event that nobody waits for any more.
    pub fn give_back(&self, event: Event) {
        lock(&self.free).push(event);
    }
}

/// Whether something was reached, or a fault.
fn has_come(answer: sys::CUresult) -> Result<bool, sys::CUresult> {
    match answer {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        other => has_ended(other).map(|()| true),
    }
}

/// The end of a wait, or a fault.
fn has_ended(answer: sys::CUresult) -> Result<(), sys::CUresult> {
    if answer == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(answer) }
}

/// Bytes of device memory, inside one of the driver's allocations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    ptr: u64,
    bytes: usize,
}

impl Span {
    /// # Safety
    /// So many bytes from there on lie in one piece of memory that the driver gave.
    pub unsafe fn new(ptr: u64, bytes: usize) -> Span {
        Span { ptr, bytes }
    }

    pub fn ptr(self) -> u64 {
        self.ptr
    }

    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Some of it.
    pub fn part(self, from: u64, bytes: usize) -> Span {
        assert!(
            from <= self.bytes as u64 && bytes <= self.bytes - from as usize,
            "outside of its memory"
        );
        Span { ptr: self.ptr + from, bytes }
    }
}

/// Device memory in stream order; its owner gives it back by [`Raw::free`]. Dropping it keeps it
/// for ever.
#[derive(Debug)]
pub(crate) struct Allocation {
    span: Span,
    /// Bytes that the driver gave: the span's, or more.
    room: usize,
}

impl Default for Allocation {
    fn default() -> Allocation {
        Allocation::NOWHERE
    }
}

impl Allocation {
    /// No memory: the address of a value without elements, which no kernel reads or writes. A
    /// step that launches nothing leaves nothing on its lane to wait for, so an allocation of its
    /// own would be in no order with its readers.
    pub const NOWHERE: Allocation = Allocation { span: Span { ptr: 0, bytes: 0 }, room: 0 };

    pub fn span(&self) -> Span {
        self.span
    }

    pub fn room(&self) -> usize {
        self.room
    }

    /// So many bytes of its room.
    pub fn of(self, bytes: usize) -> Allocation {
        assert!(bytes <= self.room, "outside of its memory");
        Allocation { span: Span { bytes, ..self.span }, ..self }
    }

    /// Gives it back where nothing runs; the driver waits for running work.
    pub fn free_now(self) {
        if self.room > 0 {
            // SAFETY: the driver gave it, and its one owner gives it back.
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

// SAFETY: a handle; the driver's calls on streams may be made from any thread.
unsafe impl Send for Raw {}

/// A pool of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pool(sys::CUmemoryPool);

// SAFETY: a handle; the driver's calls on pools may be made from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool of a GPU's memory that keeps freed blocks, and in which no stream waits for another
    /// unless the caller asks for it. The process's own pool is everybody's.
    pub fn new(device: sys::CUdevice) -> Result<Pool, Trouble> {
        // SAFETY: all of it may be zero, which means nothing special.
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = device;
        let mut pool = null_mut();
        // SAFETY: the place can be written.
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

    /// Gives the memory that it keeps back to the GPU, as far as its frees have run. It may take
    /// long.
    pub fn trim(self) {
        // SAFETY: pools are destroyed by `close` alone.
        unsafe { sys::cuMemPoolTrimTo(self.0, 0) };
    }

    /// Lets a GPU reach its memory; false where it cannot.
    pub fn open_to(self, reader: sys::CUdevice) -> bool {
        let location = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: reader,
        };
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location, flags };
        // SAFETY: as above; one description, which the call reads.
        unsafe { sys::cuMemPoolSetAccess(self.0, &access, 1) == sys::CUresult::CUDA_SUCCESS }
    }

    /// The end of it.
    ///
    /// # Safety
    /// All of its memory is freed, and nobody uses it any more.
    pub unsafe fn destroy(self) {
        // SAFETY: the caller's promise.
        let _ = unsafe { sys::cuMemPoolDestroy(self.0) };
    }
}

impl Raw {
    /// For libraries.
    pub fn handle(self) -> sys::CUstream {
        self.0
    }

    pub fn record(self, event: Event) -> Result<(), Trouble> {
        // SAFETY: streams and events are destroyed by `close` alone, here and below.
        Trouble::of("cuEventRecord", unsafe { sys::cuEventRecord(event.0, self.0) })
    }

    /// Work that is queued here from now on comes after the event.
    pub fn wait(self, event: Event) -> Result<(), Trouble> {
        // SAFETY: as above; the call takes the event's state of now.
        Trouble::of("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) })
    }

    /// Waits for all that is queued: for the mode that runs each op to its end.
    pub fn sleep(self) -> Result<(), sys::CUresult> {
        // SAFETY: as above.
        has_ended(unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// Whether all that is queued is through.
    pub fn is_through(self) -> Result<bool, sys::CUresult> {
        // SAFETY: as above.
        has_come(unsafe { sys::cuStreamQuery(self.0) })
    }

    /// Memory of so many bytes, with room for more.
    pub fn allocate(self, pool: Pool, bytes: usize, room: usize) -> Result<Allocation, Trouble> {
        if bytes == 0 {
            return Ok(Allocation::NOWHERE);
        }
        let mut ptr = 0;
        // SAFETY: as above, `ptr` can be written, and pools are destroyed by `close` alone.
        let status = unsafe { sys::cuMemAllocFromPoolAsync(&mut ptr, room, pool.0, self.0) };
        Trouble::of("cuMemAllocFromPoolAsync", status).map_err(|t| t.of_size(bytes))?;
        Ok(Allocation { span: Span { ptr, bytes }, room }.of(bytes))
    }

    /// Gives memory back, behind all queued work: the caller promises that no other work uses it.
    pub fn free(self, memory: Allocation) -> Result<(), Trouble> {
        if memory.room == 0 {
            return Ok(());
        }
        // SAFETY: as above; the driver gave it, and its one owner gives it back.
        Trouble::of("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(memory.span.ptr, self.0) })
    }

    /// A stream of the current context.
    pub fn new() -> Result<Raw, Trouble> {
        Raw::of(0)
    }

    /// A stream whose work goes before work that has not begun in others.
    pub fn urgent() -> Result<Raw, Trouble> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the places can be written, here and below.
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

    /// The end of it.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub unsafe fn destroy(self) {
        // SAFETY: the caller's promise.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.0) };
    }

    pub fn zero(self, to: Span) -> Result<(), Trouble> {
        self.fill(to, 0)
    }

    /// Sets each byte.
    pub fn fill(self, to: Span, byte: u8) -> Result<(), Trouble> {
        // SAFETY: as above; it is device memory.
        let status = unsafe { sys::cuMemsetD8Async(to.ptr, byte, to.bytes, self.0) };
        Trouble::of("cuMemsetD8Async", status)
    }

    /// Copies from page-locked memory.
    ///
    /// # Safety
    /// From there on it has as many bytes, until the stream has come past the copy.
    pub unsafe fn upload(self, to: Span, from: *const u8) -> Result<(), Trouble> {
        // SAFETY: as above, and the caller's promise.
        let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to.ptr, from.cast(), to.bytes, self.0) };
        Trouble::of("cuMemcpyHtoDAsync", status)
    }

    /// Copies to page-locked memory.
    ///
    /// # Safety
    /// From there on it has as many bytes, and until the stream has come past the copy nobody
    /// relies on their values.
    pub unsafe fn download(self, to: *mut u8, from: Span) -> Result<(), Trouble> {
        // SAFETY: as above, and the caller's promise.
        let status = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.ptr, from.bytes, self.0) };
        Trouble::of("cuMemcpyDtoHAsync", status)
    }

    /// Copies as many bytes as `to` has from another device's memory.
    pub fn bring(
        self,
        (to, here): (Span, ContextHandle),
        (from, there): (Span, ContextHandle),
    ) -> Result<(), Trouble> {
        if to.bytes == 0 {
            return Ok(());
        }
        let from = from.part(0, to.bytes);
        // SAFETY: as above; both are device memory of that size.
        let status =
            unsafe { sys::cuMemcpyPeerAsync(to.ptr, here.0, from.ptr, there.0, to.bytes, self.0) };
        Trouble::of("cuMemcpyPeerAsync", status)
    }

    /// Queues a kernel, whose arguments begin at these words.
    ///
    /// # Safety
    /// The function's module is loaded. The arguments match its parameters in number and size,
    /// and with them it reads and writes only device memory that it may in this stream's
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

/// Page-locked memory. No flags: plainly page-locked.
pub(crate) fn lock_pages(bytes: usize) -> Result<*mut u8, Trouble> {
    let mut ptr = null_mut();
    // SAFETY: `ptr` can be written.
    let status = unsafe { sys::cuMemHostAlloc(&mut ptr, bytes, 0) };
    Trouble::of("cuMemHostAlloc", status).map_err(|t| t.of_size(bytes))?;
    Ok(ptr.cast())
}

/// Gives page-locked memory back.
///
/// # Safety
/// [`lock_pages`] gave it, and neither the host nor a copy uses it any more.
pub(crate) unsafe fn unlock_pages(ptr: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { sys::cuMemFreeHost(ptr.cast()) };
}

/// A loaded kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Function(sys::CUfunction);

// SAFETY: a handle; the driver's calls on functions may be made from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// For graphs.
    pub(crate) fn handle(self) -> sys::CUfunction {
        self.0
    }
}

/// A loaded image; its owner unloads it.
pub(crate) struct Module(sys::CUmodule);

// SAFETY: a handle; the driver's calls on modules may be made from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads the compiler's output: a binary, which says its own length, or text.
    pub fn load(image: &[u8]) -> Result<Module, Trouble> {
        let mut raw = null_mut();
        // The driver looks for the end of a text.
        let mut text;
        let image = if image.starts_with(b"\x7fELF") || image.last() == Some(&0) {
            image
        } else {
            text = image.to_vec();
            text.push(0);
            &text[..]
        };
        // SAFETY: the image is whole: it comes from the compiler, or from the disk with a sum that
        // was checked. The place can be written.
        let status = unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) };
        Trouble::of("cuModuleLoadData", status)?;
        Ok(Module(raw))
    }

    pub fn function(&self, entry: &str) -> Result<Function, Trouble> {
        let name = CString::new(entry).unwrap_or_default();
        let mut raw = null_mut();
        // SAFETY: the module is loaded, the name ends with a zero.
        let status = unsafe { sys::cuModuleGetFunction(&mut raw, self.0, name.as_ptr()) };
        Trouble::of("cuModuleGetFunction", status)?;
        Ok(Function(raw))
    }

    /// Unloads it; its functions are not to be launched again ([`Raw::launch`]).
    pub fn unload(self, _: &Idle<'_>) {
        // SAFETY: it is loaded, and no launch of it is under way.
        let _ = unsafe { sys::cuModuleUnload(self.0) };
    }
}

/// Says that no work of a device is under way.
pub(crate) struct Idle<'a>(PhantomData<&'a ()>);

impl Idle<'_> {
    /// # Safety
    /// No launch and no copy is under way on any of the device's streams, and none is queued while
    /// this is there.
    pub unsafe fn new() -> Self {
        Idle(PhantomData)
    }
}

/// A context that is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextHandle(pub(crate) sys::CUcontext);

// SAFETY: a handle; the driver's calls on contexts may be made from any thread.
unsafe impl Send for ContextHandle {}
// SAFETY: as above.
unsafe impl Sync for ContextHandle {}

impl ContextHandle {
    /// For graphs.
    pub(crate) fn handle(self) -> sys::CUcontext {
        self.0
    }

    /// Makes it this thread's.
    pub fn make_current(self) {
        // SAFETY: contexts are let go by `close` alone.
        unsafe { sys::cuCtxSetCurrent(self.0) };
    }

    /// Free and total bytes of its GPU; this thread's context stays.
    pub fn free_memory(self) -> Option<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        let mut before = null_mut();
        // SAFETY: as above, and the places can be written.
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
