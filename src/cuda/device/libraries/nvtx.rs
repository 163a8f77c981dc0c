//! Ranges for NVIDIA's profilers: one around the launches of each step, named by the step's ops and
//! the caller's line.
//!
//! The device's thread opens a range around each step, where the options ask for it. NVTX needs no
//! library: a profiler names its own in `NVTX_INJECTION64_PATH` (Nsight Systems does, with
//! `--trace=nvtx`), and the program loads that library and hands it a table of places, into which
//! it writes its functions (the ABI of NVIDIA's NVTX 3, `nvtxDetail/nvtxTypes.h` and `nvtxInit.h`).
//! So nothing is linked, and without a profiler nothing is looked for. CUDA 13, which brings no
//! libnvToolsExt any more, makes no difference.

#![allow(unsafe_code)]
// Profilers are looked for on Unix alone.
#![cfg_attr(not(unix), allow(dead_code))]

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::Write;
use std::panic::Location;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// Modules of functions, counted from 1, and the most functions that one has.
const MODULES: usize = 6;
const FUNCTIONS: usize = 15;
/// How many functions each has: core, CUDA, OpenCL, CUDA run time, domains, synchronisation.
const COUNTS: [u32; MODULES] = [15, 8, 14, 6, 15, 6];
/// In the core module.
const RANGE_PUSH_A: usize = 9;
const RANGE_POP: usize = 11;

type Slot = AtomicPtr<c_void>;
/// A module's places for functions, from number 1 on, between two that are empty.
type Table = [AtomicPtr<Slot>; FUNCTIONS + 2];

static SLOTS: [[Slot; FUNCTIONS + 1]; MODULES] =
    [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS + 1] }; MODULES];
static TABLES: [Table; MODULES] =
    [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS + 2] }; MODULES];

/// `NvtxExportTableCallbacks`
#[repr(C)]
struct Callbacks {
    size: usize,
    table: extern "C" fn(c_int, *mut *const AtomicPtr<Slot>, *mut u32) -> c_int,
}

/// `NvtxExportTableVersionInfo`
#[repr(C)]
struct Version {
    size: usize,
    version: u32,
    reserved: u32,
    set: extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), table: function_table };
static VERSION: Version =
    Version { size: size_of::<Version>(), version: 3, reserved: 0, set: injection_version };

extern "C" fn injection_version(_: u32) {}

/// Gives the profiler a module's table of places.
extern "C" fn function_table(
    module: c_int,
    to: *mut *const AtomicPtr<Slot>,
    count: *mut u32,
) -> c_int {
    let Some(k) =
        usize::try_from(module).ok().and_then(|m| m.checked_sub(1)).filter(|&k| k < MODULES)
    else {
        return 0;
    };
    // SAFETY: the profiler hands null, or a place of this type that can be written, as the
    // interface says.
    unsafe {
        if !count.is_null() {
            // Places, the empty first one counted and the empty last one not.
            count.write(COUNTS[k] + 1);
        }
        if !to.is_null() {
            to.write(TABLES[k].as_ptr());
        }
    }
    1
}

extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION).cast(),
        _ => std::ptr::null(),
    }
}

/// A profiler's functions.
#[derive(Clone, Copy)]
struct Tool {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

/// The profiler that this process runs under, if any; looked for once.
fn tool() -> Option<Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    *TOOL.get_or_init(attach)
}

#[cfg(unix)]
fn attach() -> Option<Tool> {
    type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
    use std::os::unix::ffi::OsStrExt;
    const NAME: &std::ffi::CStr = c"InitializeInjectionNvtx2";
    // SAFETY: looks a symbol up among those that are loaded.
    let mut found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()) };
    if found.is_null() {
        let path = CString::new(std::env::var_os("NVTX_INJECTION64_PATH")?.as_bytes()).ok()?;
        // SAFETY: loads the library that the starter of this process wants to be loaded, and looks
        // a symbol up in it. It stays for the life of the process.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY);
            found = if library.is_null() { library } else { libc::dlsym(library, NAME.as_ptr()) };
        }
    }
    if found.is_null() {
        return None;
    }
    for (table, (slots, count)) in TABLES.iter().zip(SLOTS.iter().zip(COUNTS)) {
        for n in 1..=count as usize {
            table[n].store((&raw const slots[n]).cast_mut(), Release);
        }
    }
    // SAFETY: a function of this name has this type. It may write the places that `export_table`
    // leads to, which are atomics and live as long as the process.
    let ready = unsafe { std::mem::transmute::<*mut c_void, Initialize>(found)(export_table) };
    let (push, pop) = (SLOTS[0][RANGE_PUSH_A].load(Acquire), SLOTS[0][RANGE_POP].load(Acquire));
    if ready == 0 || push.is_null() || pop.is_null() {
        return None;
    }
    type Push = unsafe extern "C" fn(*const c_char) -> c_int;
    type Pop = unsafe extern "C" fn() -> c_int;
    // SAFETY: a profiler writes functions of these types to these two places.
    let (push, pop) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Push>(push),
            std::mem::transmute::<*mut c_void, Pop>(pop),
        )
    };
    Some(Tool { push, pop })
}

#[cfg(not(unix))]
fn attach() -> Option<Tool> {
    None
}

/// An open range of this thread; it ends when this is dropped.
pub(crate) struct Range {
    tool: Tool,
    /// A range belongs to the thread that opened it.
    _here: std::marker::PhantomData<*const ()>,
}

/// Opens a range, where a profiler is there, named "mul add (src/main.rs:12)": ops in their order,
/// and the last one's line.
pub(crate) fn range<'a>(
    ops: impl Iterator<Item = (&'a str, &'static Location<'static>)>,
) -> Option<Range> {
    let tool = tool()?;
    let (mut text, mut last) = (String::new(), None);
    for (name, at) in ops {
        if last.is_some() {
            text.push(' ');
        }
        text.push_str(name);
        last = Some(at);
    }
    if let Some(at) = last {
        write!(text, " ({}:{})", at.file(), at.line()).expect("writing to a string");
    }
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: the profiler's function, which copies a text that ends in a zero.
    unsafe { (tool.push)(text.as_ptr()) };
    Some(Range { tool, _here: std::marker::PhantomData })
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the profiler's function; this thread has opened a range, and the ranges that it
        // opened since have ended.
        unsafe { (self.tool.pop)() };
    }
}
