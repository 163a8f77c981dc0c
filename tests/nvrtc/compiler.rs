//! NVIDIA's run-time compiler, opened where it is found. It works without a GPU and without a
//! driver.
//!
//! `kernels.rs` uses it for every kernel of futensor. Knows no kernels.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;

/// The opened library.
pub struct Compiler {
    library: Library,
    /// Held because the compiler finds it by its name once it is loaded, wherever it lies.
    _builtins: Option<Library>,
}

type Program = *mut c_void;

/// What comes of a translation unit.
pub struct Compiled {
    /// A CUBIN.
    pub image: Vec<u8>,
    /// The kernels that keep registers in memory, each with how much.
    pub spills: Vec<String>,
}

impl Compiler {
    /// `FUTENSOR_NVRTC`, else what `tests/nvrtc/install` brought, else what the system has.
    pub fn find() -> Option<Compiler> {
        let mut names: Vec<PathBuf> =
            std::env::var_os("FUTENSOR_NVRTC").map(PathBuf::from).into_iter().collect();
        let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/nvrtc/lib"));
        for python in std::fs::read_dir(root).into_iter().flatten().flatten() {
            let lib = python.path().join("site-packages/nvidia/cu13/lib/libnvrtc.so.13");
            names.push(lib);
        }
        names.extend(["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].map(PathBuf::from));
        // SAFETY: the library's initialisers are NVIDIA's own and ask nothing of the caller.
        let open = |path: &PathBuf| unsafe { Library::new(path) }.ok();
        names.iter().find_map(|name| {
            let beside = |p: &std::path::Path| {
                let files = std::fs::read_dir(p).ok()?.flatten().map(|f| f.path());
                files
                    .filter(|f| f.to_string_lossy().contains("nvrtc-builtins.so"))
                    .find_map(|f| open(&f))
            };
            Some(Compiler { library: open(name)?, _builtins: name.parent().and_then(beside) })
        })
    }

    fn call<F: Copy>(&self, name: &str) -> F {
        // SAFETY: each caller names the type of the function as nvrtc.h declares it.
        *unsafe { self.library.get::<F>(name.as_bytes()) }.unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Its version, as (13, 0).
    pub fn version(&self) -> (c_int, c_int) {
        let (mut major, mut minor) = (0, 0);
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
            self.call("nvrtcVersion");
        // SAFETY: both pointers are to live integers.
        assert_eq!(unsafe { version(&mut major, &mut minor) }, 0, "nvrtcVersion");
        (major, minor)
    }

    /// Compiles to a CUBIN for `sm_{arch}`; the log is the error.
    pub fn compile(&self, source: &str, arch: u32, options: &[&str]) -> Result<Compiled, String> {
        let source = CString::new(source).expect("sources hold no zeros");
        let options: Vec<CString> = options
            .iter()
            .map(|o| o.to_string())
            .chain([format!("--gpu-architecture=sm_{arch}"), "--ptxas-options=-v".into()])
            .map(|o| CString::new(o).expect("options hold no zeros"))
            .collect();
        let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
        type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
        type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
        let mut program: Program = ptr::null_mut();
        let (create, compile): (Create, Compile) =
            (self.call("nvrtcCreateProgram"), self.call("nvrtcCompileProgram"));
        // SAFETY: all pointers are to live, zero-ended strings; no headers are named.
        let made = unsafe {
            create(
                &mut program,
                source.as_ptr(),
                c"kernels.cu".as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        assert_eq!(made, 0, "nvrtcCreateProgram");
        // SAFETY: the program was just made, the options outlive the call.
        let rc = unsafe { compile(program, options.len() as c_int, options.as_ptr()) };
        let read = |size: &str, get: &str| {
            let (size, get): (Size, Get) = (self.call(size), self.call(get));
            let mut n = 0;
            // SAFETY: the program is alive.
            assert_eq!(unsafe { size(program, &mut n) }, 0);
            let mut bytes = vec![0u8; n];
            // SAFETY: the buffer has the size that the library asked for.
            assert_eq!(unsafe { get(program, bytes.as_mut_ptr().cast()) }, 0);
            bytes
        };
        let log = read("nvrtcGetProgramLogSize", "nvrtcGetProgramLog");
        let log = CStr::from_bytes_until_nul(&log).map(|s| s.to_string_lossy().into_owned());
        let log = log.unwrap_or_else(|_| "no log".into());
        let result = match rc {
            0 => Ok(Compiled {
                image: read("nvrtcGetCUBINSize", "nvrtcGetCUBIN"),
                spills: spills(&log),
            }),
            _ => Err(log),
        };
        let destroy: Destroy = self.call("nvrtcDestroyProgram");
        // SAFETY: the program is not used again.
        unsafe { destroy(&mut program) };
        result
    }
}

/// The kernels that keep registers in memory, with what the assembler's log says of each. It says
/// something of every kernel, or the option has lost its meaning.
fn spills(log: &str) -> Vec<String> {
    assert!(log.contains("bytes spill stores"), "no word about spills: {log}");
    let mut kernel = "";
    let mut spilling = Vec::new();
    for line in log.lines() {
        if let Some((_, name)) = line.split_once("Compiling entry function '") {
            kernel = name.split('\'').next().unwrap_or(name);
        } else if let Some((_, words)) = line.split_once("bytes stack frame, ")
            && words != "0 bytes spill stores, 0 bytes spill loads"
        {
            spilling.push(format!("{kernel}: {words}"));
        }
    }
    spilling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_spill_are_named_and_compiled_all_the_same() {
        let Some(compiler) = Compiler::find() else {
            return eprintln!("ignored: there is no NVRTC");
        };
        let kernel = |name: &str, count: usize| {
            format!(
                "extern \"C\" __global__ void __launch_bounds__(1024, 2) {name}(float* x) {{
                    float held[{count}];
                    #pragma unroll
                    for (int i = 0; i < {count}; ++i) held[i] = x[1024 * i + threadIdx.x];
                    __syncthreads();
                    #pragma unroll
                    for (int i = 0; i < {count}; ++i) x[1024 * i + threadIdx.x] = held[{count} - 1 \
                    - i];
                }}\n"
            )
        };
        let source = kernel("fits", 4) + &kernel("holds_much", 64);
        let Compiled { image, spills } = compiler.compile(&source, 90, &[]).expect("it compiles");
        assert_eq!(&image[..4], b"\x7fELF");
        assert!(matches!(&spills[..], [one] if one.starts_with("holds_much: ")), "{spills:?}");
        let refused = compiler.compile("extern \"C\" __global__ void f() { nonsense; }", 90, &[]);
        assert!(refused.is_err_and(|log| log.contains("nonsense")));
    }
}
