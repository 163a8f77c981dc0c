//! NVIDIA's libraries where the system's loader does not look: in Python's wheels, in conda's
//! environments, in toolkits that are installed beside the system.
//!
//! cudarc asks the loader by name, and the loader finds a library that is open already. So one that
//! lies elsewhere is opened here, by its path, and stays open.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::path::{Path, PathBuf};

/// True where `is_there` is, be it that the library of this name had to be opened by its path.
pub(super) fn find(name: &str, is_there: impl Fn() -> bool) -> bool {
    is_there() || folders().iter().any(|folder| open(folder, name) && is_there())
}

/// Where was looked, for messages.
pub(super) fn looked() -> String {
    let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<String> = folders().iter().map(|folder| folder.display().to_string()).collect();
    let others = if folders.is_empty() { "no folder".into() } else { folders.join(", ") };
    format!(
        "in the loader's path (LD_LIBRARY_PATH is \"{path}\"), and in what there is of Python's wheels ($VIRTUAL_ENV, \
         $CONDA_PREFIX, ~/.local, /usr/local, /usr) and of toolkits ($CUDA_HOME, $CUDA_PATH, /usr/local/cuda): {others}"
    )
}

/// The folders that there are, the likeliest first.
fn folders() -> Vec<PathBuf> {
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let mut found = Vec::new();
    let environments = [var("VIRTUAL_ENV"), var("CONDA_PREFIX"), var("HOME").map(|home| home.join(".local"))];
    for root in environments.into_iter().flatten().chain(["/usr/local".into(), "/usr".into()]) {
        for python in below(&root.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                // `cu13/lib`, which comes first, has all of CUDA 13; of 12 each library has a folder.
                let all = below(&python.join(packages).join("nvidia"), "");
                found.extend(all.into_iter().map(|folder| folder.join("lib")));
            }
        }
    }
    found.extend(var("CONDA_PREFIX").map(|root| root.join("lib")));
    let toolkits = [var("CUDA_HOME"), var("CUDA_PATH"), Some("/usr/local/cuda".into())];
    found.extend(toolkits.into_iter().flatten().map(|root| root.join("lib64")));
    // Where Linux stands on Windows, the driver lies there.
    found.push("/usr/lib/wsl/lib".into());
    found.retain(|folder| folder.is_dir());
    found
}

/// What lies in a folder and has a name that begins so, in order.
fn below(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let list = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = list.filter(|file| file.file_name().to_str().is_some_and(|name| name.starts_with(prefix)));
    let mut list: Vec<PathBuf> = named.map(|file| file.path()).collect();
    list.sort();
    list
}

/// Opens a library that lies in a folder; true where one did.
fn open(folder: &Path, name: &str) -> bool {
    let files = cudarc::get_lib_name_candidates(name).into_iter().map(|file| folder.join(file));
    files.filter(|file| file.exists()).any(|file| open_file(&file))
}

#[cfg(unix)]
fn open_file(file: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: a path that ends with 0; the initialisers are NVIDIA's own. It is never closed.
    !unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) }.is_null()
}

#[cfg(not(unix))]
fn open_file(_: &Path) -> bool {
    false
}
