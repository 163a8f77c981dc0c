//! NVIDIA's driver, as this crate calls it: what is there, a device's context, streams, events,
//! memory and modules. Graphs have `made`, page-locked memory `pinned`.
//!
//! A handle here is good until [`Context::close`], whose caller says that nobody uses one any more.
//! What a call needs beside its handle is in its types ([`Span`]), or the call is unsafe. Questions
//! about GPUs need no context, and may be asked on any thread: a library that is missing would be a
//! panic inside cudarc, so each is looked for before the first call into it.

#![allow(unsafe_code)]

use super::{Gpu, Trouble, compile, describe, driver, libraries};
use crate::sync::{Mutex, lock};
use cudarc::driver::sys;
use std::ffi::{CString, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::OnceLock;
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
        (status == sys::CUresult::CUDA_SUCCESS)
            .then(|| Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
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

/// That what was waited for was reached, or a fault.
fn has_ended(answer: sys::CUresult) -> Result<(), sys::CUresult> {
    if answer == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(answer) }
}

/// Bytes of device memory, inside what the driver gave.
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
        assert!(from <= self.bytes as u64 && bytes <= self.bytes - from as usize, "outside of its memory");
        Span { ptr: self.ptr + from, bytes }
    }
}

/// Device memory in stream order, for who gives it back: [`Raw::free`]. Dropping it keeps it for
/// ever.
#[derive(Debug)]
pub(crate) struct Allocation(Span);

impl Default for Allocation {
    fn default() -> Allocation {
        Allocation::NOWHERE
    }
}

impl Allocation {
    /// Where nothing lies: the address of what has no elements, which no kernel reads or writes. A
    /// step that launches nothing leaves nothing on its lane to wait for, so an allocation of its
    /// own would be in no order with its readers.
    pub const NOWHERE: Allocation = Allocation(Span { ptr: 0, bytes: 0 });

    pub fn span(&self) -> Span {
        self.0
    }

    /// Gives it back where nothing runs; the driver waits for what does.
    pub fn free_now(self) {
        if self.0.bytes > 0 {
            // SAFETY: the driver gave it, and its one owner gives it back.
            let _ = unsafe { sys::cuMemFree_v2(self.0.ptr) };
        }
    }

    /// What its owner leaves behind is nowhere.
    pub fn take(&mut self) -> Allocation {
        std::mem::replace(self, Allocation::NOWHERE)
    }
}

/// A stream's handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Raw(sys::CUstream);

// SAFETY: a handle; the driver's calls on streams may be made from any thread.
unsafe impl Send for Raw {}

impl Raw {
    /// For libraries.
    pub fn handle(self) -> sys::CUstream {
        self.0
    }

    pub fn record(self, event: Event) -> Result<(), Trouble> {
        // SAFETY: streams and events are destroyed by `close` alone, here and below.
        Trouble::of("cuEventRecord", unsafe { sys::cuEventRecord(event.0, self.0) })
    }

    /// What is queued here from now on comes after the event.
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

    pub fn allocate(self, bytes: usize) -> Result<Allocation, Trouble> {
        if bytes == 0 {
            return Ok(Allocation::NOWHERE);
        }
        let mut ptr = 0;
        // SAFETY: as above, and `ptr` can be written.
        let status = unsafe { sys::cuMemAllocAsync(&mut ptr, bytes, self.0) };
        Trouble::of("cuMemAllocAsync", status).map_err(|t| t.of_size(bytes))?;
        Ok(Allocation(Span { ptr, bytes }))
    }

    /// Gives memory back, behind what is queued here: all that uses it, says the caller.
    pub fn free(self, memory: Allocation) -> Result<(), Trouble> {
        if memory.0.bytes == 0 {
            return Ok(());
        }
        // SAFETY: as above; the driver gave it, and its one owner gives it back.
        Trouble::of("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(memory.0.ptr, self.0) })
    }

    pub fn zero(self, to: Span) -> Result<(), Trouble> {
        // SAFETY: as above; it is device memory.
        let status = unsafe { sys::cuMemsetD8Async(to.ptr, 0, to.bytes, self.0) };
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
    /// relies on what they are.
    pub unsafe fn download(self, to: *mut u8, from: Span) -> Result<(), Trouble> {
        // SAFETY: as above, and the caller's promise.
        let status = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.ptr, from.bytes, self.0) };
        Trouble::of("cuMemcpyDtoHAsync", status)
    }

