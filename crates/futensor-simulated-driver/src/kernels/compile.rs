//! From CUDA C to a shared library: preprocess, scan, compile with g++, keep on disk.
//!
//! Compiled libraries lie in `FUTENSOR_SIM_CACHE` (by default under the workspace's target folder),
//! named by a hash of the source, the shim, the options and the compiler, so that a second test
//! process compiles nothing.

use crate::checks::shared::WATCHED;
use crate::kernels::scan::{GLOBAL, SHARED, scan};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard};

const CORE: &str = include_str!("shim/core.h");
/// Comes behind the core where races in shared memory are looked for.
const WATCH: &str = include_str!("shim/shared.h");
const SHIM: &str = concat!(
    include_str!("shim/warp.h"),
    include_str!("shim/math.h"),
    include_str!("shim/half.h"),
    include_str!("shim/entry.h"),
);

/// Not optimised: the reference cases' 970 kernels are compiled in 104 s instead of 180, and none
/// runs for long. No contraction: nvcc contracts a * b + c by default, but where a kernel needs it,
/// it says fmaf. A vector that lies across its alignment is an illegal instruction, where on a GPU
/// it is a fault of its own. No strict aliasing and wrapping integers: what kernels rely on.
/// Symbols stay visible, so that module variables are found.
const FLAGS: [&str; 11] = [
    "-std=gnu++17",
    "-O0",
    "-fPIC",
    "-w",
    "-fno-exceptions",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-gnu-unique",
    "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
];

/// Beside these, where races in shared memory are looked for: an access is a call of the shim's.
const WATCHED_FLAGS: [&str; 2] = ["-fsanitize=thread", "--param=tsan-distinguish-volatile=1"];

/// How it is linked, and with what: the linker takes three quarters of its time for C++'s own
/// library, of which nothing is used (24 and 6 ms, of 146 a kernel).
const LINKED: [&str; 3] = ["-shared", "-nostdlib", "-Wl,-Bsymbolic"];
const LIBRARIES: [&str; 2] = ["-lm", "-lc"];

/// Of what `scan` does to a source: what was compiled before a change of it is not found again.
const SCANNED: &str = "2";

/// A program as NVRTC was given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// CUDA C.
    pub source: String,
    /// Name for messages.
    pub name: String,
    /// Macro definitions, as `-DX=1`.
    pub defines: Vec<String>,
    /// `__CUDA_ARCH__`.
    pub arch: u32,
}

fn shim(watched: bool) -> String {
    if watched { [CORE, WATCH, SHIM].concat() } else { [CORE, SHIM].concat() }
}

fn compiler() -> String {
    std::env::var("FUTENSOR_SIM_CXX").unwrap_or_else(|_| "g++".to_owned())
}

/// The compiler's version, or why there is none.
pub fn version() -> Result<String, String> {
    static VERSION: LazyLock<Result<String, String>> = LazyLock::new(|| {
        let output = Command::new(compiler())
            .args(["-dumpfullversion", "-dumpmachine"])
            .stdin(Stdio::null())
            .output();
        match output {
            Ok(output) if output.status.success() => {
                Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
            }
            Ok(output) => Err(format!(
                "{} fails: {}",
                compiler(),
                String::from_utf8_lossy(&output.stderr).trim()
            )),
            Err(error) => Err(format!("no C++ compiler ({}): {error}", compiler())),
        }
    });
    VERSION.clone()
}

fn folder() -> PathBuf {
    match std::env::var_os("FUTENSOR_SIM_CACHE") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/simulated-kernels"),
    }
}

/// FNV-1a, 128 bits (Fowler, Noll, Vo): stable across processes, and nobody attacks a test cache.
fn hash(parts: &[&str]) -> u128 {
    let mut hash: u128 = 0x6c62272e07bb014262b821756295c58d;
    for part in parts {
        for &byte in part.as_bytes().iter().chain(&[0]) {
            hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000000001000000000000000000013B);
        }
    }
    hash
}

/// While it lives, this process compiles this program nowhere else.
struct Busy(u128);

static BUSY: Mutex<BTreeSet<u128>> = Mutex::new(BTreeSet::new());
static THROUGH: Condvar = Condvar::new();

fn busy() -> MutexGuard<'static, BTreeSet<u128>> {
    BUSY.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Busy {
    fn with(key: u128) -> Busy {
        let waited = THROUGH.wait_while(busy(), |busy| !busy.insert(key));
        drop(waited.unwrap_or_else(|poisoned| poisoned.into_inner()));
        Busy(key)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        busy().remove(&self.0);
        THROUGH.notify_all();
    }
}

impl Program {
    /// The path of the compiled library; a compiler's message where it does not compile.
    pub fn compile(&self) -> Result<PathBuf, String> {
        let version = version()?;
        let arch = self.arch.to_string();
        let watched = WATCHED.load(Relaxed);
        let (shim, flags) = (shim(watched), FLAGS.join(" "));
        let key =
            hash(&[SCANNED, &shim, &flags, &version, &self.defines.join(" "), &arch, &self.source]);
        let folder = folder();
        let path = folder.join(format!("{key:032x}.so"));
        // Each program once: a second caller with the same one finds the first's.
        let _busy = Busy::with(key);
        if path.exists() {
            return Ok(path);
        }
        let show = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(&folder).map_err(show)?;
        // So does a second process: a program's lock is one of 256 files.
        let locked = File::create(folder.join(format!("{:02x}.lock", key as u8))).map_err(show)?;
        locked.lock().map_err(show)?;
        if path.exists() {
            return Ok(path);
        }
        let temporary = |end: &str| folder.join(format!("{key:032x}.{}.{end}", std::process::id()));
        let (text, object) = (temporary("cpp"), temporary("so"));
        let result = self.build(&text, &object, watched);
        let result = result.and_then(|()| {
            // Atomic, so that another process sees all of it or nothing.
            std::fs::rename(&object, &path).map_err(|error| error.to_string())
        });
        let _ = std::fs::remove_file(&text);
        let _ = std::fs::remove_file(&object);
        result.map(|()| path)
    }

