//! The GPUs of this machine, and the driver's context on one that is open.
//!
//! Questions about GPUs need no context, and any thread may ask them. cudarc panics where a library
//! is missing, so this file looks for each library before the first call into it.

#![allow(unsafe_code)]

use super::libraries::driver;
use super::libraries::nvidia::{ContextHandle, Events, Pool, Raw};
use super::libraries::search;
use super::modules::compile;
use super::{Gpu, Trouble, describe};
use crate::graph::operation::Refusal;
use crate::process_end::{self, inside};
use cudarc::driver::sys;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Once, OnceLock};

/// The open context of a device.
#[derive(Debug)]
pub(crate) struct DriverContext {
    pub gpu: Gpu,
    device: sys::CUdevice,
    pub pool: Pool,
    pub streams: Vec<Raw>,
    /// The first stream is somebody else's.
    is_lent: bool,
}

impl DriverContext {
    /// Retains the GPU's primary context, makes it current on this thread, and makes streams, of
    /// which the last but one goes before the others. The first is `lent`, where somebody lends
    /// one: then all is made in its context.
    pub fn open(
        ordinal: usize,
        streams: usize,
        lent: Option<usize>,
    ) -> Result<DriverContext, String> {
        let _inside = inside();
        let device = device(ordinal)?;
        let said = |call: &str, status: sys::CUresult| match status {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            other => Err(format!("{call} says {}", describe(other))),
        };
        let mut context = null_mut();
        // SAFETY: the places can be written, here and below; the context is current from the second
        // call on.
        unsafe {
            said("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            said("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
        }
        let named = |trouble: Trouble| trouble.to_string();
        let lent = lent.map(Raw::of_others).transpose().map_err(named)?;
        if let Some((_, Some(ContextHandle(of_stream)))) = lent {
            let mut its: sys::CUdevice = -1;
            context = of_stream;
            // SAFETY: a stream's context is one, and the place can be written.
            unsafe {
                said("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
                said("cuCtxGetDevice", sys::cuCtxGetDevice(&mut its))?;
            }
            if its != device {
                return Err("the stream is of another GPU".into());
            }
        }
        use sys::CUdevice_attribute::*;
        let gpu = Gpu {
            ordinal: ordinal as i32,
            context: ContextHandle(context),
            capability: (
                attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            multiprocessors: attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        };
        process_end::guard();
        let pool = Pool::new(device).map_err(named)?;
        let made = |i: usize| match lent {
            Some((stream, _)) if i == 0 => Ok(stream),
            _ if i + 2 == streams => Raw::urgent(),
            _ => Raw::new(),
        };
        let streams: Result<Vec<Raw>, Trouble> = (0..streams).map(made).collect();
        let (streams, is_lent) = (streams.map_err(named)?, lent.is_some());
        Ok(DriverContext { gpu, device, pool, streams, is_lent })
    }

    /// The end.
    ///
    /// # Safety
    /// Nothing runs any more, and nobody uses anything that was made in this context: its memory,
    /// its streams, events of these lists. Nobody uses the events in the lists.
    pub unsafe fn close(self, events: &[&Events]) {
        let _inside = inside();
        // SAFETY: the caller's promise; all was made here, and the context was retained once.
        unsafe {
            events.iter().for_each(|list| list.destroy());
            self.streams.iter().skip(self.is_lent as usize).for_each(|stream| stream.destroy());
            self.pool.destroy();
            sys::cuCtxSetCurrent(null_mut());
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// Has the GPU's primary context stay, for what lies in it, until it is [let go](let_go) as often.
pub(crate) fn keep(ordinal: usize) {
    let mut context = null_mut();
    if let Ok(device) = device(ordinal) {
        // SAFETY: the place can be written.
        unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) };
    }
}

/// The end of a [keep], by whoever called it.
pub(crate) fn let_go(ordinal: usize) {
    if let Ok(device) = device(ordinal) {
        // SAFETY: it was retained once more.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) };
    }
}

/// Whether cuBLAS is there, looked for once.
pub(super) fn has_cublas() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opens and closes a library by the names that cudarc will use; its initialisers are
    // NVIDIA's own.
    *PRESENT.get_or_init(|| {
        search::find("cublas", || unsafe { cudarc::cublas::sys::is_culib_present() })
    })
}

/// Which of the libraries that a device needs is missing, and where it was looked for.
fn libraries() -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let look = || {
        driver::is_new_enough()?;
        compile::compiler()?;
        if !has_cublas() {
            return Err(search::missing("cublas"));
        }
        Ok(())
    };
    FOUND.get_or_init(look).clone()
}

/// The driver, ready for calls.
fn start() -> Result<(), String> {
    static GUARD: Once = Once::new();
    libraries()?;
    // SAFETY: the library is there; the flags must be 0.
    match unsafe { sys::cuInit(0) } {
        sys::CUresult::CUDA_SUCCESS => {
            GUARD.call_once(process_end::guard);
            Ok(())
        }
        sys::CUresult::CUDA_ERROR_NO_DEVICE => {
            Err("NVIDIA's driver is installed, but finds no GPU".into())
        }
        other => Err(format!("NVIDIA's driver does not start: cuInit says {}", describe(other))),
    }
}

/// How many GPUs there are, or why there is none.
pub(crate) fn count() -> Result<usize, String> {
    let _inside = inside();
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
    let _inside = inside();
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

/// Does something with the GPU's primary context current. The thread has its own context again
/// afterwards.
pub(crate) fn within<R>(ordinal: usize, what: impl FnOnce() -> R) -> Result<R, Trouble> {
    let _inside = inside();
    let device = device(ordinal).map_err(Refusal::kernel)?;
    let (mut context, mut before) = (null_mut(), null_mut());
    // SAFETY: the places can be written; the context is retained while it is current.
    unsafe {
        Trouble::of("cuCtxGetCurrent", sys::cuCtxGetCurrent(&mut before))?;
        let retained = sys::cuDevicePrimaryCtxRetain(&mut context, device);
        Trouble::of("cuDevicePrimaryCtxRetain", retained)?;
        sys::cuCtxSetCurrent(context);
        let made = what();
        sys::cuCtxSetCurrent(before);
        sys::cuDevicePrimaryCtxRelease_v2(device);
        Ok(made)
    }
}

/// The name of a GPU.
pub(crate) fn name(ordinal: usize) -> Option<String> {
    let _inside = inside();
    let device = device(ordinal).ok()?;
    let mut text = [0u8; 256];
    // SAFETY: the name is written with its end mark into at most so many bytes.
    let status =
        unsafe { sys::cuDeviceGetName(text.as_mut_ptr().cast(), text.len() as c_int, device) };
    let end = text.iter().position(|&b| b == 0)?;
    (status == sys::CUresult::CUDA_SUCCESS)
        .then(|| String::from_utf8_lossy(&text[..end]).into_owned())
}

/// Bytes of memory that the GPU has.
pub(crate) fn memory(ordinal: usize) -> Option<usize> {
    let _inside = inside();
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

/// Whether one GPU can reach the memory of another.
pub(crate) fn can_reach(reader: usize, owner: usize) -> Option<sys::CUdevice> {
    let _inside = inside();
    let (reader, owner) = (device(reader).ok()?, device(owner).ok()?);
    let mut can: c_int = 0;
    // SAFETY: the place can be written.
    let status = unsafe { sys::cuDeviceCanAccessPeer(&mut can, reader, owner) };
    (status == sys::CUresult::CUDA_SUCCESS && can != 0).then_some(reader)
}
