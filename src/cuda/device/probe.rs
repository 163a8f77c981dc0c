//! What is there: libraries, GPUs, their names and memory, asked for without a context and without
//! a panic.
//!
//! `Device::cuda` and its like call it on any thread. A library that is missing would be a panic
//! inside cudarc, so each is looked for before the first call into it; what is found once stays
//! loaded.

#![allow(unsafe_code)]

use super::describe;
use cudarc::driver::sys;
use std::ffi::c_int;
use std::sync::OnceLock;

/// Which of the libraries that a device needs is missing, and where it was looked for.
fn libraries() -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let missing = |name: &str, what: &str| {
        let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        Err(format!(
            "{name} ({what}) was not found: looked for it as {name}, and with the endings of CUDA 12 and 13, in the \
             loader's path (LD_LIBRARY_PATH is \"{path}\")"
        ))
    };
    // SAFETY (the three below): each opens a library and closes it again; what is behind these
    // names are NVIDIA's libraries, or stand-ins with the same entry points.
    let look = || {
        if !unsafe { sys::is_culib_present() } {
            return missing("libcuda.so", "NVIDIA's driver");
        }
        // SAFETY: as above.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            return missing("libnvrtc.so", "the compiler of kernels");
        }
        // SAFETY: as above.
        if !unsafe { cudarc::cublas::sys::is_culib_present() } {
            return missing("libcublas.so", "products of matrices");
        }
        Ok(())
    };
    FOUND.get_or_init(look).clone()
}

/// The driver, ready for calls.
fn driver() -> Result<(), String> {
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
    driver()?;
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
    let mut pool = std::ptr::null_mut();
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
