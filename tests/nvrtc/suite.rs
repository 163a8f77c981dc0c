//! The kernels that a run of the test suite generated on the simulated driver, fused ones and all.
//!
//! The simulated compiler's binaries are their own source, so the disk cache of such a run
//! (`FUTENSOR_CACHE`) holds every kernel that the run asked for. `FUTENSOR_KERNELS` names the
//! folder:
//!
//!     cargo test -p futensor-tests --test ops_simulated_cuda
//!     FUTENSOR_KERNELS=$PWD/target/simulated-driver/kernels cargo test -p futensor-nvrtc suite

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// How an entry begins, behind the cache's own head: this line, then architecture, name, and a
/// list.
const MARK: &[u8] = b"futensor simulated image 1\n";
/// Where the kernels of a translation unit begin; what is before is shared.
const ENTRY: &str = "extern \"C\" __global__";
/// Kernels of a unit: so many cost little more than a few.
const TOGETHER: usize = 48;

/// Of the thousands of kernels that are not fused, which the catalogue has in one form or another,
/// every so manieth is looked at, by its text.
const ONE_OF: u64 = 16;

/// True of a kernel that is looked at.
fn counts(kernel: &str) -> bool {
    let ops = kernel.matches("ft::op_").count();
    let fused = ops > 1 || ops == 1 && !kernel.contains(" elementwise_");
    let text = kernel.bytes().fold(0u64, |h, b| h.wrapping_mul(31).wrapping_add(b as u64));
    fused || text.is_multiple_of(ONE_OF)
}

/// The folder that is to be looked at.
pub fn folder() -> Option<std::path::PathBuf> {
    std::env::var_os("FUTENSOR_KERNELS").map(Into::into)
}

/// Translation units that hold every kernel of the folder once, and how many kernels there are.
pub fn units(folder: &Path) -> Result<(Vec<String>, usize), String> {
    let list = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    // Kernels by the text that they share.
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in list.flatten().map(|f| f.path()).filter(|p| p.extension().is_some_and(|e| e == "cubin")) {
        let bytes = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let Some(text) = source(&bytes) else {
            return Err(format!("{} is not the simulated compiler's", file.display()));
        };
        let Some(at) = text.find(ENTRY) else { continue };
        let (shared, kernels) = text.split_at(at);
        let kernels = kernels.split(ENTRY).skip(1).map(|body| format!("{ENTRY}{body}")).filter(|k| counts(k));
        found.entry(shared.to_owned()).or_default().extend(kernels);
    }
    let count = found.values().map(BTreeSet::len).sum();
    let mut units = Vec::new();
    for (shared, kernels) in found {
        let kernels: Vec<String> = kernels.into_iter().collect();
        units.extend(kernels.chunks(TOGETHER).map(|some| shared.clone() + &some.concat()));
    }
    Ok((units, count))
}

/// The CUDA C in an entry.
fn source(bytes: &[u8]) -> Option<String> {
    let at = bytes.windows(MARK.len()).position(|w| w == MARK)?;
    let text = String::from_utf8_lossy(&bytes[at + MARK.len()..]).into_owned();
    let mut lines = text.splitn(4, '\n');
    let (_architecture, _name) = (lines.next()?, lines.next()?);
    // No macros are defined from outside.
    (lines.next()? == "0").then_some(())?;
    Some(lines.next()?.trim_end_matches('\0').to_owned())
}
