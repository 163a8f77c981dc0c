//! Files that a run writes at its end: looked at before it begins, and named where something is
//! wrong.

use std::fs::{self, OpenOptions};
use std::path::Path;

/// Whether a file can be written, said before the work rather than after it. Leaves nothing behind.
pub fn check(file: &Path) -> Result<(), String> {
    let existed = file.exists();
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .map_err(|e| format!("{}: {e}", file.display()))?;
    if !existed {
        let _ = fs::remove_file(file);
    }
    Ok(())
}

/// Writes a file.
pub fn write(file: &Path, text: impl AsRef<[u8]>) -> Result<(), String> {
    fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
}
