//! `save`: writes the header of a safetensors file, and the tensors after it.

use super::wire::name_of;
use crate::files::{self, Piece, Save};
use crate::tensor::future::TensorFuture;
use safetensors::tensor::{Metadata, TensorInfo};
use std::panic::Location;
use std::path::Path;

/// Writes named tensors to a safetensors file. Tensors are read back one after the other, and a
/// separate thread writes them, so host memory holds little more than the largest tensor. The
/// complete file replaces an existing one atomically.
///
/// The order in the file is the usual one: wide types first, then by name.
///
/// # Errors
/// A failed value's own error; duplicate tensor names; errors of the file system.
///
/// # Cancel safety
/// Dropping the future cancels the save: no new file is written, and an existing one stays.
#[doc(alias = "save_file")]
#[track_caller]
pub fn save<N: Into<String>, T: AsRef<TensorFuture>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, T)>,
) -> Save {
    let mut tensors: Vec<(String, TensorFuture)> =
        tensors.into_iter().map(|(name, x)| (name.into(), x.as_ref().clone())).collect();
    tensors
        .sort_by(|(a, x), (b, y)| y.dtype().size().cmp(&x.dtype().size()).then_with(|| a.cmp(b)));
    files::save(path.as_ref().to_path_buf(), pieces(tensors), Location::caller())
}

fn pieces(tensors: Vec<(String, TensorFuture)>) -> Result<Vec<Piece>, String> {
    if let Some(failed) = files::known_failure(tensors.iter().map(|(_, x)| x)) {
        return Ok(failed);
    }
    let head = header(&tensors)?;
    let elements = tensors.into_iter().map(|(_, x)| Piece::Elements(x));
    Ok(std::iter::once(Piece::Bytes(head)).chain(elements).collect())
}

/// The first bytes of the file: the length of the header, and the header.
fn header(tensors: &[(String, TensorFuture)]) -> Result<Vec<u8>, String> {
    let mut infos = Vec::new();
    let mut names: Vec<&str> = tensors.iter().map(|(name, _)| &name[..]).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|w| w[0] == w[1]) {
        return Err(format!("two tensors are named {}", pair[0]));
    }
    let mut start = 0usize;
    for (name, x) in tensors {
        let end =
            start.checked_add(x.node.meta.bytes()).ok_or("the tensors are too large for a file")?;
        let info = TensorInfo {
            dtype: name_of(x.dtype()),
            shape: x.dims().to_vec(),
            data_offsets: (start, end),
        };
        infos.push((name.clone(), info));
        start = end;
    }
    let metadata = Metadata::new(None, infos).map_err(|e| e.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
    // The elements begin at a multiple of eight bytes.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    Ok(out)
}