    fn build(&self, text: &Path, object: &Path, watched: bool) -> Result<(), String> {
        let write =
            |content: &str| std::fs::write(text, content).map_err(|error| error.to_string());
        write(&format!("# 1 \"{}\"\n{}\n", self.name, self.source))?;
        let mut preprocess = Command::new(compiler());
        preprocess.args(["-E", "-w", "-x", "c++", "-std=gnu++17", "-nostdinc"]);
        preprocess.args([format!("-D__global__={GLOBAL}"), format!("-D__shared__={SHARED}")]);
        preprocess.args(["-DFUTENSOR_SIM=1", "-D__CUDACC__=1", "-D__CUDACC_RTC__=1"]);
        preprocess.arg(format!("-D__CUDA_ARCH__={}", self.arch)).args(&self.defines).arg(text);
        let preprocessed = run(preprocess)?;

        let found = scan(&preprocessed);
        let mut unit =
            format!("# 1 \"shim\"\n{}\n{}\n# 1 \"entries\"\n", shim(watched), found.text);
        for (name, fields) in &found.structs {
            let _ = write!(
                unit,
                "template <> struct futsim_fields<{name}> {{ static void visit(const futsim_walk& \
                    w, unsigned o) {{ (void)w, (void)o;"
            );
            for field in fields {
                let _ = write!(
                    unit,
                    " w.field<decltype({name}::{field})>(o + __builtin_offsetof({name}, {field}));"
                );
            }
            unit += " } };\n";
        }
        unit += "extern \"C\" __attribute__((used, visibility(\"default\"))) const futsim_entry \
            futsim_entries[] = {\n";
        for kernel in &found.kernels {
            let _ = writeln!(unit, "    FUTSIM_ENTRY(\"{kernel}\", {kernel}),");
        }
        unit += "    {0, 0, 0}};\n";
        write(&unit)?;
        let mut compile = Command::new(compiler());
        if !watched {
            compile
                .args(FLAGS)
                .args(LINKED)
                .args(["-x", "c++"])
                .arg(text)
                .arg("-o")
                .arg(object)
                .args(LIBRARIES);
            return run(compile).map(drop);
        }
        // Linked apart: the linker would be given the runtime that the shim stands for.
        let part = object.with_extension("o");
        compile
            .args(FLAGS)
            .args(WATCHED_FLAGS)
            .args(["-c", "-x", "c++"])
            .arg(text)
            .arg("-o")
            .arg(&part);
        let mut link = Command::new(compiler());
        link.args(LINKED).arg(&part).arg("-o").arg(object).args(LIBRARIES);
        let done = run(compile).and_then(|_| run(link)).map(drop);
        let _ = std::fs::remove_file(&part);
        done
    }

    /// The program as the bytes of a module image, by a compiler of this version. Nothing is lost,
    /// so that an image kept on disk by a client can be compiled again.
    pub fn image(&self, (major, minor): (i32, i32)) -> Vec<u8> {
        let (arch, name, count) = (self.arch, &self.name, self.defines.len());
        let mut image = format!("{MAGIC}\n{major}.{minor}\n{arch}\n{name}\n{count}\n");
        for define in &self.defines {
            image += define;
            image.push('\n');
        }
        image += &self.source;
        image.push('\0');
        image.into_bytes()
    }

    /// The program in the text of an image; a text without our mark is taken as CUDA C itself.
    pub fn from_image(image: &str) -> Option<Program> {
        let Some(rest) = image.strip_prefix(MAGIC) else {
            let plain = image.contains("__global__");
            return plain.then(|| Program {
                source: image.into(),
                name: "image".into(),
                defines: vec![],
                arch: 900,
            });
        };
        let mut lines = rest.strip_prefix('\n')?.splitn(5, '\n');
        lines.next()?;
        let arch = lines.next()?.parse().ok()?;
        let name = lines.next()?.to_owned();
        let count: usize = lines.next()?.parse().ok()?;
        let mut rest = lines.next()?;
        let mut defines = Vec::new();
        for _ in 0..count {
            let (line, after) = rest.split_once('\n')?;
            defines.push(line.to_owned());
            rest = after;
        }
        Some(Program { source: rest.to_owned(), name, defines, arch })
    }
}

/// The version of the compiler that made an image.
pub fn version_of(image: &str) -> Option<(i32, i32)> {
    let (major, minor) = image.strip_prefix(MAGIC)?.lines().nth(1)?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

const MAGIC: &str = "futensor simulated image 2";

fn run(mut command: Command) -> Result<String, String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", compiler()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_gives_its_program_back() {
        let program = Program {
            source: "line\n\nline\n".into(),
            name: "k.cu".into(),
            defines: vec!["-DA=1".into(), "-DB".into()],
            arch: 800,
        };
        let mut image = program.image((13, 0));
        assert_eq!(image.pop(), Some(0));
        assert_eq!(Program::from_image(&String::from_utf8(image).unwrap()), Some(program));
        assert_eq!(Program::from_image(".version 8.0"), None);
    }
}
