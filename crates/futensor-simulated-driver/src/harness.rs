//! Brings the simulated driver into a test process: builds the library, names it as the loader
//! looks for it, and starts the process again so that the loader finds it.
//!
//! For test programs with a `main` of their own. A simulated and a real driver never share a
//! process.

use crate::client::Simulator;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set in a process that was started with the simulated driver.
const ACTIVE: &str = "FUTENSOR_SIM_ACTIVE";

/// The names under which cudarc asks for the libraries. It tries the plain name first, which a real
/// installation may have further down the path, so both are there.
const NAMES: [&str; 12] = [
    "libcuda.so",
    "libcuda.so.1",
    "libcublas.so",
    "libcublas.so.13",
    "libcublasLt.so",
    "libcublasLt.so.13",
    "libnvrtc.so",
    "libnvrtc.so.13",
    "libcudnn.so",
    "libcudnn.so.9",
    "libnccl.so",
    "libnccl.so.2",
];

/// To be called first in `main`: returns in a process that has the simulated driver. The first time
/// it builds the driver and replaces this process by one that has `LD_LIBRARY_PATH` set, with the
/// same arguments.
///
/// # Errors
/// What keeps the driver from being built or found.
pub fn enter() -> Result<Simulator, String> {
    if std::env::var_os(ACTIVE).is_some() {
        return Simulator::attach();
    }
    let folder = install(&build()?)?;
    let mut path = folder.clone().into_os_string();
    if let Some(before) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(before);
    }
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let arguments = std::env::args_os().skip(1);
    let mut command = Command::new(this);
    settings(&mut command);
    // It is a profiler too, for who asks for one.
    command.env("NVTX_INJECTION64_PATH", folder.join(NAMES[1]));
    let error = command.args(arguments).env("LD_LIBRARY_PATH", path).env(ACTIVE, "1").exec();
    Err(format!("cannot start the test program again: {error}"))
}

/// What the library under test is told, unless the caller's environment says otherwise: to keep its
/// compiled kernels in a folder of their own, since those of the simulated compiler mean nothing to
/// a real driver, and to have many compiled at once, since each run of g++ costs the same.
pub fn settings(command: &mut Command) {
    let kernels = folder().join("kernels").into_os_string();
    for (name, value) in [("FUTENSOR_CACHE", kernels), ("FUTENSOR_RELATIVES", "now".into())] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
}

/// Builds the library and returns its path.
///
/// # Errors
/// Cargo's messages.
pub fn build() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--lib", "--message-format=json", "--manifest-path"])
        .arg(manifest);
    // A folder of its own: with the test's, each of the two builds would find the library made by
    // the other, with other features of its dependencies, and make it again (5 s a run).
    command.arg("--target-dir").arg(folder());
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    // One file name in a stream of JSON, so that no JSON reader is needed: names hold no quotes.
    let name = |line: &str| {
        let parts: Vec<&str> = line.split('"').collect();
        let found = parts.iter().find(|part| part.ends_with("libfutensor_simulated_driver.so"));
        found.map(|part| PathBuf::from(*part))
    };
    messages.lines().find_map(name).ok_or_else(|| "cargo names no library".to_owned())
}

/// Where the library is built: beside what cargo built this test program in.
fn folder() -> PathBuf {
    let this = std::env::current_exe().unwrap_or_default();
    let deps = this.ancestors().find(|folder| folder.ends_with("deps"));
    let target = deps.and_then(|deps| deps.parent()?.parent());
    target
        .map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
            Path::to_path_buf,
        )
        .join("simulated-driver")
}

/// Gives the library the names it is looked for by, in a folder beside it, and returns the folder.
///
/// # Errors
/// Where the folder cannot be written.
pub fn install(library: &Path) -> Result<PathBuf, String> {
    let folder = library.with_file_name("simulated-libraries");
    let show = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(show)?;
    for name in NAMES {
        let link = folder.join(name);
        if std::fs::read_link(&link).is_ok_and(|target| target == library) {
            continue;
        }
        // Another test program may do the same now: each makes its own link and moves it into
        // place.
        let own = folder.join(format!("{name}.{}", std::process::id()));
        let _ = std::fs::remove_file(&own);
        std::os::unix::fs::symlink(library, &own).map_err(show)?;
        std::fs::rename(&own, &link).map_err(show)?;
    }
    Ok(folder)
}