    /// Copies as many bytes as `to` has from another device's memory.
    pub fn bring(self, (to, here): (Span, Opened), (from, there): (Span, Opened)) -> Result<(), Trouble> {
        if to.bytes == 0 {
            return Ok(());
        }
        let from = from.part(0, to.bytes);
        // SAFETY: as above; both are device memory of that size.
        let status = unsafe { sys::cuMemcpyPeerAsync(to.ptr, here.0, from.ptr, there.0, to.bytes, self.0) };
        Trouble::of("cuMemcpyPeerAsync", status)
    }

    /// Queues a kernel, whose arguments begin at these words.
    ///
    /// # Safety
    /// The function's module is loaded. The arguments are what its parameters are, in number and
    /// size, and with them it reads and writes only device memory that it may in this stream's
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
        let status = unsafe { sys::cuLaunchKernel(function.0, x, y, z, i, j, k, shared, self.0, of, extra) };
        Trouble::of("cuLaunchKernel", status)
    }
}

/// Page-locked memory. No flags: plainly page-locked.
pub(super) fn lock_pages(bytes: usize) -> Result<*mut u8, Trouble> {
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
pub(super) unsafe fn unlock_pages(ptr: *mut u8) {
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
    pub(super) fn handle(self) -> sys::CUfunction {
        self.0
    }
}

/// A loaded image, for who unloads it.
pub(super) struct Module(sys::CUmodule);

// SAFETY: a handle; the driver's calls on modules may be made from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads what the compiler made: a binary, which says its own length, or text.
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
pub(crate) struct Opened(sys::CUcontext);

// SAFETY: a handle; the driver's calls on contexts may be made from any thread.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Opened {
    /// For graphs.
    pub(super) fn handle(self) -> sys::CUcontext {
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

/// The open context of a device.
#[derive(Debug)]
pub(crate) struct Context {
    pub gpu: Gpu,
    device: sys::CUdevice,
    pool: sys::CUmemoryPool,
    pub streams: Vec<Raw>,
}

impl Context {
    /// Retains the GPU's primary context, makes it current on this thread, and makes streams.
    pub fn open(ordinal: usize, streams: usize) -> Result<Context, String> {
        let device = device(ordinal)?;
        let said = |call: &str, status: sys::CUresult| match status {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            other => Err(format!("{call} says {}", describe(other))),
        };
        let (mut context, mut pool) = (null_mut(), null_mut());
        // SAFETY: the places can be written, here and below; the context is current from the second
        // call on.
        unsafe {
            said("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            said("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
        }
        use sys::CUdevice_attribute::*;
        let gpu = Gpu {
            ordinal: ordinal as i32,
            context: Opened(context),
            capability: (
                attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            multiprocessors: attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        };
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
            let mut stream = null_mut();
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

    /// The end.
    ///
    /// # Safety
    /// Nothing runs any more, and nobody uses anything that was made in this context: its memory,
    /// its streams, events of these lists. What the lists hold is nobody's.
    pub unsafe fn close(self, events: &[&Events]) {
        self.trim();
        // SAFETY: the caller's promise; all was made here, and the context was retained once.
        unsafe {
            for event in events.iter().flat_map(|list| std::mem::take(&mut *lock(&list.free))) {
                sys::cuEventDestroy_v2(event.0);
            }
            for stream in &self.streams {
                sys::cuStreamDestroy_v2(stream.0);
            }
            sys::cuCtxSetCurrent(null_mut());
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// Whether cuBLAS is there, looked for once.
pub(super) fn has_cublas() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opens and closes a library by the names that cudarc will use; its initialisers are
    // NVIDIA's own.
    *PRESENT.get_or_init(|| libraries::find("cublas", || unsafe { cudarc::cublas::sys::is_culib_present() }))
}

/// Which of the libraries that a device needs is missing, and where it was looked for.
fn libraries() -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let look = || {
        driver::is_new_enough()?;
        compile::compiler()?;
        if !has_cublas() {
            return Err(libraries::missing("cublas"));
        }
        Ok(())
    };
    FOUND.get_or_init(look).clone()
}

/// The driver, ready for calls.
fn start() -> Result<(), String> {
    libraries()?;
    // SAFETY: the library is there; the flags must be 0.
    match unsafe { sys::cuInit(0) } {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Err("NVIDIA's driver is there, but it has no GPU".into()),
        other => Err(format!("NVIDIA's driver does not start: cuInit says {}", describe(other))),
    }
}

/// How many GPUs there are, or why there is none.
pub(crate) fn count() -> Result<usize, String> {
    start()?;
    let mut n: c_int = 0;
    // SAFETY: `n` can be written.
    match unsafe { sys::cuDeviceGetCount(&mut n) } {
        sys::CUresult::CUDA_SUCCESS => Ok(n.max(0) as usize),
        other => Err(format!("cuDeviceGetCount says {}", describe(other))),
    }
}

/// The driver's handle on a GPU that is there, or why it is not.
pub(crate) fn device(ordinal: usize) -> Result<sys::CUdevice, String> {
    let n = count()?;
    if ordinal >= n {
        return Err(format!("there is no GPU {ordinal}: NVIDIA's driver has {n}, numbered from 0"));
    }
    let mut device: sys::CUdevice = 0;
    // SAFETY: `device` can be written.
    match unsafe { sys::cuDeviceGet(&mut device, ordinal as c_int) } {
        sys::CUresult::CUDA_SUCCESS => Ok(device),
        other => Err(format!("cuDeviceGet says {}", describe(other))),
    }
}

/// What the GPU is called.
pub(crate) fn name(ordinal: usize) -> Option<String> {
    let device = device(ordinal).ok()?;
    let mut text = [0u8; 256];
    // SAFETY: the name is written with its end mark into at most so many bytes.
    let status = unsafe { sys::cuDeviceGetName(text.as_mut_ptr().cast(), text.len() as c_int, device) };
    let end = text.iter().position(|&b| b == 0)?;
    (status == sys::CUresult::CUDA_SUCCESS).then(|| String::from_utf8_lossy(&text[..end]).into_owned())
}

/// Bytes of memory that the GPU has.
pub(crate) fn memory(ordinal: usize) -> Option<usize> {
    let device = device(ordinal).ok()?;
    let mut bytes = 0;
    // SAFETY: `bytes` can be written.
    let status = unsafe { sys::cuDeviceTotalMem_v2(&mut bytes, device) };
    (status == sys::CUresult::CUDA_SUCCESS).then_some(bytes)
}

/// A number that the driver has about a GPU; 0 where it has none.
pub(crate) fn attribute(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> u32 {
    let mut value: c_int = 0;
    // SAFETY: `value` can be written.
    unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
    value.max(0) as u32
}

/// Lets the second GPU read what the first one's pool holds; false where it cannot.
pub(crate) fn open_to(from: usize, to: usize) -> bool {
    let (Ok(owner), Ok(reader)) = (device(from), device(to)) else { return false };
    let mut can: c_int = 0;
    let mut pool = null_mut();
    let access = sys::CUmemAccessDesc {
        location: sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: reader },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    use sys::CUresult::CUDA_SUCCESS;
    // SAFETY: the places can be written; one description, which the last call reads.
    unsafe {
        sys::cuDeviceCanAccessPeer(&mut can, reader, owner) == CUDA_SUCCESS
            && can != 0
            && sys::cuDeviceGetDefaultMemPool(&mut pool, owner) == CUDA_SUCCESS
            && sys::cuMemPoolSetAccess(pool, &access, 1) == CUDA_SUCCESS
    }
}
