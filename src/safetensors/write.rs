//! `save`: writes the header of a safetensors file, and the tensors after it.

use super::HEADER_MAX;
use super::wire::name_of;
use crate::error::bytes_of;
use crate::files::{self, Piece, Save};
use crate::tensor::future::TensorFuture;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::BTreeMap;
use std::panic::Location;
use std::path::Path;

/// The name of the metadata in a header.
const ABOUT: &str = "__metadata__";

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
    save_with_metadata::<&str, &str, N, T>(path, [], tensors)
}

/// [`save`], with metadata: the map of texts that the header has as `__metadata__`.
/// [`Load::metadata`](super::Load::metadata) reads it, and so does `safe_open(..).metadata()` in
/// Python.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, safetensors};
/// let device = Device::cpu();
/// # let path = std::env::temp_dir()
/// #     .join(format!("futensor-metadata-{}.safetensors", std::process::id()));
/// let about = [("format", "pt".to_string()), ("step", 1200.to_string())];
/// safetensors::save_with_metadata(&path, about, [("w", device.ones([2]))]).await?;
///
/// let mut file = safetensors::load(&path, &device);
/// assert_eq!(file.metadata().await?["step"], "1200");         // before any tensor is read
/// assert_eq!(file.all().await?["w"].dims(), [2]);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// As [`save`]; two entries of one name; a header longer than the 100 MB that readers take.
///
/// # Cancel safety
/// As [`save`].
#[track_caller]
pub fn save_with_metadata<
    K: Into<String>,
    V: Into<String>,
    N: Into<String>,
    T: AsRef<TensorFuture>,
>(
    path: impl AsRef<Path>,
    metadata: impl IntoIterator<Item = (K, V)>,
    tensors: impl IntoIterator<Item = (N, T)>,
) -> Save {
    let mut about = BTreeMap::new();
    let twice = metadata.into_iter().map(|(k, v)| (k.into(), v.into())).find_map(|(key, value)| {
        let before = about.insert(key.clone(), value);
        before.map(|_| format!("{key} is given twice"))
    });
    let mut tensors: Vec<(String, TensorFuture)> =
        tensors.into_iter().map(|(name, x)| (name.into(), x.as_ref().clone())).collect();
    tensors
        .sort_by(|(a, x), (b, y)| y.dtype().size().cmp(&x.dtype().size()).then_with(|| a.cmp(b)));
    let pieces = twice.map_or_else(|| pieces(&about, tensors), Err);
    files::save(path.as_ref().to_path_buf(), pieces, Location::caller())
}

fn pieces(
    about: &BTreeMap<String, String>,
    tensors: Vec<(String, TensorFuture)>,
) -> Result<Vec<Piece>, String> {
    if let Some(failed) = files::known_failure(tensors.iter().map(|(_, x)| x)) {
        return Ok(failed);
    }
    let head = header(about, &tensors)?;
    let elements = tensors.into_iter().map(|(_, x)| Piece::Elements(x));
    Ok(std::iter::once(Piece::Bytes(head)).chain(elements).collect())
}

/// The first bytes of the file: the length of the header, and the header.
fn header(
    about: &BTreeMap<String, String>,
    tensors: &[(String, TensorFuture)],
) -> Result<Vec<u8>, String> {
    let mut infos = Vec::new();
    let mut names: Vec<&str> = tensors.iter().map(|(name, _)| &name[..]).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|w| w[0] == w[1]) {
        return Err(format!("two tensors are named {}", pair[0]));
    }
    if names.binary_search(&ABOUT).is_ok() {
        return Err(format!("no tensor can be named {ABOUT}"));
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
    if !about.is_empty() {
        // The `safetensors` crate writes the entries in no order: the bytes of a file would differ
        // from run to run.
        let about = serde_json::to_string(about).map_err(|e| e.to_string())?;
        let comma = if tensors.is_empty() { "" } else { "," };
        text.splice(1..1, format!("\"{ABOUT}\":{about}{comma}").into_bytes());
    }
    if text.len() as u64 > HEADER_MAX {
        return Err(format!("a header of {}: no reader takes it", bytes_of(text.len())));
    }
    // The elements begin at a multiple of eight bytes.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    Ok(out)
}
