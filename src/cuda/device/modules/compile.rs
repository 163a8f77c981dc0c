//! From CUDA C to a binary for one architecture, by NVRTC.
//!
//! The module store calls it, on the device's thread or on a thread of the background. It needs no
//! context and no device. A machine may have several NVRTCs, of a toolkit and of Python's wheels,
//! and one that is newer than the driver makes binaries that the driver refuses: so this file
//! chooses the library, and calls it by its symbols. cudarc would take the first.

#![allow(unsafe_code)]

use crate::cuda::device::libraries::driver::{self, Version};
use crate::cuda::device::libraries::search::{self, Status, calls};
use crate::process_end;
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

/// The target of the generated code.
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

    /// The same as assembly, which a driver may know though it does not know the binary.
    pub fn portable(self) -> Target {
        let (Target::Binary(sm) | Target::Portable(sm)) = self;
        Target::Portable(sm)
    }

    /// The compiler's option.
    pub fn option(self) -> String {
        match self {
            Target::Binary(sm) => format!("--gpu-architecture=sm_{sm}"),
            Target::Portable(sm) => format!("--gpu-architecture=compute_{sm}"),
        }
    }
}

/// The library's handle on a program.
type Raw = *mut c_void;
calls! {
    version = b"nvrtcVersion\0": fn(*mut c_int, *mut c_int);
    known_count = b"nvrtcGetNumSupportedArchs\0": fn(*mut c_int);
    known = b"nvrtcGetSupportedArchs\0": fn(*mut c_int);
    create = b"nvrtcCreateProgram\0": fn(
        *mut Raw, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    );
    compile = b"nvrtcCompileProgram\0": fn(Raw, c_int, *const *const c_char);
    destroy = b"nvrtcDestroyProgram\0": fn(*mut Raw);
    log_size = b"nvrtcGetProgramLogSize\0": fn(Raw, *mut usize);
    log = b"nvrtcGetProgramLog\0": fn(Raw, *mut c_char);
    binary_size = b"nvrtcGetCUBINSize\0": fn(Raw, *mut usize);
    binary = b"nvrtcGetCUBIN\0": fn(Raw, *mut c_char);
    portable_size = b"nvrtcGetPTXSize\0": fn(Raw, *mut usize);
    portable = b"nvrtcGetPTX\0": fn(Raw, *mut c_char);
}

/// The compiler that is here.
pub(crate) struct Compiler {
    pub(crate) version: Version,
    /// Architectures that it knows, as 90 for `sm_90`.
    pub known: Vec<u32>,
    calls: Calls,
    /// Stays open.
    _library: Library,
}

/// The compiler, looked for once.
pub(crate) fn compiler() -> Result<&'static Compiler, String> {
    static FOUND: OnceLock<Result<Compiler, String>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// Of all that there are: the newest that the driver knows, else the oldest.
fn find() -> Result<Compiler, String> {
    let all: Vec<Compiler> =
        search::all("nvrtc").into_iter().filter_map(|l| Compiler::of(l).ok()).collect();
    let best = choose(&all.iter().map(|c| c.version).collect::<Vec<_>>(), driver::version());
    all.into_iter().nth(best.unwrap_or(usize::MAX)).ok_or_else(|| search::missing("nvrtc"))
}

/// Which of these versions serves a driver; of the same ones the first.
fn choose(versions: &[Version], driver: Option<Version>) -> Option<usize> {
    let fits = |v: &Version| driver.is_none_or(|driver| *v <= driver);
    let newest = versions.iter().filter(|v| fits(v)).max();
    let version = newest.or(versions.iter().min())?;
    versions.iter().position(|v| v == version)
}

/// The likely cause of an image's refusal, where the compiler is newer than the driver.
pub(crate) fn newer_than_the_driver() -> Option<String> {
    let (major, minor) = compiler().ok()?.version;
    let driver = driver::version().filter(|&driver| driver < (major, minor))?;
    let (at_most_major, at_most_minor) = driver;
    Some(format!(
        "NVRTC {major}.{minor} is newer than NVIDIA's driver, \
         which knows CUDA {at_most_major}.{at_most_minor}: \
         install an NVRTC of at most that version beside it, or a newer driver"
    ))
}

fn check(call: &str, status: Status) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{call}: NVRTC says {status}")) }
}

