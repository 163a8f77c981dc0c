//! Compiles by NVIDIA's compiler what a run on the simulated driver has asked for, so that a
//! machine with a GPU finds every kernel compiled.
//!
//! The simulated compiler's binaries are their own source, so the disk cache of such a run
//! (`FUTENSOR_CACHE`) holds every translation unit, fused kernels and all; where it passed for
//! NVRTC's version (`FUTENSOR_SIM_NVRTC`), under the names that a real one looks for.
//!
//!     export FUTENSOR_CACHE=$PWD/target/units
//!     FUTENSOR_SIM_NVRTC=13.0 cargo test -p futensor-tests --test ops_simulated_cuda
//!     cargo run -p futensor-nvrtc --bin carry target/units target/kernels
//!
//! A kernel that the compiler refuses is said, and ends it with 1, when all others are there; one
//! that spills is slow and right: it is named as a warning. What is compiled already is not
//! compiled again.

#![allow(dead_code, unused_macros, unused_imports)]

#[path = "../../src/cuda/device/modules/cache.rs"]
mod cache;
#[path = "../../src/dtype.rs"]
mod dtype;
#[path = "../../src/float8.rs"]
mod float8;
#[path = "../../src/op/mod.rs"]
mod op;
#[path = "../../src/cuda/kernels/source.rs"]
mod source;

use cache::{Disk, Key};
use futensor_nvrtc::{Compiled, Compiler};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A unit under the name that it has in the cache.
struct Unit {
    key: Key,
    version: (i32, i32),
    arch: u32,
    source: String,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = &arguments[..] else {
        eprintln!("usage: carry UNITS KERNELS");
        return ExitCode::from(2);
    };
    match carry(Path::new(from), Path::new(to)) {
        Ok(done) => println!("{done}"),
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn carry(from: &Path, to: &Path) -> Result<String, String> {
    let compiler = Compiler::find().ok_or("there is no NVRTC: tests/nvrtc/install brings it")?;
    let units = units(from)?;
    let version = compiler.version();
    if let Some(other) = units.iter().find(|unit| unit.version != version) {
        return Err(format!("made for NVRTC {:?}, and here is {version:?}", other.version));
    }
    let disk = Disk::at(Some(to.to_owned()));
    let (next, compiled, refused) =
        (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(String::new()));
    let spilling = AtomicUsize::new(0);
    let work = || {
        while let Some(unit) = units.get(next.fetch_add(1, Relaxed)) {
            if disk.get(unit.key).is_some() {
                continue;
            }
            match compiler.compile(&unit.source, unit.arch, source::OPTIONS) {
                Ok(Compiled { image, spills, .. }) => {
                    disk.put(unit.key, &image);
                    compiled.fetch_add(1, Relaxed);
                    spilling.fetch_add(spills.len(), Relaxed);
                    spills.iter().for_each(|spill| eprintln!("warning: a kernel spills: {spill}"));
                }
                Err(log) => *refused.lock().expect("nobody panics under it") += &log,
            }
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().map_or(1, usize::from))
            .for_each(|_| drop(scope.spawn(work)));
    });
    let refused = refused.into_inner().expect("nobody panics under it");
    if !refused.is_empty() {
        return Err(refused);
    }
    let (compiled, spilling) = (compiled.into_inner(), spilling.into_inner());
    Ok(format!(
        "{} units, {compiled} of them compiled now, {spilling} kernels among these that spill",
        units.len()
    ))
}

/// All units of a simulated run's cache.
fn units(folder: &Path) -> Result<Vec<Unit>, String> {
    let list =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let files = list
        .flatten()
        .map(|file| file.path())
        .filter(|p| p.extension().is_some_and(|e| e == "cubin"));
    let units: Vec<Unit> = files
        .map(|file| {
            unit(&file).ok_or(format!("{} is not the simulated compiler's", file.display()))
        })
        .collect::<Result<_, _>>()?;
    if units.is_empty() { Err(format!("{} holds no units", folder.display())) } else { Ok(units) }
}

fn unit(file: &Path) -> Option<Unit> {
    let key = Key::of_name(file.file_stem()?.to_str()?)?;
    let image = String::from_utf8(Disk::at(Some(file.parent()?.to_owned())).get(key)?).ok()?;
    // A line each: what it is, the compiler's version, architecture, name, and how many macros are
    // defined from outside: none.
    let lines: Vec<&str> = image.splitn(6, '\n').collect();
    let [_, version, arch, _, "0", source] = lines[..] else { return None };
    let (major, minor) = version.split_once('.')?;
    let version = (major.parse().ok()?, minor.parse().ok()?);
    let arch = arch.parse::<u32>().ok()? / 10;
    Some(Unit { key, version, arch, source: source.trim_end_matches('\0').to_owned() })
}
