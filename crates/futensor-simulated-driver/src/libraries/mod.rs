//! The libraries beside the driver: cuBLAS, cuBLASLt, cuDNN, NCCL, NVRTC and a profiler for NVTX,
//! with the plain loops (`gemm`, `convolve`) that the first three share.

pub mod blas;
pub mod blaslt;
pub mod convolve;
pub mod dnn;
pub mod gemm;
pub mod nccl;
pub mod nvrtc;
pub mod nvtx;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, Once};
use std::time::Duration;

/// The process ends, and the libraries have destroyed what they keep.
static ENDED: AtomicBool = AtomicBool::new(false);

extern "C" fn end() {
    ENDED.store(true, SeqCst);
    // Whatever still calls has time to do so.
    std::thread::sleep(Duration::from_millis(20));
}

/// A library adds its handler: again where it loads another in a later call.
pub fn add_end() {
    // SAFETY: a function of this library's, which stays loaded and does not unwind.
    let _ = unsafe { libc::atexit(end) };
}

/// What a library keeps. The real ones destroy it as the process ends, in a handler that they add
/// at their first use; a call after that ends the process here, as it may end it there.
pub(crate) fn kept<T>(state: &'static Mutex<T>, end_of: &Once) -> MutexGuard<'static, T> {
    end_of.call_once(add_end);
    if ENDED.load(SeqCst) {
        eprintln!("a call of a library after what it keeps was destroyed");
        std::process::abort();
    }
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
