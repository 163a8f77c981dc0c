//! What the tests share: compiling CUDA C, contexts, errors, blocking calls on other threads.

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, DriverError, LaunchConfig};
use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};
use std::sync::Arc;

/// A context whose ordering is left to the test.
pub fn context(ordinal: usize) -> Arc<CudaContext> {
    let context = CudaContext::new(ordinal).expect("a simulated device");
    // SAFETY: the tests order their work themselves; that is what they are about.
    unsafe { context.disable_event_tracking() };
    context
}

/// Compiles for sm_90.
pub fn compile(source: &str) -> Result<Ptx, CompileError> {
    compile_ptx_with_opts(source, CompileOptions { arch: Some("sm_90"), ..Default::default() })
}

/// A module of a source that compiles.
pub fn module(context: &Arc<CudaContext>, source: &str) -> Arc<CudaModule> {
    let image = compile(source).unwrap_or_else(|error| panic!("{error:?}"));
    context.load_module(image).expect("a module")
}

/// The one kernel `k` of a source.
pub fn kernel(context: &Arc<CudaContext>, source: &str) -> CudaFunction {
    module(context, source).load_function("k").expect("a kernel named k")
}

/// The shape of a launch.
pub fn grid(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// The number of an error.
pub fn code<T: std::fmt::Debug>(result: Result<T, DriverError>) -> u32 {
    match result {
        Ok(value) => panic!("no error, but {value:?}"),
        Err(error) => error.0 as u32,
    }
}

/// Page-locked memory, as an address; freed by `unpin`.
pub fn pin(bytes: usize) -> usize {
    // SAFETY: an allocation; the context is current, as the tests make one first.
    unsafe { cudarc::driver::result::malloc_host(bytes, 0) }.unwrap() as usize
}

/// Frees what `pin` gave.
pub fn unpin(address: usize) {
    // SAFETY: an address of `pin`'s, which the caller uses no more.
    unsafe { cudarc::driver::result::free_host(address as *mut _) }.unwrap();
}
