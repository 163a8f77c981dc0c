//! NVIDIA's libraries where the system's loader does not look: in Python's wheels, in conda's
//! environments, in toolkits that are installed beside the system.
//!
//! cudarc asks the loader by name, and the loader finds a library that is open already. So one that
//! lies elsewhere is opened here, by its path, and stays open.

#![allow(unsafe_code)]

use libloading::Library;
use std::ffi::c_int;
use std::path::{Path, PathBuf};

/// A library's answer to a call: 0, or what is wrong.
pub(super) type Status = c_int;

/// What is called of a library, by its symbols, as `Calls`.
macro_rules! calls {
    ($($field:ident = $name:literal: fn($($argument:ty),*);)*) => {
        /// What is called of the library.
        struct Calls {
            $($field: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Calls {
            fn of(library: &Library) -> Result<Calls, String> {
                // SAFETY: these are the types that the library's header gives them, and it stays
                // open as long as they are kept.
                Ok(Calls { $($field: *unsafe { library.get($name) }.map_err(|e| e.to_string())?,)* })
            }
        }
    };
}
pub(super) use calls;

/// True where `is_there` is, be it that the library of this name had to be opened by its path.
pub(super) fn find(name: &str, is_there: impl Fn() -> bool) -> bool {
    let opened = || paths(name).filter_map(|path| open(&path)).map(std::mem::forget);
    is_there() || opened().any(|()| is_there())
}

/// All libraries of this name: of the loader's path, then those beside it.
pub(super) fn all(name: &str) -> Vec<Library> {
    files(name).into_iter().map(PathBuf::from).chain(paths(name)).filter_map(|path| open(&path)).collect()
}

/// That a library was not found, and where was looked.
pub(super) fn missing(name: &str) -> String {
    let what = match name {
        "cuda" => "NVIDIA's driver",
        "nvrtc" => "NVRTC, the compiler of kernels",
        "cudnn" => "cuDNN, convolutions",
        "nccl" => "NCCL, what GPUs exchange",
        _ => "cuBLAS, products of matrices",
    };
    let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<String> = folders().iter().map(|folder| folder.display().to_string()).collect();
    let others = if folders.is_empty() { "no folder".into() } else { folders.join(", ") };
    format!(
        "lib{name}.so ({what}) was not found: looked for it as lib{name}.so, and with the endings of its versions, \
         in the loader's path (LD_LIBRARY_PATH is \"{path}\"), and in what there is of Python's wheels ($VIRTUAL_ENV, \
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

/// What a library's file may be called.
fn files(name: &str) -> Vec<String> {
    let mut files = cudarc::get_lib_name_candidates(name);
    // Its version is no toolkit's, and NVIDIA's wheel has no other name.
    files.extend((name == "nccl").then(|| "libnccl.so.2".to_owned()));
    files
}

/// The files beside the loader's path.
fn paths(name: &str) -> impl Iterator<Item = PathBuf> {
    let files = files(name);
    let all = move |folder: PathBuf| files.clone().into_iter().map(move |file| folder.join(file));
    folders().into_iter().flat_map(all).filter(|file| file.exists())
}

fn open(file: &Path) -> Option<Library> {
    // SAFETY: what has these names is NVIDIA's, or a stand-in with the same entry points; so are
    // the initialisers.
    unsafe { Library::new(file) }.ok()
}
