//! Runs plans on the host: the kernels' own source, compiled by a C++ compiler behind `host.h`.

use crate::cuda::kernels::source::{INDEX_ERROR_BYTES, module};
use crate::cuda::kernels::{Arg, Kernel, Plan};
use libloading::Library;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{LazyLock, Mutex, OnceLock};

const FLAGS: [&str; 8] = [
    "-std=gnu++17",
    "-O0",
    "-fPIC",
    "-shared",
    "-w",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
];

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "g++".into())
}

/// True where there is a C++ compiler.
pub fn is_there() -> bool {
    Command::new(compiler()).arg("--version").output().is_ok_and(|o| o.status.success())
}

type Launcher = unsafe extern "C" fn(*const u32, *const u32, *mut *mut c_void);

/// A built library. Its launches share static variables, so they go one at a time.
struct Built {
    library: Mutex<Library>,
    entries: Vec<String>,
}

/// Libraries by text. Each is built once, beside others.
static LIBRARIES: LazyLock<Mutex<HashMap<String, &'static OnceLock<Built>>>> =
    LazyLock::new(Default::default);

/// Kernels that were built together with others.
static HOMES: LazyLock<Mutex<HashMap<String, &'static Built>>> = LazyLock::new(Default::default);

/// Another test's panic is that test's.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn fnv(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Compiles kernels into one library; later launches find them there.
pub fn build(kernels: &[Kernel]) {
    let sources: Vec<_> = kernels.iter().map(|k| k.source()).collect();
    let mut text = String::from(include_str!("host.h"));
    let body = module(&sources);
    let barriers = has_barriers(&body);
    text += &body;
    let mut entries: Vec<String> = sources.iter().map(|s| s.entry.clone()).collect();
    entries.sort();
    entries.dedup();
    for entry in &entries {
        text += &format!("LAUNCHER({entry}, {barriers})\n");
    }
    let once = *lock(&LIBRARIES).entry(text.clone()).or_insert_with(|| Box::leak(Box::default()));
    let built = once.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        std::fs::create_dir_all(&folder).expect("a folder for libraries");
        let stem = folder.join(format!("kernels-{:016x}", fnv(&format!("{FLAGS:?}{text}"))));
        let (cpp, so) = (stem.with_extension("cpp"), stem.with_extension("so"));
        if !so.exists() {
            std::fs::write(&cpp, &text).expect("writing the source");
            let part = stem.with_extension(format!("part{}", std::process::id()));
            let out = Command::new(compiler())
                .args(FLAGS)
                .arg(&cpp)
                .arg("-o")
                .arg(&part)
                .output()
                .expect("g++");
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            std::fs::rename(&part, &so).expect("moving the library");
        }
        // SAFETY: the library was just built from our own kernels; it has no initialisers of note.
        let library = unsafe { Library::new(&so) }.expect("opening the library");
        Built { library: Mutex::new(library), entries: entries.clone() }
    });
    let mut homes = lock(&HOMES);
    for entry in &built.entries {
        homes.entry(entry.clone()).or_insert(built);
    }
}

/// What an index kernel reported: position, index, size.
pub type BadIndex = Option<(u64, i64, u64)>;

const CANARY: u8 = 0xa5;

/// A buffer aligned to 256 bytes with a margin on each side that must stay as it is.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    /// Where a view's first element lies.
    pub offset: usize,
}

impl Buffer {
    pub fn new(len: usize) -> Buffer {
        let bytes = vec![CANARY; len + 1024];
        let start = bytes.as_ptr().align_offset(256) + 256;
        Buffer { bytes, start, len, offset: 0 }
    }

    /// Zeros without margins, of which only the pages that are touched cost memory.
    pub fn sparse(len: usize) -> Buffer {
        Buffer { bytes: vec![0; len], start: 0, len, offset: 0 }
    }

    /// A buffer of these elements.
    pub fn of<T: Copy>(values: &[T]) -> Buffer {
        let mut b = Buffer::new(size_of_val(values));
        // SAFETY: plain elements of exactly the buffer's length.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast(), b.address(), b.len) };
        b
    }

    pub fn address(&mut self) -> *mut u8 {
        self.bytes[self.start + self.offset..].as_mut_ptr()
    }

    /// Largest power of two up to 16 that divides the address.
    pub fn align(&self) -> usize {
        1 << self.offset.trailing_zeros().min(4)
    }

    pub fn get<T: Copy>(&self) -> Vec<T> {
        let n = self.len / size_of::<T>();
        // SAFETY: the buffer is aligned to 256 and holds n elements, all initialised.
        unsafe { std::slice::from_raw_parts(self.bytes[self.start..].as_ptr().cast::<T>(), n) }
            .to_vec()
    }

