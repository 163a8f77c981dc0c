//! NVIDIA's run-time compiler, opened where it is found. It works without a GPU and without a
//! driver.
//!
//! `kernels.rs` uses it for every kernel of futensor. Knows no kernels.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
    /// What each kernel takes.
    pub used: Vec<Used>,
}

/// What a kernel takes of a multiprocessor, by the assembler's word.
pub struct Used {
    /// Its name.
    pub kernel: String,
    /// Of a thread.
    pub registers: u32,
    /// Bytes of a block, those that a launch asks for left out.
    pub shared: u32,
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
                used: used(&log),
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

/// What each kernel takes, from the same log.
fn used(log: &str) -> Vec<Used> {
    let mut all: Vec<Used> = Vec::new();
    for line in log.lines() {
        if let Some((_, name)) = line.split_once("Compiling entry function '") {
            let kernel = name.split('\'').next().unwrap_or(name).to_owned();
            all.push(Used { kernel, registers: 0, shared: 0 });
        } else if let (Some((_, words)), Some(last)) = (line.split_once(": Used "), all.last_mut())
        {
            for part in words.split(", ") {
                let number = |end| part.strip_suffix(end).and_then(|n| n.trim().parse().ok());
                last.registers = number("registers").unwrap_or(last.registers);
                last.shared = number("bytes smem").unwrap_or(last.shared);
            }
        }
    }
    all
}

/// NVIDIA's disassembler: `FUTENSOR_NVDISASM`, else what `tests/nvrtc/install` brought, else that
/// of the path.
fn disassembler() -> Command {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/nvrtc/lib"));
    let brought = std::fs::read_dir(root).into_iter().flatten().flatten();
    let brought = brought.map(|p| p.path().join("site-packages/nvidia/cu13/bin/nvdisasm"));
    let named = std::env::var_os("FUTENSOR_NVDISASM").map(PathBuf::from);
    let found = named.into_iter().chain(brought).find(|path| path.exists());
    Command::new(found.unwrap_or_else(|| "nvdisasm".into()))
}

/// True where there is a disassembler.
pub fn has_disassembler() -> bool {
    disassembler().arg("--version").output().is_ok_and(|out| out.status.success())
}

/// The instructions of a CUBIN, each with the kernel that it belongs to.
///
/// # Errors
/// Why the disassembler did not take it.
pub fn disassembly(image: &[u8]) -> Result<Vec<(String, String)>, String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("futensor-{}-{}.cubin", std::process::id(), NUMBER.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, image).map_err(|e| e.to_string())?;
    let out = disassembler().arg("-c").arg(&path).output().map_err(|e| e.to_string());
    let _ = std::fs::remove_file(&path);
    let out = out?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    let (mut kernel, mut all) = (String::new(), Vec::new());
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let line = line.trim();
        if let Some((_, name)) = line.split_once(".section\t.text.") {
            kernel = name.split(',').next().unwrap_or(name).to_owned();
        } else if let Some((_, code)) = line.strip_prefix("/*").and_then(|l| l.split_once("*/")) {
            all.push((kernel.clone(), code.trim().to_owned()));
        }
    }
    Ok(all)
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
        let Compiled { image, spills, used } =
            compiler.compile(&source, 90, &[]).expect("it compiles");
        assert_eq!(&image[..4], b"\x7fELF");
        assert!(used.len() == 2 && used.iter().all(|used| used.registers > 4));
        assert!(matches!(&spills[..], [one] if one.starts_with("holds_much: ")), "{spills:?}");
        let refused = compiler.compile("extern \"C\" __global__ void f() { nonsense; }", 90, &[]);
        assert!(refused.is_err_and(|log| log.contains("nonsense")));
    }
}
