//! `save` and `save_npz`: a header before the elements.

use super::header;
use crate::files::{self, Piece, Save};
use crate::tensor::future::TensorFuture;
use std::collections::BTreeSet;
use std::panic::Location;
use std::path::Path;

/// Writes a tensor to a `.npy` file, row by row. A separate thread writes, and the complete file
/// replaces an existing one atomically.
///
/// # Errors
/// A failed value's own error; bfloat16, which NumPy does not have; errors of the file system.
///
/// # Cancel safety
/// Dropping the future cancels the save: no new file is written, and an existing one stays.
#[track_caller]
pub fn save(path: impl AsRef<Path>, x: impl AsRef<TensorFuture>) -> Save {
    let x = x.as_ref().clone();
    let pieces = files::known_failure([&x]).map_or_else(|| array(x), Ok);
    files::save(path.as_ref().to_path_buf(), pieces, Location::caller())
}

/// Writes named tensors to a `.npz` file, without compression, in the order in which they come.
/// Tensors are read back one after the other, so host memory holds little more than the largest
/// one.
///
/// # Errors
/// As [`save`]; two tensors of one name.
///
/// # Cancel safety
/// As [`save`].
#[doc(alias = "savez")]
#[track_caller]
pub fn save_npz<N: Into<String>, T: AsRef<TensorFuture>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, T)>,
) -> Save {
    let tensors: Vec<(String, TensorFuture)> =
        tensors.into_iter().map(|(name, x)| (name.into(), x.as_ref().clone())).collect();
    let failed = files::known_failure(tensors.iter().map(|(_, x)| x));
    let pieces = failed.map_or_else(|| arrays(tensors), Ok);
    files::save_archive(path.as_ref().to_path_buf(), pieces, Location::caller())
}

fn array(x: TensorFuture) -> Result<Vec<Piece>, String> {
    let head = header::write(x.dtype(), x.shape())?;
    Ok(vec![Piece::Bytes(head), Piece::Elements(x)])
}

fn arrays(tensors: Vec<(String, TensorFuture)>) -> Result<Vec<Piece>, String> {
    let mut names = BTreeSet::new();
    let mut pieces = Vec::new();
    for (name, x) in tensors {
        if !names.insert(name.clone()) {
            return Err(format!("two tensors are named {name}"));
        }
        pieces.push(Piece::Entry(format!("{name}.npy")));
        pieces.extend(array(x).map_err(|e| format!("{name}: {e}"))?);
    }
    Ok(pieces)
}
