//! A profiler, which `NVTX_INJECTION64_PATH` names. It writes down ranges, and the work that is
//! queued while they are open.
//!
//! Its log has a line for each: `thread push text`, `thread pop`, `thread work label`, each thread
//! by its number. Work is noted from the moment on in which a client has asked for the profiler.

use crate::ffi::copy_text;
use crate::machine::sim::lock;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// A client has asked.
static ATTACHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static THREAD: u64 = {
        static THREADS: AtomicU64 = AtomicU64::new(0);
        THREADS.fetch_add(1, SeqCst)
    };
}

fn line(text: &str) -> String {
    format!("{} {text}", THREAD.with(|n| *n))
}

/// `NvtxExportTableCallbacks`
#[repr(C)]
struct Callbacks {
    size: usize,
    table: unsafe extern "C" fn(c_int, *mut *const *mut *const c_void, *mut u32) -> c_int,
}

/// The entry point that the client looks for.
///
/// # Safety
/// `export` is NVTX's way to its tables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(
    export: extern "C" fn(u32) -> *const c_void,
) -> c_int {
    let callbacks: *const Callbacks = export(1).cast();
    if callbacks.is_null() || !export(77).is_null() {
        return 0;
    }
    // SAFETY: table 1 is of this type; it gives null or an array of so many places for functions,
    // which can be written.
    unsafe {
        if (*callbacks).size < size_of::<Callbacks>() {
            return 0;
        }
        // As a profiler does, all modules are asked for; a module that does not exist has no table.
        for module in 0..8 {
            let (mut table, mut count) = (std::ptr::null(), 0);
            let found = ((*callbacks).table)(module, &raw mut table, &raw mut count);
            if (found != 0) != (1..7).contains(&module) {
                return 0;
            }
            if module == 1 {
                if count != 16 || !(*table).is_null() || !(*table.add(16)).is_null() {
                    return 0;
                }
                *(*table.add(9)) = push as *const c_void;
                *(*table.add(11)) = pop as *const c_void;
            }
        }
    }
    ATTACHED.store(true, SeqCst);
    1
}

unsafe extern "C" fn push(text: *const c_char) -> c_int {
    // SAFETY: the interface asks for a text that ends in a zero.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    lock().ranges.push(line(&format!("push {text}")));
    0
}

extern "C" fn pop() -> c_int {
    lock().ranges.push(line("pop"));
    0
}

/// Work is queued by this thread.
pub fn work(ranges: &mut Vec<String>, label: &str) {
    if ATTACHED.load(SeqCst) {
        ranges.push(line(&format!("work {label}")));
    }
}

/// The log since the last reset, cut to `room` bytes. Returns the length of the whole text.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_ranges(to: *mut c_char, room: usize) -> usize {
    copy_text(&lock().ranges.join("\n"), to, room)
}