    fn check(&self) {
        let outside = self.bytes[..self.start].iter().chain(&self.bytes[self.start + self.len..]);
        assert!(outside.into_iter().all(|&b| b == CANARY), "a kernel wrote outside its buffer");
    }
}

/// Runs to be made together, so that their kernels are compiled together.
#[derive(Default)]
pub struct Batch<'a> {
    cases: Vec<Case<'a>>,
}

struct Case<'a> {
    plan: Plan,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    check: Box<dyn FnOnce(Vec<Buffer>, BadIndex) + 'a>,
}

impl<'a> Batch<'a> {
    /// One run, and what must hold of its outputs.
    pub fn add(
        &mut self,
        plan: Plan,
        inputs: impl Into<Vec<Buffer>>,
        outputs: impl Into<Vec<Buffer>>,
        check: impl FnOnce(Vec<Buffer>, BadIndex) + 'a,
    ) {
        let (inputs, outputs) = (inputs.into(), outputs.into());
        self.cases.push(Case { plan, inputs, outputs, check: Box::new(check) });
    }

    /// Compiles, runs, checks.
    pub fn run(self) {
        let mut seen = HashSet::new();
        let mut kernels: [Vec<Kernel>; 2] = Default::default();
        for launch in self.cases.iter().flat_map(|c| &c.plan.launches) {
            let source = launch.kernel.source();
            if seen.insert(source.entry.clone()) {
                kernels[has_barriers(&module([&source])) as usize].push(launch.kernel.clone());
            }
        }
        kernels.iter().flat_map(|k| k.chunks(48)).for_each(build);
        for mut case in self.cases {
            let bad = run(&case.plan, &mut case.inputs, &mut case.outputs);
            (case.check)(case.outputs, bad);
        }
    }
}

fn has_barriers(text: &str) -> bool {
    text.contains("__syncthreads") || text.contains("_sync(")
}

/// Runs a plan's launches in order.
pub fn run(plan: &Plan, inputs: &mut [Buffer], outputs: &mut [Buffer]) -> BadIndex {
    let mut scratch = Buffer::new(plan.scratch);
    let mut error = Buffer::of(&[0u8; INDEX_ERROR_BYTES]);
    for launch in &plan.launches {
        let entry = launch.kernel.source().entry;
        let home = lock(&HOMES).get(&entry).copied();
        let home = home.unwrap_or_else(|| {
            build(std::slice::from_ref(&launch.kernel)); // a run outside a batch
            lock(&HOMES)[&entry]
        });
        // Each argument in eight-byte words of its own; the launch is given their addresses.
        let mut words: Vec<Vec<u64>> = launch
            .args
            .iter()
            .map(|arg| match arg {
                Arg::In { index, bytes } => {
                    vec![inputs[*index as usize].address().wrapping_offset(*bytes) as u64]
                }
                Arg::Out { index, bytes } => {
                    vec![outputs[*index as usize].address().wrapping_add(*bytes) as u64]
                }
                Arg::Scratch(bytes) => vec![scratch.address().wrapping_add(*bytes) as u64],
                Arg::IndexError => vec![error.address() as u64],
                Arg::U32(x) => vec![*x as u64],
                Arg::U64(x) => vec![*x],
                Arg::F32(x) => vec![x.to_bits() as u64],
                Arg::F64(x) => vec![x.to_bits()],
                Arg::Struct(w) => w.as_words().to_vec(),
            })
            .collect();
        let mut pointers: Vec<*mut c_void> =
            words.iter_mut().map(|w| w.as_mut_ptr().cast()).collect();
        assert!(
            launch.grid[1].max(launch.grid[2]) <= 65_535
                && launch.block.iter().product::<u32>() <= 1024
        );
        let library = lock(&home.library);
        // SAFETY: the launcher was made by `LAUNCHER` with this type.
        let f = unsafe { library.get::<Launcher>(format!("launch_{entry}").as_bytes()) }
            .expect("a launcher");
        // SAFETY: arguments are laid out as the plan says; whether that is so is what is tested
        // here.
        unsafe { f(launch.grid.as_ptr(), launch.block.as_ptr(), pointers.as_mut_ptr()) };
    }
    inputs.iter().chain(outputs.iter()).chain([&scratch, &error]).for_each(Buffer::check);
    let e = error.get::<u64>();
    (e[0] >> 32 != 0).then_some((e[1], e[2] as i64, e[3]))
}