impl Compiler {
    fn of(library: Library) -> Result<Compiler, String> {
        let calls = Calls::of(&library)?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: both pointers are to live integers, here and below.
        check("nvrtcVersion", unsafe { (calls.version)(&mut major, &mut minor) })?;
        // SAFETY: as above.
        check("nvrtcGetNumSupportedArchs", unsafe { (calls.known_count)(&mut count) })?;
        let mut known = vec![0; count.max(0) as usize];
        // SAFETY: the list has the length that the library asked for.
        check("nvrtcGetSupportedArchs", unsafe { (calls.known)(known.as_mut_ptr()) })?;
        let known = known.into_iter().map(|k| k as u32).collect();
        Ok(Compiler { version: (major, minor), known, calls, _library: library })
    }
}

/// A program of the compiler's, destroyed when it is let go.
struct Program<'a>(Raw, &'a Calls);

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the library made it, and it is not used again.
        let _ = unsafe { (self.1.destroy)(&mut self.0) };
    }
}

/// The calls that ask for a size, and for that many bytes.
type Read = (
    unsafe extern "C" fn(Raw, *mut usize) -> Status,
    unsafe extern "C" fn(Raw, *mut c_char) -> Status,
);

impl Program<'_> {
    /// The result of a pair of calls.
    fn read(&self, what: &str, (size, get): Read) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program is alive, the pointer is to a live integer.
        check(what, unsafe { size(self.0, &mut bytes) })?;
        let mut read = vec![0u8; bytes];
        if bytes == 0 {
            return Ok(read);
        }
        // SAFETY: the buffer has the size that the library asked for.
        check(what, unsafe { get(self.0, read.as_mut_ptr().cast()) })?;
        Ok(read)
    }

    fn log(&self) -> String {
        let log = self.read("", (self.1.log_size, self.1.log)).unwrap_or_default();
        CStr::from_bytes_until_nul(&log)
            .map(|s| s.to_string_lossy().trim().to_owned())
            .unwrap_or_default()
    }
}

/// Compiles a translation unit; the compiler's messages call it `name`. The result is a
/// module image as the driver loads it.
///
/// # Errors
/// The missing library, or the compiler's log.
pub(crate) fn compile(
    name: &str,
    source: &str,
    options: &[&str],
    target: Target,
) -> Result<Vec<u8>, String> {
    let calls = &compiler()?.calls;
    let text = CString::new(source).map_err(|_| "the source holds a zero byte".to_owned())?;
    let label = CString::new(name).unwrap_or_default();
    let architecture = target.option();
    let options: Result<Vec<CString>, _> =
        options.iter().copied().chain([&architecture[..]]).map(CString::new).collect();
    let options = options.map_err(|_| "an option holds a zero byte".to_owned())?;
    let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();

    let mut raw = ptr::null_mut();
    // SAFETY: the strings are zero-ended and outlive the program; no headers are named.
    let made = unsafe {
        (calls.create)(&mut raw, text.as_ptr(), label.as_ptr(), 0, ptr::null(), ptr::null())
    };
    // Before the compilation, since the process may end in it, and after it, since the library may
    // load others in it.
    process_end::guard();
    check("nvrtcCreateProgram", made)?;
    let program = Program(raw, calls);
    // SAFETY: the program was just made; the options are live, zero-ended strings.
    let compiled = unsafe { (calls.compile)(program.0, options.len() as c_int, options.as_ptr()) };
    process_end::guard();
    check("nvrtcCompileProgram", compiled).map_err(|why| {
        format!("{name} does not compile for {architecture}: {why}\n{}", program.log())
    })?;

    match target {
        Target::Binary(_) => program.read("nvrtcGetCUBIN", (calls.binary_size, calls.binary)),
        Target::Portable(_) => program.read("nvrtcGetPTX", (calls.portable_size, calls.portable)),
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

    #[test]
    fn the_newest_compiler_that_the_driver_knows_is_taken_and_else_the_oldest() {
        let there = [(13, 0), (12, 8), (12, 2), (12, 8)];
        assert_eq!(choose(&there, Some((13, 1))), Some(0));
        assert_eq!(choose(&there, Some((12, 8))), Some(1));
        assert_eq!(choose(&there, Some((12, 4))), Some(2));
        assert_eq!(choose(&there, Some((12, 0))), Some(2));
        assert_eq!(choose(&there, None), Some(0));
        assert_eq!(choose(&[], None), None);
    }
}
