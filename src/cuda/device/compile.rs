//! From CUDA C to a binary for one architecture, by NVRTC.
//!
//! Called by the module store, on the device's thread or on the one that compiles in the
//! background. Needs no context and no device. Where the library is missing, that is an error which
//! says what was looked for: cudarc panics on a missing library, so it is asked for first.

#![allow(unsafe_code)]

use super::libraries;
use cudarc::nvrtc::sys;
use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::OnceLock;

/// What code is generated for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A binary for exactly this `sm_`.
    Binary(u32),
    /// Portable assembly for this `compute_`, for a device that is newer than the compiler: the
    /// driver finishes it.
    Portable(u32),
}

impl Target {
    /// The best that a compiler which knows the architectures of `known` can do for a device of
    /// compute capability `sm` (90 for 9.0). Binaries run on later devices of the same major
    /// number, too.
    pub fn choose(sm: u32, known: &[u32]) -> Option<Target> {
        let best = known.iter().copied().filter(|&k| k <= sm).max()?;
        Some(if best / 10 == sm / 10 { Target::Binary(best) } else { Target::Portable(best) })
    }

    /// The compiler's option.
    pub fn option(self) -> String {
        match self {
            Target::Binary(sm) => format!("--gpu-architecture=sm_{sm}"),
            Target::Portable(sm) => format!("--gpu-architecture=compute_{sm}"),
        }
    }
}

/// The compiler that is here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Compiler {
    pub version: (i32, i32),
    /// Architectures that it knows, as 90 for `sm_90`.
    pub known: Vec<u32>,
}

/// The compiler, looked for once.
pub(crate) fn compiler() -> Result<&'static Compiler, String> {
    static FOUND: OnceLock<Result<Compiler, String>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// Whether the library is there.
pub(super) fn is_present() -> bool {
    // SAFETY: opens and closes a library by the names that cudarc will use; its initialisers are
    // NVIDIA's own.
    libraries::find("nvrtc", || unsafe { sys::is_culib_present() })
}

fn find() -> Result<Compiler, String> {
    if !is_present() {
        return Err(format!(
            "NVRTC, which compiles CUDA kernels, was not found; looked {}",
            libraries::looked()
        ));
    }
    let (mut major, mut minor, mut count) = (0, 0, 0);
    // SAFETY: the library is there; both pointers are to live integers.
    check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    // SAFETY: as above.
    check("nvrtcGetNumSupportedArchs", unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) })?;
    let mut known = vec![0i32; count.max(0) as usize];
    // SAFETY: the list has the length that the library asked for.
    check("nvrtcGetSupportedArchs", unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) })?;
    Ok(Compiler { version: (major, minor), known: known.into_iter().map(|k| k as u32).collect() })
}

fn check(call: &str, result: sys::nvrtcResult) -> Result<(), String> {
    match result {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(format!("{call}: {other:?}")),
    }
}

/// A program of the compiler's, destroyed when it is let go.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `nvrtcCreateProgram`, and not used again.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// The calls that ask for a size, and for so many bytes.
type Read = (
    unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
    unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult,
);
const LOG: Read = (sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog);
const BINARY: Read = (sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN);
const PORTABLE: Read = (sys::nvrtcGetPTXSize, sys::nvrtcGetPTX);

impl Program {
    /// What a pair of calls gives.
    fn read(&self, call: &str, (size, get): Read) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program is alive, the pointer is to a live integer.
        check(call, unsafe { size(self.0, &mut bytes) })?;
        let mut read = vec![0u8; bytes];
        if bytes == 0 {
            return Ok(read);
        }
        // SAFETY: the buffer has the size that the library asked for.
        check(call, unsafe { get(self.0, read.as_mut_ptr().cast()) })?;
        Ok(read)
    }

    fn log(&self) -> String {
        let log = self.read("", LOG).unwrap_or_default();
        CStr::from_bytes_until_nul(&log).map(|s| s.to_string_lossy().trim().to_owned()).unwrap_or_default()
    }
}

/// Compiles a translation unit; `name` is what the compiler's messages call it. The result is a
/// module image as the driver loads it.
///
/// # Errors
/// What is missing, or the compiler's log.
pub(crate) fn compile(name: &str, source: &str, options: &[&str], target: Target) -> Result<Vec<u8>, String> {
    compiler()?;
    let text = CString::new(source).map_err(|_| "the source holds a zero byte".to_owned())?;
    let label = CString::new(name).unwrap_or_default();
    let architecture = target.option();
    let options: Result<Vec<CString>, _> =
        options.iter().copied().chain([&architecture[..]]).map(CString::new).collect();
    let options = options.map_err(|_| "an option holds a zero byte".to_owned())?;
    let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();

    let mut raw = ptr::null_mut();
    // SAFETY: the library was found; the strings are zero-ended and outlive the program; no headers
    // are named.
    let made = unsafe {
        sys::nvrtcCreateProgram(&mut raw, text.as_ptr(), label.as_ptr(), 0, ptr::null(), ptr::null())
    };
    check("nvrtcCreateProgram", made)?;
    let program = Program(raw);
    // SAFETY: the program was just made; the options are live, zero-ended strings.
    let compiled = unsafe { sys::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()) };
    check("nvrtcCompileProgram", compiled)
        .map_err(|why| format!("{name} does not compile for {architecture}: {why}\n{}", program.log()))?;

    match target {
        Target::Binary(_) => program.read("nvrtcGetCUBIN", BINARY),
        Target::Portable(_) => program.read("nvrtcGetPTX", PORTABLE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_the_nearest_architecture_that_runs_on_it() {
        let known = [75, 80, 86, 90, 100];
        assert_eq!(Target::choose(90, &known), Some(Target::Binary(90)));
        assert_eq!(Target::choose(89, &known), Some(Target::Binary(86)));
        assert_eq!(Target::choose(103, &known), Some(Target::Binary(100)));
        assert_eq!(Target::choose(120, &known), Some(Target::Portable(100)));
        assert_eq!(Target::choose(70, &known), None);
    }
}
