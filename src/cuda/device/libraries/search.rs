//! A search for NVIDIA's libraries beside the system loader's path: in Python's wheels, in conda's
//! environments, in toolkits that are installed beside the system.
//!
//! cudarc asks the loader by name, and the loader finds a library that is open already. So this
//! file opens a library that lies elsewhere by its path, and leaves it open.

#![allow(unsafe_code)]

use libloading::Library;
use std::collections::HashSet;
use std::ffi::{OsStr, c_int};
use std::fs;
use std::path::{Path, PathBuf};

/// A library's answer to a call: 0, or the number of an error.
pub(crate) type Status = c_int;

/// The calls of a library, by its symbols, as `Calls`.
macro_rules! calls {
    ($($field:ident = $name:literal: fn($($argument:ty),*);)*) => {
        /// The calls of the library.
        struct Calls {
            $($field: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Calls {
            fn of(library: &Library) -> Result<Calls, String> {
                // SAFETY: these are the types that the library's header gives them, and it stays
                // open as long as they are kept.
                Ok(Calls {
                    $($field: *unsafe { library.get($name) }.map_err(|e| e.to_string())?,)*
                })
            }
        }
    };
}
pub(crate) use calls;

/// True where `is_there` is, be it that the library of this name had to be opened by its path.
pub(crate) fn find(name: &str, is_there: impl Fn() -> bool) -> bool {
    let opened = || paths(name).filter_map(|path| open(&path)).map(std::mem::forget);
    is_there() || opened().any(|()| is_there())
}

/// All libraries of this name: of the loader's path, then those beside it.
pub(crate) fn all(name: &str) -> Vec<Library> {
    files(name)
        .into_iter()
        .map(PathBuf::from)
        .chain(paths(name))
        .filter_map(|path| open(&path))
        .collect()
}

/// That a library was not found, and where was looked.
pub(crate) fn missing(name: &str) -> String {
    let what = match name {
        "cuda" => "NVIDIA's driver",
        "nvrtc" => "NVRTC, the kernel compiler",
        "cudnn" => "cuDNN, convolutions",
        "nccl" => "NCCL, what GPUs exchange",
        _ => "cuBLAS, matrix products",
    };
    let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<String> =
        folders().iter().map(|folder| folder.display().to_string()).collect();
    let others = if folders.is_empty() { "no folder".into() } else { folders.join(", ") };
    format!(
        "lib{name}.so ({what}) was not found: searched for as lib{name}.so, \
         and with the endings of its versions, \
         in the loader's path (LD_LIBRARY_PATH is \"{path}\"), \
         and in Python's wheels ($VIRTUAL_ENV, \
         $CONDA_PREFIX, beside the python3 of $PATH, ~/.local, /usr/local, \
         /usr) and in toolkits ($CUDA_HOME, \
         $CUDA_PATH, /usr/local/cuda): {others}"
    )
}

/// The folders that there are, the likeliest first.
fn folders() -> Vec<PathBuf> {
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let mut found = Vec::new();
    let mut roots: Vec<PathBuf> =
        [var("VIRTUAL_ENV"), var("CONDA_PREFIX")].into_iter().flatten().collect();
    roots.extend(of_python(&std::env::var_os("PATH").unwrap_or_default()));
    roots.extend(var("HOME").map(|home| home.join(".local")));
    roots.extend(["/usr/local", "/usr"].map(PathBuf::from));
    let mut seen = HashSet::new();
    for root in roots.into_iter().filter(|root| seen.insert(root.clone())) {
        for python in below(&root.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                // `cu13/lib`, which comes first, has all of CUDA 13; of 12 each library has a
                // folder.
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

/// The environment of the Python that a shell would start: no variable names it in an image whose
/// path begins with it. A virtual environment's `python3` is a link to another's, and a link to it
/// may stand elsewhere in the path; so each link on the way counts.
fn of_python(path: &OsStr) -> Vec<PathBuf> {
    let mut next = std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .flat_map(|folder| ["python3", "python"].map(|name| folder.join(name)))
        .find(|python| python.is_file());
    let mut roots = Vec::new();
    // A chain that the system follows is no longer.
    while let Some(python) = next.filter(|_| roots.len() < 40) {
        roots.extend(python.parent().and_then(Path::parent).map(Path::to_owned));
        next = fs::read_link(&python).ok().map(|to| python.with_file_name(to));
    }
    roots
}

/// The entries of a folder whose names begin so, in order.
fn below(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let list = fs::read_dir(folder).into_iter().flatten().flatten();
    let named =
        list.filter(|file| file.file_name().to_str().is_some_and(|name| name.starts_with(prefix)));
    let mut list: Vec<PathBuf> = named.map(|file| file.path()).collect();
    list.sort();
    list
}

/// The names that a library's file may have.
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
    // SAFETY: files of these names are NVIDIA's, or stand-ins with the same entry points; so are
    // the initialisers.
    unsafe { Library::new(file) }.ok()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_environment_is_found_by_the_python_of_the_path_and_by_each_link_to_it() {
        let root = fs::canonicalize(std::env::temp_dir()).unwrap();
        let root = root.join(format!("futensor-pythons-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for folder in ["system/bin", "venv/bin", "links", "empty/bin"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("system/bin/python3.12"), []).unwrap();
        symlink("python3.12", root.join("system/bin/python3")).unwrap();
        symlink(root.join("system/bin/python3"), root.join("venv/bin/python3")).unwrap();
        symlink("../venv/bin/python3", root.join("links/python3")).unwrap();
        symlink("python3", root.join("empty/bin/python3")).unwrap();
        let of = |folders: &[&str]| {
            let path =
                std::env::join_paths(folders.iter().map(|folder| root.join(folder))).unwrap();
            let found = of_python(&path).into_iter().map(|found| fs::canonicalize(found).unwrap());
            found
                .map(|found| found.strip_prefix(&root).map(Path::to_owned).unwrap_or(found))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&["venv/bin", "system/bin"])[..2], [Path::new("venv"), Path::new("system")]);
        // The first alone; one that leads nowhere is none.
        assert!(!of(&["system/bin", "venv/bin"]).contains(&"venv".into()));
        assert_eq!(of(&["empty/bin", "venv/bin"])[0], Path::new("venv"));
        assert!(of(&["links"]).contains(&"venv".into()));
        assert!(of(&["nothing", "empty/bin"]).is_empty());
        fs::remove_dir_all(&root).unwrap();
    }
}
