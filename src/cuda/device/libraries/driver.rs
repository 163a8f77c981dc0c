//! NVIDIA's driver as a library: whether it is installed, its version of CUDA, and the calls that
//! it has. `nvidia` and `graph/executable` make the calls.

#![allow(unsafe_code)]

use super::search;
use cudarc::driver::sys;
use std::ffi::CString;
use std::sync::OnceLock;

/// Of CUDA: 12.8 is (12, 8).
pub(crate) type Version = (i32, i32);

/// The driver's calls: all of them have been there since CUDA 12.0, and a call of a symbol that is
/// not there is a panic inside cudarc. (`elapsed` asks for a later one.)
const CALLS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetStreamPriorityRange",
    "cuCtxSetCurrent",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGraphAddChildGraphNode",
    "cuGraphAddKernelNode_v2",
    "cuGraphCreate",
    "cuGraphDestroy",
    "cuGraphExecChildGraphNodeSetParams",
    "cuGraphExecDestroy",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAccess",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamGetCtx",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// True where the driver has a call.
fn has(call: &str) -> bool {
    let name = CString::new(call).unwrap_or_default();
    // SAFETY: the library is there, says the caller; the symbol is not called.
    unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes_with_nul()) }.is_ok()
}

/// Which version of CUDA the driver knows; none without a driver.
pub(crate) fn version() -> Option<Version> {
    is_there().then_some(())?;
    let mut version = 0;
    // SAFETY: the library is there, and the place can be written; it needs no `cuInit`.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    (status == sys::CUresult::CUDA_SUCCESS).then_some((version / 1000, version % 1000 / 10))
}

fn is_there() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opens the library and closes it again; behind this name is NVIDIA's driver,
    // or a stand-in with the same entry points.
    *PRESENT.get_or_init(|| {
        search::find("cuda", || unsafe { sys::is_culib_present() }) && has("cuDriverGetVersion")
    })
}

/// That the driver is there and has all that is called of it.
pub(crate) fn is_new_enough() -> Result<(), String> {
    if !is_there() {
        return Err(search::missing("cuda"));
    }
    let Some(call) = CALLS.iter().find(|call| !has(call)) else { return Ok(()) };
    let (major, minor) = version().unwrap_or_default();
    Err(format!(
        "NVIDIA's driver is too old: it knows CUDA {major}.{minor}, \
         and 12.0 is the first that will do (it has no \
         {call})"
    ))
}

pub(crate) type Elapsed =
    unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// The call for the time between two events: from CUDA 12.8 on the first, before that the second.
pub(crate) fn elapsed() -> Option<Elapsed> {
    static FOUND: OnceLock<Option<Elapsed>> = OnceLock::new();
    let names: [&[u8]; 2] = [b"cuEventElapsedTime_v2\0", b"cuEventElapsedTime\0"];
    // SAFETY: there are events, so the library is there; both names have this type.
    let find = |name: &&[u8]| unsafe { sys::culib().get::<Elapsed>(*name) }.ok().map(|call| *call);
    *FOUND.get_or_init(|| names.iter().find_map(find))
}
